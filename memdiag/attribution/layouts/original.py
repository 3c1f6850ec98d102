"""The weight's own bytes, as the model holds them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from memdiag.attribution.layouts.copy import VirtualCopy
from memdiag.attribution.layouts.tiled import row_major
from memdiag.attribution.layouts.uses import Uses
from memdiag.attribution.layouts.values import own


@dataclass(frozen=True)
class Original:
    """Row-major, the element type of the model."""

    name: str = "original"
    kind: str = "original"

    def candidates(self, weight: NDArray[Any], uses: Uses) -> Iterator[VirtualCopy]:
        """Yield the one copy that any weight with elements of fixed size may have."""
        if weight.dtype.hasobject or not weight.size:
            return
        nbytes, segments = row_major(own(weight.reshape(-1)))
        yield VirtualCopy(self.name, self.kind, nbytes, segments)


LAYOUT = Original()
