"""ConvTranspose filters with each group's matrix ``[C, M * H * W]`` transposed by prepacking."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memdiag.attribution.element_values import ElementValues, fp32_values
from memdiag.attribution.layout import Layout, LayoutHints
from memdiag.attribution.tiling import row_major_segments
from memdiag.attribution.virtual_copy import VirtualCopy
from memdiag.attribution.weight_operators import TRANSPOSED_FILTER_INPUTS
from memdiag.model.tensor_types import Array


@dataclass(frozen=True)
class TransposedFilter(Layout):
    """Layout of filters ``[C, M / groups, …]`` as ``[groups, M / groups * …, C / groups]``."""

    name: str = "transposed_filter"
    kind: str = "transposed"
    packed_inputs = TRANSPOSED_FILTER_INPUTS

    def candidates(self, weight: Array, hints: LayoutHints) -> Iterator[VirtualCopy]:
        """Yield a transposed copy of a filter for each number of groups in the graph; for one group
        if none is known."""
        if weight.ndim < 3 or not weight.size:
            return
        for values in fp32_values(weight, hints):
            for groups in dict.fromkeys(hints.groups or (1,)):
                if groups >= 1 and weight.shape[0] % groups == 0:
                    nbytes, segments = row_major_segments(_values_by_group(values, groups))
                    parameters = {"groups": str(groups), **values.parameters}
                    yield VirtualCopy(self.name, self.kind, nbytes, segments, parameters)


def _values_by_group(values: ElementValues, groups: int) -> ElementValues:
    channels, *kernel = values.shape
    return values.viewed(
        lambda source: np.moveaxis(source.reshape(groups, channels // groups, *kernel), 1, -1)
    )


LAYOUT = TransposedFilter()
