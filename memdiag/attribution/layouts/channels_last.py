"""Convolution filters with their input channels last, as CUDA's kernels for NHWC read them."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from memdiag.attribution.element_values import unchanged_values
from memdiag.attribution.layout import Layout, LayoutHints
from memdiag.attribution.tiling import row_major_segments
from memdiag.attribution.virtual_copy import VirtualCopy
from memdiag.model.tensor_types import Array


@dataclass(frozen=True)
class ChannelsLast(Layout):
    """Layout of filters ``[M, C, …]`` as ``[M, …, C]``."""

    name: str = "channels_last"
    kind: str = "transposed"
    libraries = ("libonnxruntime_providers_cuda", "libcudnn")

    def candidates(self, weight: Array, hints: LayoutHints) -> Iterator[VirtualCopy]:
        """Yield the copy of a filter, unless its bytes are in the same order as the original's."""
        if weight.ndim < 3 or weight.dtype.hasobject or not weight.size:
            return
        if weight.shape[1] == 1 or weight.size == weight.shape[0] * weight.shape[1]:
            return
        axes = (0, *range(2, weight.ndim), 1)
        values = unchanged_values(weight).viewed(partial(np.transpose, axes=axes))
        nbytes, segments = row_major_segments(values)
        yield VirtualCopy(self.name, self.kind, nbytes, segments)


LAYOUT = ChannelsLast()
