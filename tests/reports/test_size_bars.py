"""Bars on one scale, in per cent of the longest."""

from memdiag.reports.page import SizeBar, size_bar_table
from memdiag.units import MIB


def test_the_longest_is_all_of_it_and_the_mapped_part_follows_the_anonymous() -> None:
    before = SizeBar(label="before", peak=200 * MIB, steady=100 * MIB, mapped=25 * MIB)
    after = SizeBar(label="after", peak=50 * MIB, steady=0, mapped=0)
    table = size_bar_table((before, after))
    lengths = [
        [(bar.css, bar.start_percent, bar.percent) for bars in row.cells[3].bars for bar in bars]
        for row in table.rows
    ]
    assert lengths == [
        [("top", 0, 100), ("end", 0, 37.5), ("mapped", 37.5, 12.5)],
        [("top", 0, 25), ("end", 0, 0), ("mapped", 0, 0)],
    ]
    peak = table.rows[0].cells[1]
    assert (peak.text, peak.title) == ("200 MiB", "209,715,200 bytes")


def test_sizes_below_zero_have_no_length() -> None:
    table = size_bar_table((SizeBar(label="x", peak=-5, steady=-3, mapped=10),))
    assert [bar.percent for bars in table.rows[0].cells[3].bars for bar in bars] == [0, 0, 0]
    assert size_bar_table(()).rows == ()
