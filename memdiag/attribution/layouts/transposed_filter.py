"""ConvTranspose filters with each group's matrix ``[C, M * H * W]`` transposed by prepacking."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memdiag.attribution.element_values import Values, as_fp32
from memdiag.attribution.layout import Layout, LayoutHints
from memdiag.attribution.tiling import row_major
from memdiag.attribution.virtual_copy import VirtualCopy
from memdiag.attribution.weight_operators import TRANSPOSED_FILTERS
from memdiag.model.tensor_types import Array


@dataclass(frozen=True)
class TransposedFilter(Layout):
    """Layout of filters ``[C, M / groups, …]`` as ``[groups, M / groups * …, C / groups]``."""

    name: str = "transposed_filter"
    kind: str = "transposed"
    packed_inputs = TRANSPOSED_FILTERS

    def candidates(self, weight: Array, hints: LayoutHints) -> Iterator[VirtualCopy]:
        """Yield a transposed copy of a filter for each number of groups in the graph; for 1 if
        unknown."""
        if weight.ndim < 3 or not weight.size:
            return
        for values in as_fp32(weight, hints):
            for groups in dict.fromkeys(hints.groups or (1,)):
                if groups >= 1 and weight.shape[0] % groups == 0:
                    nbytes, segments = row_major(_grouped(values, groups))
                    parameters = {"groups": str(groups), **values.parameters}
                    yield VirtualCopy(self.name, self.kind, nbytes, segments, parameters)


def _grouped(values: Values, groups: int) -> Values:
    channels, *kernel = values.shape
    return values.viewed(
        lambda source: np.moveaxis(source.reshape(groups, channels // groups, *kernel), 1, -1)
    )


LAYOUT = TransposedFilter()
