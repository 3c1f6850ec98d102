"""The weight with its axes in another order: what folding a Transpose leaves behind."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from memdiag.xray.layouts.copy import VirtualCopy
from memdiag.xray.layouts.tiled import tiled
from memdiag.xray.layouts.uses import Uses


@dataclass(frozen=True)
class Transposed:
    """Row-major after a permutation of the axes."""

    name: str = "transposed"
    kind: str = "transposed"

    def candidates(self, weight: NDArray[Any], uses: Uses) -> Iterator[VirtualCopy]:
        """Yield a copy for each permutation in the graph, and for that of a matrix.

        Permutations that move no byte (only axes of length 1 change places) are left out: the copy
        would be the original.
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
            nbytes, segments = tiled(
                (weight.transpose(perm),),
                (1,) * weight.ndim,
                [(axis, "outer") for axis in range(weight.ndim)],
            )
            parameters = {"perm": ",".join(map(str, perm))}
            yield VirtualCopy(self.name, self.kind, nbytes, segments, parameters)


LAYOUT = Transposed()
