"""Weights with the bytes that the model file stores."""

from collections.abc import Iterator
from dataclasses import dataclass

from memdiag.attribution.element_values import unchanged_values
from memdiag.attribution.layout import Layout, LayoutHints
from memdiag.attribution.tiling import row_major_segments
from memdiag.attribution.virtual_copy import VirtualCopy
from memdiag.model.tensor_types import Array


@dataclass(frozen=True)
class Original(Layout):
    """Layout of weights as the model stores them: row-major, with the same element type."""

    name: str = "original"
    kind: str = "original"

    def candidates(self, weight: Array, hints: LayoutHints) -> Iterator[VirtualCopy]:
        """Yield the copy of a weight, unless it has strings or no elements."""
        if weight.dtype.hasobject or not weight.size:
            return
        nbytes, segments = row_major_segments(unchanged_values(weight.reshape(-1)))
        yield VirtualCopy(self.name, self.kind, nbytes, segments)


LAYOUT = Original()
