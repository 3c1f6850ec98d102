"""The verdict on the growth of a process: leak, kept values, warm-up, or memory that malloc keeps.

The resident set alone cannot distinguish these, and their remedies are opposite. The owner of the
growth does: blocks and chunks *in use* that become more with every run are a leak or values that
somebody keeps; free chunks and freed blocks are not.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress, pairwise
from types import MappingProxyType

from memdiag.growth.slope import MIN_POINTS, robust_slope
from memdiag.growth.steady_growth import MIN_MOMENTS, steady_slope
from memdiag.records.growth import (
    GrowingBlocks,
    GrowingOwner,
    Moment,
    RunSample,
    Slope,
    Unit,
    Verdict,
    kinds_of,
)
from memdiag.units import KIB, MIB, format_rate, some_of

MIN_GROWTH_BYTES = MIB
"""Growth of the resident set below this, or below `MIN_GROWTH_SHARE`, is called flat."""

MIN_GROWTH_SHARE = 0.01

MIN_NEW_LARGEST_SHARE = 0.8
"""Share of the growth that must occur at runs with an input larger than all before."""

MAX_LATE_GROWTH_SHARE = 0.1
"""Growth has ended if the last third of the moments has at most this share of it."""

MIN_EARLIER_VALUES = 40
MIN_KEPT_SHARE = 0.5
"""A program keeps its values if this share of those of earlier runs is alive, of at least 40."""

MIN_MORE_SESSIONS = 10
"""Sessions that became alive between a few moments, more at each, from which on they are kept."""

_SLACK_BYTES = 64 * KIB  # of a resident set at rest, between two readings


@dataclass(frozen=True, slots=True)
class OwnerInUse:
    """An owner whose memory is in use, and how much growth of it is certain.

    Attributes:
        owner: the owner.
        bytes_of: its bytes at a moment; None if they could not be read.
        min_bytes: the smallest growth after the warm-up that is not noise. Owners that are known by
            resident pages only need more.
    """

    owner: GrowingOwner
    bytes_of: Callable[[Moment], int | None]
    min_bytes: int


def _resident(owner: GrowingOwner) -> Callable[[Moment], int | None]:
    kinds = kinds_of(owner)
    return lambda moment: moment.bytes_of(*kinds) if moment.owners else None


IN_USE = (
    OwnerInUse("arena", lambda moment: moment.arena_used_bytes, KIB),
    OwnerInUse("heap", lambda moment: moment.heap_bytes, KIB),
    OwnerInUse("python", _resident("python"), 512 * KIB),
    OwnerInUse("files", lambda moment: moment.mapped_bytes, MIB),
    OwnerInUse("other", _resident("other"), MIB),
)
"""The owners whose steady growth is a leak or kept values. Blocks of malloc are counted to the
byte; Python's heap and private mappings by resident pages; files and shared memory by the size of
their mappings, because reading on in a mapped file makes more pages resident, too."""

_BY_PAGES: frozenset[GrowingOwner] = frozenset(("python", "other"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """Figures of a process from which the verdict follows.

    Attributes:
        moments: after the first run, after the warm-up, and then evenly spread until the end.
        unit: the unit that growth is counted by.
        warm_up: the first moment after the warm-up, an index of `moments`.
        samples: counters after each run.
        new_largest: the numbers of the runs that had an input larger than all before.
        blocks: sizes of blocks of malloc that grew.
        growing_heap_bytes: at each moment the bytes of blocks of malloc of the sizes whose number
            grows steadily (`memdiag.growth.growing_sizes`), by which the heap is judged; None to
            judge it by all blocks in use.
        min_heap_bytes: the smallest growth of these blocks after the warm-up that is not noise.
        caller_keeps_nothing: whether the caller is memdiag, which keeps no outputs.
        kept_values: the values of most earlier runs that are alive in the program, or copies of
            them; empty for none.
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
    kept_values: str = ""

    def with_heap(self) -> "Observation":
        """Return the observation without moments whose heap was not read, if enough remain."""
        known = [moment.heap_bytes is not None for moment in self.moments]
        if all(known) or sum(known[self.warm_up :]) < MIN_MOMENTS:
            return self
        growing = self.growing_heap_bytes
        return replace(
            self,
            moments=tuple(compress(self.moments, known)),
            warm_up=sum(known[: self.warm_up]),
            growing_heap_bytes=None if growing is None else tuple(compress(growing, known)),
        )

    @property
    def moments_after_warm_up(self) -> tuple[Moment, ...]:
        """The moments from the end of the warm-up on, by which growth is judged."""
        return self.moments[self.warm_up :]

    def positions(self, moments: Sequence[Moment]) -> list[float]:
        """Return the runs, or the seconds, at which `moments` were."""
        return [moment.position(self.unit) for moment in moments]


