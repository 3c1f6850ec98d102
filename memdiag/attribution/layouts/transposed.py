"""Weights with permuted axes, the result of folding a Transpose."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from memdiag.attribution.element_values import ElementValues, fp32_values, unchanged_values
from memdiag.attribution.layout import Layout, LayoutHints
from memdiag.attribution.tiling import row_major_segments
from memdiag.attribution.virtual_copy import VirtualCopy
from memdiag.model.tensor_types import Array


@dataclass(frozen=True)
class Transposed(Layout):
    """Layout of weights after a permutation of their axes, in row-major order."""

    name: str = "transposed"
    kind: str = "transposed"

    def candidates(self, weight: Array, hints: LayoutHints) -> Iterator[VirtualCopy]:
        """Yield a copy for each permutation in the graph, and for the last two axes swapped.

        Permutations that move no byte (only axes of length 1 change position) are skipped: the copy
        would equal the original. Each permutation is also tried with the values converted to fp32.
        """
        if weight.dtype.hasobject or not weight.size:
            return
        permutations = [
            perm for perm in hints.permutations if sorted(perm) == list(range(weight.ndim))
        ]
        if weight.ndim >= 2:
            swapped = (*range(weight.ndim - 2), weight.ndim - 1, weight.ndim - 2)
            permutations.append(swapped)
        for perm in dict.fromkeys(permutations):
            moved = [axis for axis in perm if weight.shape[axis] != 1]
            if moved == sorted(moved):
                continue
            for values in self._candidate_values(weight, hints):
                transposed = values.viewed(partial(np.transpose, axes=perm))
                nbytes, segments = row_major_segments(transposed)
                parameters = {"perm": ",".join(map(str, perm)), **values.parameters}
                yield VirtualCopy(self.name, self.kind, nbytes, segments, parameters)

    def _candidate_values(self, weight: Array, hints: LayoutHints) -> Iterator[ElementValues]:
        yield unchanged_values(weight)
        if weight.dtype != np.float32:
            yield from fp32_values(weight, hints)


LAYOUT = Transposed()
