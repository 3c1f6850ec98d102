"""A half-precision weight in fp32, as the runtime keeps it for kernels that know no halves."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from memdiag.attribution.layouts.copy import VirtualCopy
from memdiag.attribution.layouts.tiled import row_major
from memdiag.attribution.layouts.uses import Uses
from memdiag.attribution.layouts.values import cast


@dataclass(frozen=True)
class Cast:
    """Row-major, each float16 or bfloat16 widened to fp32."""

    name: str = "cast"
    kind: str = "cast"

    def candidates(self, weight: NDArray[Any], uses: Uses) -> Iterator[VirtualCopy]:
        """Yield the fp32 copy of a half-precision weight."""
        if not weight.size:
            return
        for values in cast(weight.reshape(-1)):
            nbytes, segments = row_major(values)
            yield VirtualCopy(self.name, self.kind, nbytes, segments, values.parameters)


LAYOUT = Cast()
