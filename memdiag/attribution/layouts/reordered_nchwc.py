"""Convolution filters reordered for the blocked (NCHWc) kernels, by the NchwcTransformer."""

from collections.abc import Iterator
from dataclasses import dataclass

from memdiag.attribution.element_values import fp32_values
from memdiag.attribution.layout import Layout, LayoutHints
from memdiag.attribution.tiling import AxisOrder, tiled_segments
from memdiag.attribution.virtual_copy import VirtualCopy
from memdiag.model.tensor_types import Array

_NCHWC_BLOCKS = (16, 8)
_OUTER_AXES = tuple((axis, "outer") for axis in range(4))
_BOTH_CHANNELS_ORDER: AxisOrder = (*_OUTER_AXES, (1, "inner"), (0, "inner"))
_OUTPUT_CHANNELS_ORDER: AxisOrder = (*_OUTER_AXES, (0, "inner"))


@dataclass(frozen=True)
class ReorderedNchwc(Layout):
    """Layout of filters ``[O, I, H, W]`` in blocks of 16 channels (AVX-512) or 8, padded with
    zeros.

    ``OIHWBiBo`` blocks input and output channels. ``OIHWBo`` blocks output channels only: for
    depthwise convolutions, and for filters with fewer input channels than a block.
    """

    name: str = "reordered_nchwc"
    kind: str = "reordered"

    def candidates(self, weight: Array, hints: LayoutHints) -> Iterator[VirtualCopy]:
        """Yield the copies of a filter in both orders, with both block lengths."""
        if weight.ndim != 4 or not weight.size:
            return
        for values in fp32_values(weight, hints):
            for block in _NCHWC_BLOCKS:
                orders = [("OIHWBo", 1, _OUTPUT_CHANNELS_ORDER)]
                if weight.shape[1] >= block:
                    orders.append(("OIHWBiBo", block, _BOTH_CHANNELS_ORDER))
                for order, inputs, axes in orders:
                    nbytes, segments = tiled_segments(values, (block, inputs, 1, 1), axes)
                    parameters = {"order": order, "block": str(block), **values.parameters}
                    yield VirtualCopy(self.name, self.kind, nbytes, segments, parameters)


LAYOUT = ReorderedNchwc()
