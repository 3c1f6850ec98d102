"""8-bit convolution filters that no kernel packs: brought to ``[H, W, I, O]``."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memdiag.attribution.layouts.copy import VirtualCopy
from memdiag.attribution.layouts.tiled import row_major
from memdiag.attribution.layouts.uses import Uses
from memdiag.attribution.layouts.values import own


@dataclass(frozen=True)
class ReorderedQConv:
    """Depthwise filters, and those of convolutions of signed inputs, keep one copy like this."""

    name: str = "reordered_qconv"
    kind: str = "reordered"

    def candidates(self, weight: NDArray[Any], uses: Uses) -> Iterator[VirtualCopy]:
        """Yield the one reordering of an 8-bit filter ``[O, I, …]``."""
        if weight.dtype not in (np.int8, np.uint8) or weight.ndim < 3 or not weight.size:
            return
        perm = (*range(2, weight.ndim), 1, 0)
        nbytes, segments = row_major(own(weight.transpose(perm)))
        yield VirtualCopy(self.name, self.kind, nbytes, segments)


LAYOUT = ReorderedQConv()
