"""The verdict on the growth of a process: leak, kept values, warm-up, or memory that malloc keeps.

The resident set alone cannot distinguish these, and their remedies are opposite. The owner of the
growth does: blocks and chunks *in use* that become more with every run are a leak or values that
the program keeps; free chunks and freed blocks are not. `growth_judgement` applies these rules in
order:

== ===================================================================== ======================
 # condition                                                             verdict
== ===================================================================== ======================
 1 memory in use of an owner (`OWNERS_IN_USE`) grows steadily            ``leak``, or ``kept``
   (`steady_slope`; not only where inputs do: `_grows_only_with_inputs`) (`kept_values`)
 2 more sessions at each of the moments, by `MIN_MORE_SESSIONS`          ``kept``
 3 fewer than `MIN_MOMENTS` moments                                      ``undecided``
 4 growth below `MIN_RESIDENT_GROWTH_BYTES`, or                          ``flat``
   `MIN_RESIDENT_GROWTH_SHARE`
 5 most of the growth is freed blocks that malloc retains                ``retained``
 6 most is arena slack, and rises with new largest inputs                ``high_water``
 7 the growth has ended (`MAX_LATE_GROWTH_SHARE`)                        ``plateau``
 8 most is memory patterns                                               ``patterns``
 9 none of these                                                         ``undecided``
== ===================================================================== ======================

Moments are counted after the warm-up. Rule 1 sees single bytes, the others the resident set.
The slope is the Theil-Sen estimator (`memdiag.growth.slope`); the heap is judged by the sizes of
its blocks (`memdiag.growth.growing_sizes`, with the limits of glibc's caches). The thresholds come
from the cases of ``benchmarks/leaks.py``.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

from memdiag.growth.observation import (
    NOTHING_KEPT,
    OWNERS_IN_USE,
    GrowthObservation,
    KeptValues,
    resident_bytes_of,
)
from memdiag.growth.slope import MIN_POINTS, robust_slope
from memdiag.growth.steady_growth import MIN_MOMENTS, steady_slope
from memdiag.records.growth import (
    GrowingBlocks,
    GrowingOwner,
    Moment,
    Slope,
    Verdict,
)
from memdiag.units import KIB, MAX_LISTED_NAMES, MIB, format_rate

MIN_RESIDENT_GROWTH_BYTES = MIB
"""Growth of the resident set below this, or below `MIN_RESIDENT_GROWTH_SHARE`, is called flat."""

MIN_RESIDENT_GROWTH_SHARE = 0.01

MIN_NEW_LARGEST_SHARE = 0.8
"""Share of the growth that must occur at runs with an input larger than all before."""

MIN_RATE_BETWEEN_INPUTS = 0.5
"""A leak also grows without larger inputs: at this share of its whole rate, or faster."""

MAX_LATE_GROWTH_SHARE = 0.1
"""Growth has ended if the last third of the moments has at most this share of it."""

MIN_EARLIER_VALUES = 10
MIN_ALIVE_SHARE = 0.5
"""A program keeps its values if this share of the values of earlier runs is alive, and there were
at least `MIN_EARLIER_VALUES`."""

MIN_KEPT_SHARE = 0.5
"""Values are named as what is kept if they are this share of the growth of the memory in use."""

OUTPUT_ARRAY_BYTES = 512
"""The bytes that an output takes besides its values: an array of one number took 256 bytes in the
arena, 256 in the heap, and 145 in Python objects."""

MIN_MORE_SESSIONS = 10
"""A program keeps its sessions if this many came into being over a few moments, more at each."""

_OWNERS_BY_PAGES: frozenset[GrowingOwner] = frozenset(("python", "other"))
"""The owners whose growth is known by resident pages only."""

_SLACK_BYTES = 64 * KIB  # of a resident set at rest, between two readings


@dataclass(frozen=True, slots=True)
class GrowthJudgement:
    """The verdict.

    Attributes:
        verdict: the verdict.
        owner: the owner of the growth; None if nothing grew, or too little was read to decide.
        slope: the slope of the owner; for sessions the slope of the resident set, which includes
            their free memory.
        others: other owners whose memory in use also grows steadily, with their slopes.
        kept: the values that the program keeps, if they are most of the growth.
    """

    verdict: Verdict
    owner: GrowingOwner | None = None
    slope: Slope | None = None
    others: tuple[tuple[GrowingOwner, Slope], ...] = ()
    kept: KeptValues = NOTHING_KEPT


def growth_judgement(observation: GrowthObservation) -> GrowthJudgement:
    """Return the verdict on `observation`, by the moments at which the heap was read.

    The numbers of the rules are in the docstring of this module.
    """
    observation = observation.with_heap()
    owner_slopes = _steady_growth(observation)
    if owner_slopes:
        return _memory_in_use_judgement(owner_slopes, observation)  # 1
    few_judgement = _few_moments_judgement(observation)
    if few_judgement.verdict == "kept" or len(observation.moments_after_warm_up) < MIN_MOMENTS:
        return few_judgement  # 2, 3
    return _resident_set_judgement(observation)  # 4 to 9


def _memory_in_use_judgement(
    owner_slopes: Sequence[tuple[GrowingOwner, Slope]], observation: GrowthObservation
) -> GrowthJudgement:
    """Return ``leak`` or ``kept``, with the owner in `owner_slopes` that grows fastest."""
    kept = _mostly_kept_values(observation, total_slope([slope for _, slope in owner_slopes]))
    (owner, slope), *others = sorted(
        owner_slopes, key=lambda owner_slope: -owner_slope[1].bytes_per_unit
    )
    if any(_has_steady_rise(observation, count) for count in _SESSION_COUNTS):
        owner, slope, others = "sessions", _resident_slope(observation), []
    owners = {owner, *(grown_owner for grown_owner, _ in owner_slopes)}
    verdict: Verdict = "leak"
    # Values in arenas are outputs, or inputs that onnxruntime copied. Only the caller keeps them,
    # together with other blocks, such as the blocks of a binding.
    is_of_caller = kept.names or not owners.isdisjoint(("arena", "sessions"))
    if is_of_caller and not observation.caller_keeps_nothing:
        verdict = "kept"
    return GrowthJudgement(verdict, owner, slope, tuple(others), kept)


def _mostly_kept_values(observation: GrowthObservation, total: Slope) -> KeptValues:
    """Return the values that the program keeps; none if they are not most of `total`."""
    kept = observation.kept
    first, *_, last = observation.moments_after_warm_up
    runs = last.run - first.run
    if kept.bytes_per_run is None or not runs:
        return kept
    unit_count = last.position(observation.unit) - first.position(observation.unit)
    is_most = kept.bytes_per_run * runs >= MIN_KEPT_SHARE * total.bytes_per_unit * unit_count
    return kept if is_most else NOTHING_KEPT


def total_slope(slopes: Sequence[Slope]) -> Slope:
    """Return the sum of slopes of different owners, with the widest interval that follows."""
    return Slope(
        bytes_per_unit=sum(slope.bytes_per_unit for slope in slopes),
        low=sum(slope.low for slope in slopes),
        high=sum(slope.high for slope in slopes),
    )


def _resident_set_judgement(observation: GrowthObservation) -> GrowthJudgement:
    """Return the verdict by the growth of the resident set and its largest part."""
    moments = observation.moments
    if grown_bytes(moments) < max(
        MIN_RESIDENT_GROWTH_BYTES, MIN_RESIDENT_GROWTH_SHARE * moments[0].resident_bytes
    ):
        return GrowthJudgement("flat")
    largest, _ = largest_growth(moments[0], moments[-1])
    slope = robust_slope(
        observation.positions(moments), [moment.resident_bytes for moment in moments]
    )
    if largest == "allocator_retained":
        return GrowthJudgement("retained", largest, slope)
    if largest == "arena_slack" and _grows_at_new_largest(observation):
        return GrowthJudgement("high_water", largest, slope)
    if _has_ended(moments) or (largest == "arena_slack" and _arenas_have_ended(moments)):
        return GrowthJudgement("plateau", largest, slope)
    return GrowthJudgement("patterns" if largest == "patterns" else "undecided", largest, slope)


_SESSION_COUNTS: tuple[Callable[[Moment], int | None], ...] = (
    lambda moment: moment.sessions,
    lambda moment: moment.arenas,
)
"""The counts that rise if sessions are created and not released."""


def _few_moments_judgement(observation: GrowthObservation) -> GrowthJudgement:
    """Return ``kept`` if there are more sessions at each moment, else ``undecided``.

    A heap of many sessions takes seconds to read, so a short program has few moments.
    """
    moments = observation.moments_after_warm_up
    counts = [moment.sessions or 0 for moment in moments]
    is_rising = all(before < after for before, after in pairwise(counts))
    if len(moments) < MIN_POINTS or not is_rising or counts[-1] - counts[0] < MIN_MORE_SESSIONS:
        return GrowthJudgement("undecided")
    return GrowthJudgement("kept", "sessions", _resident_slope(observation))


def _resident_slope(observation: GrowthObservation) -> Slope:
    """Return the slope of the resident set after the warm-up."""
    moments = observation.moments_after_warm_up
    sizes = [moment.resident_bytes for moment in moments]
    return robust_slope(observation.positions(moments), sizes)


def grown_bytes(moments: Sequence[Moment]) -> int:
    """Return the growth of the resident set in bytes, from the first moment to the last third.

    The median of the last third counts: if malloc keeps freed memory, single moments differ. If
    there is a step within the last third, the lower one of the last two moments counts.
    """
    sizes = [moment.resident_bytes for moment in moments]
    end = round(statistics.median(sizes[-max(1, len(sizes) // 3) :]))
    return max(end, min(sizes[-2:])) - sizes[0]


def compared_moments(moments: Sequence[Moment]) -> tuple[Moment, ...]:
    """Return the moments whose owners are known, without those whose heap could not be read.

    Tables and sentences compare them. If no owner is known, all moments are returned.
    """
    moments_with_owners = tuple(moment for moment in moments if moment.owners)
    moments_with_heap = tuple(
        moment for moment in moments_with_owners if moment.heap_bytes is not None
    )
    return moments_with_heap or moments_with_owners or tuple(moments)


def grows_after_warm_up(observation: GrowthObservation) -> bool:
    """Return whether the resident set rose with a certainty of 95 %, and was still rising."""
    observation_with_heap = observation.with_heap()
    moments = observation_with_heap.moments_after_warm_up
    sizes = [moment.resident_bytes for moment in moments]
    if len(moments) < MIN_POINTS or _has_ended(observation_with_heap.moments):
        return False
    return robust_slope(observation_with_heap.positions(moments), sizes).low > 0


def kept_values(
    alive: Mapping[str, tuple[int, int]],
    blocks: Sequence[GrowingBlocks] = (),
    sizes: Mapping[str, float] = MappingProxyType({}),
) -> KeptValues:
    """Return the values that a program keeps, or copies of them.

    A few values are listed with their sizes, the largest first; of many values only the largest is
    listed. A program may have had all inputs from the start, so inputs are listed only if blocks of
    their size came into use, and next to outputs only if they are larger than these.

    Args:
        alive: how many values of earlier runs are alive, and how many there were, by descriptions
            such as ``output 'y'``.
        blocks: sizes of malloc's blocks whose number grew, most bytes first.
        sizes: the mean bytes of values of a run, by description; values of unknown size are
            missing.
    """
    kept_names = [
        name
        for name, (count, total) in alive.items()
        if total >= MIN_EARLIER_VALUES and count >= MIN_ALIVE_SHARE * total
    ]
    outputs = [name for name in kept_names if not name.startswith("input")]
    inputs = [name for name in kept_names if name.startswith("input")]
    output_bytes, input_bytes = (
        sum(sizes.get(name, 0) for name in names) for names in (outputs, inputs)
    )
    # Inputs that were all there before the first run are alive, too, but have no new blocks.
    largest = max((sizes.get(name, 0) for name in inputs), default=0)
    has_new_blocks = any(block.block_bytes >= largest for block in blocks)
    growth_per_run = sum(block.block_bytes * (block.blocks_per_run or 0.0) for block in blocks)
    has_larger_inputs = has_new_blocks and output_bytes < input_bytes <= growth_per_run
    has_inputs = has_larger_inputs if outputs else has_new_blocks
    named_values = [*inputs, *outputs] if has_inputs else outputs
    if named_values:
        named_values.sort(key=lambda name: -sizes.get(name, 0))
        share_by_name = {name: count / total for name, (count, total) in alive.items() if total}
        are_known = all(name in sizes for name in named_values)
        bytes_per_run = None
        if are_known:
            overhead = dict.fromkeys(outputs, OUTPUT_ARRAY_BYTES)
            bytes_per_run = sum(
                (sizes[name] + overhead.get(name, 0)) * share_by_name[name] for name in named_values
            )
        return KeptValues(_kept_names_text(named_values, sizes), bytes_per_run)
    copied_content = blocks[0].content if blocks else ""
    if not copied_content:
        return NOTHING_KEPT
    bytes_per_run = sum(
        block.block_bytes * (block.blocks_per_run or 0.0)
        for block in blocks
        if block.content == copied_content
    )
    return KeptValues(f"copies of {copied_content}", bytes_per_run)


def _kept_names_text(names: Sequence[str], sizes: Mapping[str, float]) -> str:
    if len(names) == 1:
        return names[0]
    if len(names) <= MAX_LISTED_NAMES:
        return " and ".join(_name_with_rate(name, sizes) for name in names)
    noun = "outputs" if all(name.startswith("output") for name in names) else "values"
    return f"{_name_with_rate(names[0], sizes)} and at least {len(names) - 1} other {noun}"


def _name_with_rate(name: str, sizes: Mapping[str, float]) -> str:
    return f"{name} ({format_rate(sizes[name])})" if name in sizes else name


def _steady_growth(observation: GrowthObservation) -> list[tuple[GrowingOwner, Slope]]:
    """Return the owners in use that grow steadily, with their slopes."""
    growing_owners: list[tuple[GrowingOwner, Slope]] = []
    for owner_in_use in OWNERS_IN_USE:
        if owner_in_use.owner == "heap" and observation.growing_heap_bytes is not None:
            values = observation.growing_heap_bytes[observation.warm_up :]
            slope = _slope_of_values(observation, values, observation.min_heap_bytes)
        else:
            slope = _figure_slope(observation, owner_in_use.bytes_of, owner_in_use.min_bytes)
        if slope is not None:
            growing_owners.append((owner_in_use.owner, slope))
    return growing_owners


def _has_steady_rise(
    observation: GrowthObservation, figure: Callable[[Moment], int | None]
) -> bool:
    return _figure_slope(observation, figure, min_growth=2) is not None


def _figure_slope(
    observation: GrowthObservation, figure: Callable[[Moment], int | None], min_growth: int
) -> Slope | None:
    """Return the slope of `figure` after the warm-up; None if `figure` does not grow steadily."""
    values = [figure(moment) for moment in observation.moments_after_warm_up]
    return _slope_of_values(observation, values, min_growth)


def _slope_of_values(
    observation: GrowthObservation, values: Sequence[int | None], min_growth: int
) -> Slope | None:
    known_values = [value for value in values if value is not None]
    if len(known_values) < len(values) or _grows_only_with_inputs(observation, known_values):
        return None
    positions = observation.positions(observation.moments_after_warm_up)
    return steady_slope(positions, known_values, min_growth)


def _grows_only_with_inputs(observation: GrowthObservation, values: Sequence[int]) -> bool:
    """Return whether `values` grow at new largest inputs, and hardly between them.

    Kernels keep buffers of the size of the largest input, and a program keeps the output of its
    last run. If inputs become larger again and again, this looks like steady growth.

    Args:
        observation: the moments.
        values: a figure at each of the moments after the warm-up.
    """
    moments = observation.moments_after_warm_up
    positions = observation.positions(moments)
    growth_between = units_between = 0.0
    for index, (before, after) in enumerate(pairwise(moments)):
        if after.largest_input_bytes == before.largest_input_bytes:
            growth_between += values[index + 1] - values[index]
            units_between += positions[index + 1] - positions[index]
    if (
        len(moments) < MIN_MOMENTS
        or units_between == 0
        or units_between == positions[-1] - positions[0]
    ):
        return False
    usual_rate = (values[-1] - values[0]) / (positions[-1] - positions[0])
    return growth_between / units_between < MIN_RATE_BETWEEN_INPUTS * usual_rate


def largest_growth(first: Moment, last: Moment) -> tuple[GrowingOwner | None, int]:
    """Return the owner that grew most between two moments, and by how many bytes.

    None and 0 if the owners are not known.
    """
    if not first.owners or first.heap_bytes is None:
        return None, 0

    def growth_of(figure: Callable[[Moment], int | None]) -> int:
        return (figure(last) or 0) - (figure(first) or 0)

    growth_by_owner: dict[GrowingOwner, int] = {
        # Arenas take regions from malloc whose pages become resident when runs first use them.
        "arena_slack": growth_of(
            lambda moment: moment.bytes_of("arena") - (moment.arena_used_bytes or 0)
        ),
        "allocator_retained": growth_of(lambda moment: moment.bytes_of("allocator_retained")),
        **{owner.owner: growth_of(owner.bytes_of) for owner in OWNERS_IN_USE},
        # Resident pages, which include libraries that were loaded since.
        "files": growth_of(resident_bytes_of("files")),
        "patterns": growth_of(lambda moment: moment.pattern_bytes),
    }
    return max(growth_by_owner.items(), key=lambda item: item[1])


def unseen_growth(observation: GrowthObservation) -> Mapping[GrowingOwner, float]:
    """Return the growth in bytes per unit below which the growth of some owners is not seen.

    These are the owners whose memory is known by resident pages only. Blocks of malloc and values
    in arenas are counted to the byte. Empty if nothing was read after the warm-up.
    """
    positions = observation.positions(observation.moments_after_warm_up)
    span = positions[-1] - positions[0] if positions else 0.0
    if span <= 0:
        return {}
    return {
        owner.owner: owner.min_bytes / span
        for owner in OWNERS_IN_USE
        if owner.owner in _OWNERS_BY_PAGES
    }


def _has_ended(moments: Sequence[Moment]) -> bool:
    """Return whether the resident set hardly grew in the last third of `moments`."""
    late_growth = moments[-1].resident_bytes - moments[-1 - len(moments) // 3].resident_bytes
    return late_growth <= max(_SLACK_BYTES, MAX_LATE_GROWTH_SHARE * grown_bytes(moments))


def _arenas_have_ended(moments: Sequence[Moment]) -> bool:
    """Return whether no arena took memory from malloc in the last third of `moments`.

    The slack of an arena can then grow only by pages that are used for the first time, up to its
    size.
    """
    sizes = [
        moment.arena_used_bytes + moment.arena_slack_bytes
        for moment in moments[-1 - len(moments) // 3 :]
        if moment.arena_used_bytes is not None and moment.arena_slack_bytes is not None
    ]
    return len(sizes) > 1 and sizes[-1] <= sizes[0]


def _grows_at_new_largest(observation: GrowthObservation) -> bool:
    """Return whether the resident set rises at runs with an input larger than all before.

    For a program only the memory at moments is known, and whether there was such a run in between.
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
    total_rise = rise_at_new_largest = 0
    for resident_bytes, is_new_largest in readings[1:]:
        rise = max(0, resident_bytes - highest)
        highest += rise
        total_rise += rise
        rise_at_new_largest += rise * is_new_largest
    return total_rise > 0 and rise_at_new_largest >= MIN_NEW_LARGEST_SHARE * total_rise
