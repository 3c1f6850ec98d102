"""The figures of a process from which the verdict on its growth follows, and their owners."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Final, NamedTuple

from memdiag.growth.steady_growth import MIN_MOMENTS
from memdiag.records.growth import (
    GrowingBlocks,
    GrowingOwner,
    Moment,
    RunSample,
    Unit,
    kinds_of,
)
from memdiag.units import KIB, MIB


@dataclass(frozen=True, slots=True)
class OwnerInUse:
    """An owner whose memory is in use, and how much growth of it is certain.

    Attributes:
        owner: the owner.
        bytes_of: its bytes at a moment; None if they could not be read.
        min_bytes: the smallest growth after the warm-up that is not noise. It is larger for owners
            whose memory is known by resident pages only.
    """

    owner: GrowingOwner
    bytes_of: Callable[[Moment], int | None]
    min_bytes: int


def resident_bytes_of(owner: GrowingOwner) -> Callable[[Moment], int | None]:
    """Return the function that returns the resident bytes of `owner` at a moment."""
    kinds = kinds_of(owner)
    return lambda moment: moment.bytes_of(*kinds) if moment.owners else None


OWNERS_IN_USE = (
    OwnerInUse("arena", lambda moment: moment.arena_used_bytes, KIB),
    OwnerInUse("heap", lambda moment: moment.heap_bytes, KIB),
    OwnerInUse("python", resident_bytes_of("python"), 512 * KIB),
    OwnerInUse("files", lambda moment: moment.mapped_bytes, MIB),
    OwnerInUse("other", resident_bytes_of("other"), MIB),
)
"""The owners whose steady growth is a leak or kept values. Blocks of malloc are counted to the
byte; Python's heap and private mappings by resident pages; files and shared memory by the size of
their mappings, because reading further in a mapped file also makes more pages resident."""


class KeptValues(NamedTuple):
    """The values of most earlier runs that are alive in a program, or copies of these values.

    Attributes:
        names: their description; empty if there are none.
        bytes_per_run: the bytes by which they grow with each run; None if not known.
    """

    names: str = ""
    bytes_per_run: float | None = None


NOTHING_KEPT: Final = KeptValues()


@dataclass(frozen=True, kw_only=True, slots=True)
class GrowthObservation:
    """Figures of a process from which the verdict follows.

    Attributes:
        moments: after the first run, after the warm-up, and then evenly spread until the end.
        unit: the unit that growth is counted by.
        warm_up: the first moment after the warm-up, an index of `moments`.
        samples: counters after each run.
        new_largest: the numbers of the runs that had a larger input than all earlier runs.
        blocks: sizes of blocks of malloc that grew.
        growing_heap_bytes: at each moment the bytes of malloc's blocks whose size has a steadily
            growing number of blocks (`memdiag.growth.growing_sizes`). The heap is judged by them;
            None to judge it by all blocks in use.
        min_heap_bytes: the smallest growth of these blocks after the warm-up that is not noise.
        caller_keeps_nothing: whether the caller is memdiag, which keeps no outputs.
        kept: the values that the program keeps.
        kept_from: where the runs with these values were called; empty if it is not known.
    """

    moments: tuple[Moment, ...]
    unit: Unit
    warm_up: int
    samples: tuple[RunSample, ...] = ()
    new_largest: frozenset[int] = frozenset()
    blocks: tuple[GrowingBlocks, ...] = ()
    growing_heap_bytes: tuple[int | None, ...] | None = None
    min_heap_bytes: int = KIB
    caller_keeps_nothing: bool
    kept: KeptValues = NOTHING_KEPT
    kept_from: str = ""

    def with_heap(self) -> "GrowthObservation":
        """Return the observation without moments whose heap was not read, if enough remain."""
        is_heap_known = [moment.heap_bytes is not None for moment in self.moments]
        if all(is_heap_known) or sum(is_heap_known[self.warm_up :]) < MIN_MOMENTS:
            return self
        growing_bytes = self.growing_heap_bytes
        return replace(
            self,
            moments=tuple(compress(self.moments, is_heap_known)),
            warm_up=sum(is_heap_known[: self.warm_up]),
            growing_heap_bytes=None
            if growing_bytes is None
            else tuple(compress(growing_bytes, is_heap_known)),
        )

    @property
    def moments_after_warm_up(self) -> tuple[Moment, ...]:
        """The moments from the end of the warm-up on, by which growth is judged."""
        return self.moments[self.warm_up :]

    def positions(self, moments: Sequence[Moment]) -> list[float]:
        """Return the runs, or the seconds, at which `moments` were."""
        return [moment.position(self.unit) for moment in moments]
