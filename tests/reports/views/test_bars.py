"""Bars on one scale, in per cent of the longest."""

from memdiag.reports.views.bars import bars
from memdiag.units import MIB


def test_the_longest_is_all_of_it_and_the_mapped_part_follows_the_anonymous() -> None:
    before, after = bars((("before", 200 * MIB, 100 * MIB, 25 * MIB), ("after", 50 * MIB, 0, 0)))
    assert (before.peak_percent, before.anonymous_percent, before.mapped_percent) == (
        100,
        37.5,
        12.5,
    )
    assert (after.peak_percent, after.anonymous_percent, after.mapped_percent) == (25, 0, 0)
    assert (before.peak, before.peak_exact) == ("200 MiB", "209,715,200 bytes")


def test_nothing_and_less_than_nothing_have_no_length() -> None:
    (one,) = bars((("x", -5, -3, 10),))
    assert (one.peak_percent, one.anonymous_percent, one.mapped_percent) == (0, 0, 0)
    assert bars(()) == ()