@dataclass(frozen=True, slots=True)
class GrowthJudgement:
    """The verdict with the owner of the growth and its slope; None if nothing grew, or too little
    was read to decide."""

    verdict: Verdict
    owner: GrowingOwner | None = None
    slope: Slope | None = None


def judge(observation: Observation) -> GrowthJudgement:
    """Return the verdict on `observation`, by the moments at which the heap was read."""
    observation = observation.with_heap()
    moments = observation.moments
    steady = _steady_growth(observation)
    if steady:
        owner, slope = max(steady, key=lambda each: each[1].bytes_per_unit)
        if any(_rises(observation, figure) for figure in _SESSIONS):
            owner = "sessions"
        owners = {owner, *(each for each, _ in steady)}
        return GrowthJudgement(_of_memory_in_use(owners, observation), owner, slope)
    # Also of many moments: growth by seconds is not steady if the program has other pauses.
    few = _of_few_moments(observation)
    if few.verdict == "kept" or len(observation.moments_after_warm_up) < MIN_MOMENTS:
        return few
    if grown_bytes(moments) < max(MIN_GROWTH_BYTES, MIN_GROWTH_SHARE * moments[0].resident_bytes):
        return GrowthJudgement("flat")
    largest = _largest_growth(moments[0], moments[-1])
    slope = robust_slope(
        observation.positions(moments), [moment.resident_bytes for moment in moments]
    )
    if largest == "allocator_retained":
        return GrowthJudgement("retained", largest, slope)
    if largest == "arena_slack" and _grows_at_new_largest(observation):
        return GrowthJudgement("high_water", largest, slope)
    has_ended = _has_ended(moments) or (largest == "arena_slack" and _arenas_have_ended(moments))
    return GrowthJudgement("plateau" if has_ended else "undecided", largest, slope)


_SESSIONS: tuple[Callable[[Moment], int | None], ...] = (
    lambda moment: moment.sessions,
    lambda moment: moment.arenas,
)
"""The numbers that grow where sessions are created and not released."""


def _of_few_moments(observation: Observation) -> GrowthJudgement:
    """Return ``kept`` if there are more sessions at each moment, else ``undecided``.

    A heap of many sessions takes seconds to read, so that a short program has few moments.
    """
    later = observation.moments_after_warm_up
    counts = [moment.sessions or 0 for moment in later]
    rises = all(before < after for before, after in pairwise(counts))
    if len(later) < MIN_POINTS or not rises or counts[-1] - counts[0] < MIN_MORE_SESSIONS:
        return GrowthJudgement("undecided")
    sizes = [moment.resident_bytes for moment in later]
    return GrowthJudgement("kept", "sessions", robust_slope(observation.positions(later), sizes))


