"""The weight with its axes in another order: what folding a Transpose leaves behind."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memdiag.attribution.layouts.copy import VirtualCopy
from memdiag.attribution.layouts.tiled import row_major
from memdiag.attribution.layouts.uses import Uses
from memdiag.attribution.layouts.values import Values, as_fp32, own


@dataclass(frozen=True)
class Transposed:
    """Row-major after a permutation of the axes."""

    name: str = "transposed"
    kind: str = "transposed"

    def candidates(self, weight: NDArray[Any], uses: Uses) -> Iterator[VirtualCopy]:
        """Yield a copy for each permutation in the graph, and for that of a matrix.

        Permutations that move no byte (only axes of length 1 change places) are left out: the copy
        would be the original. Each is also tried with the values converted to fp32.
        """
        if weight.dtype.hasobject or not weight.size:
            return
        permutations = [
            perm for perm in uses.permutations if sorted(perm) == list(range(weight.ndim))
        ]
        if weight.ndim >= 2:
            swapped = (*range(weight.ndim - 2), weight.ndim - 1, weight.ndim - 2)
            permutations.append(swapped)
        for perm in dict.fromkeys(permutations):
            moved = [axis for axis in perm if weight.shape[axis] != 1]
            if moved == sorted(moved):
                continue
            for values in self._values(weight, uses):
                turned = values.viewed(partial(np.transpose, axes=perm))
                nbytes, segments = row_major(turned)
                parameters = {"perm": ",".join(map(str, perm)), **values.parameters}
                yield VirtualCopy(self.name, self.kind, nbytes, segments, parameters)

    def _values(self, weight: NDArray[Any], uses: Uses) -> Iterator[Values]:
        yield own(weight)
        if weight.dtype != np.float32:
            yield from as_fp32(weight, uses)


LAYOUT = Transposed()
