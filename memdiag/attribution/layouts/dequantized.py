"""Integer weights converted to fp32, the result of folding a DequantizeLinear."""

from collections.abc import Iterator
from dataclasses import dataclass

from memdiag.attribution.element_values import dequantized_values
from memdiag.attribution.layout import Layout, LayoutHints
from memdiag.attribution.tiling import row_major_segments
from memdiag.attribution.virtual_copy import VirtualCopy
from memdiag.model.tensor_types import Array


@dataclass(frozen=True)
class Dequantized(Layout):
    """Layout of dequantized weights: ``(weight - zero_point) * scale`` in row-major order."""

    name: str = "dequantized"
    kind: str = "dequantized"

    def candidates(self, weight: Array, hints: LayoutHints) -> Iterator[VirtualCopy]:
        """Yield a dequantized copy for each quantization: per tensor, per axis or by blocks of one
        axis."""
        if not weight.size:
            return
        for values in dequantized_values(weight, hints):
            nbytes, segments = row_major_segments(values)
            yield VirtualCopy(self.name, self.kind, nbytes, segments, values.parameters)


LAYOUT = Dequantized()
