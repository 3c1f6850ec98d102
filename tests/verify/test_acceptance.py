"""What is worth having: savings beyond the spread, time beyond doubt, and the better of two."""

import pytest

from memdiag.records.measured_change import Figures
from memdiag.units import MIB
from memdiag.verify.acceptance import (
    exchanged_memory_text,
    is_faster,
    is_worth_it,
    memory_change,
    saves_memory,
    saves_memory_or_disk,
    slowness_text,
    takes_less_memory,
    takes_less_time,
)
from memdiag.verify.latency import LatencyComparison
from memdiag.verify.latency_ratio import LatencyRatio


def taken(
    peak: float = 100,
    steady: float = 100,
    anonymous: float | None = None,
    spread: float = 0,
    steady_spread: float = 0,
    disk: float = 100,
    lowest: float | None = None,
) -> Figures:
    """Return figures given in MiB; `lowest` is that of peak and steady memory."""
    low = None if lowest is None else round(lowest * MIB)
    return Figures(
        peak_bytes=round(peak * MIB),
        peak_spread_bytes=round(spread * MIB),
        steady_bytes=round(steady * MIB),
        steady_spread_bytes=round(steady_spread * MIB),
        anonymous_bytes=round((steady if anonymous is None else anonymous) * MIB),
        file_and_shared_bytes=0,
        load_s=1.0,
        latency_s=1.0,
        disk_bytes=round(disk * MIB),
        lowest_peak_bytes=low,
        lowest_steady_bytes=low,
    )


def comparisons(*ratios: tuple[float, float, float]) -> tuple[tuple[str, LatencyComparison], ...]:
    """Return comparisons with inputs 0, 1 and so on, each of a low end, a median and a high end."""
    return tuple(
        (str(index), LatencyComparison(1.0, median, LatencyRatio(median, low, high, 15)))
        for index, (low, median, high) in enumerate(ratios)
    )


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (taken(), taken(peak=90, steady=110), "the peak falls, but the steady memory grows"),
        (taken(), taken(peak=110, steady=90), "the steady memory falls, but the peak grows"),
        (taken(), taken(peak=90, steady=100.1), ""),
        (taken(), taken(peak=99.99, steady=100.01), ""),  # chance
        (taken(), taken(peak=90, steady=90), ""),
    ],
)
def test_what_falls_while_the_other_grows(before: Figures, after: Figures, expected: str) -> None:
    assert exchanged_memory_text(before, after) == expected


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (taken(), taken(peak=90), True),
        (taken(), taken(steady=90), True),
        (taken(), taken(steady=99.5), False),
        (taken(1000, 1000), taken(1000, 995), False),
        # Of a small model less is much: a twentieth, but not what any process may take or not.
        (taken(16, 16), taken(16, 15.1), True),
        (taken(16, 16), taken(16, 15.3), False),
        (taken(4, 4), taken(4, 3.4), True),
        (taken(4, 4), taken(4, 3.6), False),
        (taken(1000, 1000), taken(1000, 985), True),
        (taken(), taken(disk=50), True),
        (taken(), taken(disk=99.5), False),
        (taken(), taken(peak=90, steady=110), False),
        (taken(), taken(disk=50, steady=110), False),
    ],
)
def test_a_saving_is_more_than_a_trifle_and_costs_nothing_elsewhere(
    before: Figures, after: Figures, expected: bool
) -> None:
    assert saves_memory_or_disk(before, after) is expected


def test_a_smaller_file_saves_no_memory() -> None:
    assert not saves_memory(taken(), taken(disk=50))
    assert saves_memory(taken(), taken(steady=90, disk=50))


@pytest.mark.parametrize(("lowest", "expected"), [(89.9, False), (90.1, True)])
def test_the_spread_does_not_matter_where_all_processes_took_less(
    lowest: float, expected: bool
) -> None:
    before = taken(spread=60, steady_spread=60, lowest=lowest)
    assert saves_memory(before, taken(88, 88, spread=2, steady_spread=2, lowest=88)) is expected


def test_a_saving_exceeds_the_spread_of_both() -> None:
    assert saves_memory(taken(), taken(peak=95))
    assert not saves_memory(taken(spread=6), taken(peak=95))
    assert not saves_memory(taken(), taken(peak=95, spread=6))
    # Peaks that scatter say nothing of a steady state that does not.
    assert saves_memory(taken(spread=6), taken(steady=95, spread=6))
    assert not saves_memory(taken(steady_spread=6), taken(steady=95))


def test_faster_is_beyond_doubt_and_with_no_inputs_slower() -> None:
    assert is_faster(comparisons((0.5, 0.6, 0.7)), ())
    assert not is_faster(comparisons((0.5, 0.8, 0.95)), ())
    assert is_faster(comparisons((0.5, 0.6, 0.7), (0.9, 1.0, 1.1)), ())
    assert not is_faster(comparisons((0.5, 0.6, 0.7), (1.0, 1.01, 1.1)), ())
    assert not is_faster((), ())


def test_time_that_was_won_before_is_not_won_again() -> None:
    before = comparisons((0.5, 0.6, 0.7))
    assert not is_faster(comparisons((0.5, 0.6, 0.7)), before)
    assert is_faster(comparisons((0.2, 0.3, 0.4)), before)


def test_time_that_costs_memory_is_not_worth_it() -> None:
    fast = comparisons((0.5, 0.6, 0.7))
    assert is_worth_it(taken(), taken(), fast, ())
    assert not is_worth_it(taken(), taken(steady=120), fast, ())
    assert is_worth_it(taken(), taken(steady=80), comparisons((0.9, 1.0, 1.1)), ())
    assert not is_worth_it(taken(), taken(), comparisons((0.9, 1.0, 1.1)), ())


def test_too_slow_says_with_which_inputs() -> None:
    found = slowness_text(comparisons((0.9, 1.0, 1.1), (1.1, 1.2, 1.3)), 1.05)
    assert found == "slower: 1.20 × (1.10–1.30) with 1"
    assert slowness_text(comparisons((0.9, 1.0, 1.1), (1.1, 1.2, 1.3)), 1.2) is None
    assert slowness_text(comparisons((0.9, 1.1, 1.3)), 1.05) is None


def test_anonymous_memory_counts_first_and_ties_are_told() -> None:
    assert takes_less_memory(taken(anonymous=50), taken(steady=80, anonymous=70)) is True
    assert takes_less_memory(taken(anonymous=70), taken(anonymous=50)) is False
    assert takes_less_memory(taken(steady=80, anonymous=50), taken(anonymous=50)) is True
    assert takes_less_memory(taken(peak=120), taken()) is False
    assert takes_less_memory(taken(), taken(peak=100.9)) is None
    assert takes_less_memory(taken(), taken(steady=90, steady_spread=11)) is None


def test_less_time_is_told_where_intervals_do_not_meet() -> None:
    slow, quick, wide = (1.1, 1.2, 1.3), (0.9, 1.0, 1.05), (0.8, 1.0, 1.2)
    assert takes_less_time(comparisons(quick), comparisons(slow)) is True
    assert takes_less_time(comparisons(slow), comparisons(quick)) is False
    assert takes_less_time(comparisons(wide), comparisons(slow)) is None
    assert takes_less_time(comparisons(quick, slow), comparisons(slow, quick)) is None
    assert takes_less_time((), comparisons(slow)) is None


def test_the_change_in_words() -> None:
    assert memory_change(taken(), taken(50, 25)) == "peak 100 MiB → 50 MiB, steady 100 MiB → 25 MiB"
