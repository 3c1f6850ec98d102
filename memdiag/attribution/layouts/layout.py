"""What every layout offers: the copies that a weight may have in it."""

from collections.abc import Iterable
from typing import Any, Protocol

from numpy.typing import NDArray

from memdiag.attribution.layouts.copy import VirtualCopy
from memdiag.attribution.layouts.uses import Uses


class Layout(Protocol):
    """One way in which the runtime lays a weight out in memory.

    `kind` is ``original``, ``transposed``, ``packed``, ``reordered``, ``cast`` or ``dequantized``.
    """

    @property
    def name(self) -> str:
        """The layout's name in records, such as ``packed_fp32``."""

    @property
    def kind(self) -> str:
        """The kind of copy that the layout makes."""

    def candidates(self, weight: NDArray[Any], uses: Uses) -> Iterable[VirtualCopy]:
        """Yield the copies that `weight` may have; nothing where its dtype or rank rule them out.

        `weight` is C-contiguous and may be a read-only map of a file of any size: next to no byte
        of it is read here.
        """
