"""The fp32 operand of MatMul, Gemm and their fusions, packed for the runtime's matrix kernel on x86."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memdiag.xray.layouts.copy import VirtualCopy
from memdiag.xray.layouts.panels import WIDTH, aligned, panels
from memdiag.xray.layouts.uses import Uses

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
        if weight.dtype != np.float32 or weight.ndim != 2 or not weight.size:
            return
        for transposed, operand in (("0", weight), ("1", weight.T)):
            if operand.shape[1] == WIDTH and transposed == "0":
                continue
            used, segments = panels((operand,), depth=_DEPTH)
            nbytes = aligned(used)
            rest = ((used, nbytes - used),) if nbytes > used else ()
            parameters = {"transB": transposed}
            yield VirtualCopy(self.name, self.kind, nbytes, segments, parameters, rest)


LAYOUT = PackedFp32()
