"""The fp32 operand of MatMul, Gemm and their fusions, packed for the runtime's matrix kernel on x86."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memdiag.xray.layouts.copy import VirtualCopy
from memdiag.xray.layouts.panels import WIDTH, aligned, panels
from memdiag.xray.layouts.uses import Uses
from memdiag.xray.layouts.values import Values, as_fp32

_DEPTH = 256


@dataclass(frozen=True)
class PackedFp32:
    """Slices of 256 rows, each cut into panels of 16 columns; the columns are padded with zeros."""

    name: str = "packed_fp32"
    kind: str = "packed"

    def candidates(self, weight: NDArray[Any], uses: Uses) -> Iterator[VirtualCopy]:
        """Yield the packing of the matrix as it is and of its transpose (``transB``).

        The runtime packs matrices only, no stacks of them. A matrix of exactly 16 columns is its
        own packing, and left out.
        """
        if weight.ndim != 2 or not weight.size:
            return
        for values in as_fp32(weight, uses):
            if weight.shape[1] != WIDTH or values.combine is not None:
                yield self._packed(values, {"transB": "0", **values.parameters})
            yield self._packed(values.viewed(np.transpose), {"transB": "1", **values.parameters})

    def _packed(self, matrix: Values, parameters: dict[str, str]) -> VirtualCopy:
        used, segments = panels((matrix,), depth=_DEPTH)
        nbytes = aligned(used)
        rest = ((used, nbytes - used),) if nbytes > used else ()
        return VirtualCopy(self.name, self.kind, nbytes, segments, parameters, rest)


LAYOUT = PackedFp32()
