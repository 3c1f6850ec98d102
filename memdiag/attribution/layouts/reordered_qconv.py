"""8-bit convolution filters reordered to ``[H, W, I, O]``, where no kernel packs them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memdiag.attribution.element_values import unchanged_values
from memdiag.attribution.layout import Layout, LayoutHints
from memdiag.attribution.tiling import row_major_segments
from memdiag.attribution.virtual_copy import VirtualCopy
from memdiag.attribution.weight_operators import QUANTIZED_FILTER_INPUTS
from memdiag.model.tensor_types import Array


@dataclass(frozen=True)
class ReorderedQConv(Layout):
    """Layout of 8-bit filters ``[H, W, I, O]``: depthwise, or of convolutions with signed
    inputs."""

    name: str = "reordered_qconv"
    kind: str = "reordered"
    packed_inputs = QUANTIZED_FILTER_INPUTS

    def candidates(self, weight: Array, hints: LayoutHints) -> Iterator[VirtualCopy]:
        """Yield the reordered copy of an 8-bit filter ``[O, I, …]``."""
        if weight.dtype not in (np.int8, np.uint8) or weight.ndim < 3 or not weight.size:
            return
        perm = (*range(2, weight.ndim), 1, 0)
        nbytes, segments = row_major_segments(unchanged_values(weight.transpose(perm)))
        yield VirtualCopy(self.name, self.kind, nbytes, segments)


LAYOUT = ReorderedQConv()
