"""fp32 weights reordered for oneDNN's kernels, by OpenVINO's CPU plugin and the DNNL provider.

Measured with OpenVINO 2025.4 on a processor with AVX-512.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from memdiag.attribution.element_values import ElementValues, fp32_values
from memdiag.attribution.layout import Layout, LayoutHints
from memdiag.attribution.tiling import AxisOrder, tiled_segments
from memdiag.attribution.virtual_copy import VirtualCopy
from memdiag.model.tensor_types import Array

_ONEDNN_BLOCKS = (16, 32, 48, 64)
_ONEDNN_VECTOR_VALUES = 16
_MLAS_DEPTH = 256


@dataclass(frozen=True)
class ReorderedOnednn(Layout):
    """Layout in blocks of outputs, padded with zeros: ``[O / block][H][W][I][block]``.

    Matrices have no H and W. Filters of depthwise convolutions are not divided, but their channels
    come last, padded to a multiple of 16: ``[H][W][C]``.
    """

    name: str = "reordered_onednn"
    kind: str = "reordered"
    libraries = ("libopenvino_intel_cpu_plugin", "libdnnl")

    def candidates(self, weight: Array, hints: LayoutHints) -> Iterator[VirtualCopy]:
        """Yield the copies of a filter or matrix with each block length.

        A matrix is ``[I, O]`` or ``[O, I]``. Copies that equal those of other layouts are skipped:
        a single block of whole length, and blocks of 16 with at most 256 inputs, which MLAS packs
        alike.
        """
        if weight.ndim < 2 or not weight.size:
            return
        for values in fp32_values(weight, hints):
            if weight.ndim > 2 and weight.shape[1] == 1:
                yield self._blocked_copy(values, 0, _ONEDNN_VECTOR_VALUES, is_depthwise=True)
                continue
            for axis in (0, 1) if weight.ndim == 2 else (0,):
                outputs, inputs = weight.shape[axis], weight.shape[1 - axis]
                for block in _ONEDNN_BLOCKS:
                    if weight.ndim == 2 and (
                        outputs == block
                        or (block == _ONEDNN_VECTOR_VALUES and inputs <= _MLAS_DEPTH)
                    ):
                        continue
                    yield self._blocked_copy(values, axis, block)

    def _blocked_copy(
        self, values: ElementValues, axis: int, block: int, *, is_depthwise: bool = False
    ) -> VirtualCopy:
        spatial = tuple((index, "outer") for index in range(2, len(values.shape)))
        inputs, outputs = (1 - axis, "outer"), (axis, "outer")
        order: AxisOrder = (
            (*spatial, inputs, outputs, (axis, "inner"))
            if is_depthwise
            else (outputs, *spatial, inputs, (axis, "inner"))
        )
        blocks = tuple(block if index == axis else 1 for index in range(len(values.shape)))
        nbytes, segments = tiled_segments(values, blocks, order)
        name = "HWC" if is_depthwise else "OHWIo" if spatial else "OIo"
        parameters = {"order": name, "block": str(block), **values.parameters}
        if len(values.shape) == 2:
            parameters["transB"] = str(1 - axis)
        return VirtualCopy(self.name, self.kind, nbytes, segments, parameters)


LAYOUT = ReorderedOnednn()
