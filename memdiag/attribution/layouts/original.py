"""Weights with the bytes that the model file stores."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from memdiag.attribution.element_values import unchanged
from memdiag.attribution.layout import Uses
from memdiag.attribution.tiling import row_major
from memdiag.attribution.virtual_copy import VirtualCopy


@dataclass(frozen=True)
class Original:
    """Row-major, with the element type of the model."""

    name: str = "original"
    kind: str = "original"

    def candidates(self, weight: NDArray[Any], uses: Uses) -> Iterator[VirtualCopy]:
        """Yield the one copy of a weight whose elements have a fixed size."""
        if weight.dtype.hasobject or not weight.size:
            return
        nbytes, segments = row_major(unchanged(weight.reshape(-1)))
        yield VirtualCopy(self.name, self.kind, nbytes, segments)


LAYOUT = Original()
