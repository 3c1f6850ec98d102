"""Half-precision weights converted to fp32, for kernels without a half-precision version."""

from collections.abc import Iterator
from dataclasses import dataclass

from memdiag.attribution.element_values import cast_values
from memdiag.attribution.layout import Layout, LayoutHints
from memdiag.attribution.tiling import row_major_segments
from memdiag.attribution.virtual_copy import VirtualCopy
from memdiag.model.tensor_types import Array


@dataclass(frozen=True)
class Cast(Layout):
    """Layout of half-precision weights converted to fp32, in row-major order."""

    name: str = "cast"
    kind: str = "cast"

    def candidates(self, weight: Array, hints: LayoutHints) -> Iterator[VirtualCopy]:
        """Yield the fp32 copy of a half-precision weight."""
        if not weight.size:
            return
        for values in cast_values(weight.reshape(-1)):
            nbytes, segments = row_major_segments(values)
            yield VirtualCopy(self.name, self.kind, nbytes, segments, values.parameters)


LAYOUT = Cast()