def grown_bytes(moments: Sequence[Moment]) -> int:
    """Return the growth of the resident set from the first moment to the last third of all.

    Of the last third the median counts: where malloc keeps what was freed, single moments differ.
    After a step in it, which may be late, the lower one of the last two moments counts.
    """
    sizes = [moment.resident_bytes for moment in moments]
    end = round(statistics.median(sizes[-max(1, len(sizes) // 3) :]))
    return max(end, min(sizes[-2:])) - sizes[0]


def compared_moments(moments: Sequence[Moment]) -> tuple[Moment, ...]:
    """Return the moments whose owners are known, without those whose heap could not be read.

    Tables and sentences compare them. If no owner is known, all moments are returned.
    """
    owned = tuple(moment for moment in moments if moment.owners)
    counted = tuple(moment for moment in owned if moment.heap_bytes is not None)
    return counted or owned or tuple(moments)


def grows_after_warm_up(observation: Observation) -> bool:
    """Return whether the resident set rose with a certainty of 95 %, and had not stopped."""
    later = observation.with_heap()
    moments = later.moments_after_warm_up
    sizes = [moment.resident_bytes for moment in moments]
    if len(moments) < MIN_POINTS or _has_ended(later.moments):
        return False
    return robust_slope(later.positions(moments), sizes).low > 0


def kept_values(
    alive: Mapping[str, tuple[int, int]],
    blocks: Sequence[GrowingBlocks] = (),
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> str:
    """Return which values of earlier runs a program keeps, or copies of which; empty for none.

    Several values are listed with their sizes, the largest first. Whoever keeps an output may have
    all inputs since the start, or keep them for the same reason: beside outputs, inputs are listed
    only if they are larger, and blocks of their size came into use.

    Args:
        alive: how many values of earlier runs are alive, and how many there were, by descriptions
            such as ``output 'y'``.
        blocks: sizes of blocks of malloc that grew, most bytes first.
        sizes: the bytes of values of one run, by description, as far as they are known.
    """
    kept = [
        name
        for name, (count, earlier) in alive.items()
        if earlier >= MIN_EARLIER_VALUES and count >= MIN_KEPT_SHARE * earlier
    ]
    if kept:
        outputs = [name for name in kept if not name.startswith("input")]
        inputs = [name for name in kept if name.startswith("input")]
        output_bytes, input_bytes = (
            sum(sizes.get(name, 0) for name in names) for names in (outputs, inputs)
        )
        grown = sum(each.block_bytes * (each.blocks_per_run or 0.0) for each in blocks)
        are_larger = output_bytes < input_bytes <= grown
        named = outputs if outputs and not are_larger else inputs + outputs
        named.sort(key=lambda name: -sizes.get(name, 0))
        if len(named) == 1:
            return named[0]
        return some_of([_with_size(name, sizes) for name in named], separator=" and ")
    copied = blocks[0].content if blocks else ""
    return f"copies of {copied}" if copied else ""


def _with_size(name: str, sizes: Mapping[str, int]) -> str:
    return f"{name} ({format_rate(sizes[name])})" if name in sizes else name


def _of_memory_in_use(owners: set[GrowingOwner], observation: Observation) -> Verdict:
    """Return the verdict if memory in use of `owners` grows steadily.

    Values in arenas are outputs, or inputs that onnxruntime copied: only the caller keeps them, and
    with them other blocks, such as those of a binding.
    """
    if observation.caller_keeps_nothing:
        return "leak"
    is_kept = not owners.isdisjoint(("arena", "sessions")) or observation.kept_values != ""
    return "kept" if is_kept else "leak"


def _steady_growth(observation: Observation) -> list[tuple[GrowingOwner, Slope]]:
    """Return the owners in use that grow steadily, with their slopes."""
    found: list[tuple[GrowingOwner, Slope]] = []
    for in_use in IN_USE:
        if in_use.owner == "heap" and observation.growing_heap_bytes is not None:
            values = observation.growing_heap_bytes[observation.warm_up :]
            slope = _slope_of_values(observation, values, observation.min_heap_bytes)
        else:
            slope = _slope(observation, in_use.bytes_of, in_use.min_bytes)
        if slope is not None:
            found.append((in_use.owner, slope))
    return found


def _rises(observation: Observation, figure: Callable[[Moment], int | None]) -> bool:
    return _slope(observation, figure, min_growth=2) is not None


def _slope(
    observation: Observation, figure: Callable[[Moment], int | None], min_growth: int
) -> Slope | None:
    """Return the slope of `figure` after the warm-up; None if it does not grow steadily."""
    values = [figure(moment) for moment in observation.moments_after_warm_up]
    return _slope_of_values(observation, values, min_growth)


def _slope_of_values(
    observation: Observation, values: Sequence[int | None], min_growth: int
) -> Slope | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    positions = observation.positions(observation.moments_after_warm_up)
    return steady_slope(positions, known, min_growth)


def _largest_growth(first: Moment, last: Moment) -> GrowingOwner | None:
    """Return the owner of most of the growth between two moments; None if it is not known."""
    if not first.owners or first.heap_bytes is None:
        return None

    def growth(figure: Callable[[Moment], int | None]) -> int:
        return (figure(last) or 0) - (figure(first) or 0)

    grown: dict[GrowingOwner, int] = {
        # Arenas take regions from malloc whose pages become resident when runs first use them.
        "arena_slack": growth(
            lambda moment: moment.bytes_of("arena") - (moment.arena_used_bytes or 0)
        ),
        "allocator_retained": growth(lambda moment: moment.bytes_of("allocator_retained")),
        **{each.owner: growth(each.bytes_of) for each in IN_USE},
        # Here with the libraries that were loaded meanwhile.
        "files": growth(_resident("files")),
    }
    return max(grown, key=lambda owner: grown[owner])


def unseen_growth(observation: Observation) -> Mapping[GrowingOwner, float]:
    """Return the growth in bytes a unit below which growth of some owners is not seen.

    These are the owners of which resident pages are known only; blocks of malloc and values in
    arenas are counted to the byte. Empty if nothing was read after the warm-up.
    """
    positions = observation.positions(observation.moments_after_warm_up)
    span = positions[-1] - positions[0] if positions else 0.0
    if span <= 0:
        return {}
    return {each.owner: each.min_bytes / span for each in IN_USE if each.owner in _BY_PAGES}


def _has_ended(moments: Sequence[Moment]) -> bool:
    """Return whether the resident set grew hardly in the last third of `moments`."""
    late = moments[-1].resident_bytes - moments[-1 - len(moments) // 3].resident_bytes
    return late <= max(_SLACK_BYTES, MAX_LATE_GROWTH_SHARE * grown_bytes(moments))


def _arenas_have_ended(moments: Sequence[Moment]) -> bool:
    """Return whether no arena took memory from malloc in the last third of `moments`.

    Its slack can then grow by pages that are used for the first time only, up to its size.
    """
    sizes = [
        moment.arena_used_bytes + moment.arena_slack_bytes
        for moment in moments[-1 - len(moments) // 3 :]
        if moment.arena_used_bytes is not None and moment.arena_slack_bytes is not None
    ]
    return len(sizes) > 1 and sizes[-1] <= sizes[0]


def _grows_at_new_largest(observation: Observation) -> bool:
    """Return whether the resident set rises at runs with an input larger than all before.

    Of a program only the memory at moments is known, and whether there was such a run in between.
    """
    if observation.samples:
        readings = [
            (sample.resident_bytes, sample.run in observation.new_largest)
            for sample in observation.samples
        ]
    else:
        readings = [
            (after.resident_bytes, after.largest_input_bytes > before.largest_input_bytes)
            for before, after in pairwise((observation.moments[0], *observation.moments))
        ]
    highest, _ = readings[0]
    risen = at_new_largest = 0
    for resident_bytes, is_new_largest in readings[1:]:
        rise = max(0, resident_bytes - highest)
        highest += rise
        risen += rise
        at_new_largest += rise * is_new_largest
    return risen > 0 and at_new_largest >= MIN_NEW_LARGEST_SHARE * risen
