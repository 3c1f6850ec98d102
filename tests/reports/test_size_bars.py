"""Bars on one scale, in per cent of the longest."""

from memdiag.reports.page import SizeBar, size_bar_cells
from memdiag.units import MIB


def test_the_longest_is_all_of_it_and_the_mapped_part_follows_the_anonymous() -> None:
    before = SizeBar(label="before", peak=200 * MIB, steady=100 * MIB, mapped=25 * MIB)
    after = SizeBar(label="after", peak=50 * MIB, steady=0, mapped=0)
    cells = size_bar_cells((before, after))
    lengths = [
        [(bar.css, bar.start_percent, bar.percent) for bars in cell.bars for bar in bars]
        for cell in cells
    ]
    assert lengths == [
        [("top", 0, 100), ("end", 0, 37.5), ("mapped", 37.5, 12.5)],
        [("top", 0, 25), ("end", 0, 0), ("mapped", 0, 0)],
    ]


def test_sizes_below_zero_have_no_length() -> None:
    (cell,) = size_bar_cells((SizeBar(label="x", peak=-5, steady=-3, mapped=10),))
    assert [bar.percent for bars in cell.bars for bar in bars] == [0, 0, 0]
    assert size_bar_cells(()) == ()
