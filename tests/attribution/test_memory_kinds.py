"""Growth of memory by kind between two moments of one process."""

from memdiag.attribution import intervals
from memdiag.attribution.memory_kinds import KindGrowth, KindRanges, kind_growth

PAGE = 4096


def pages(*spans: tuple[int, int]) -> intervals.Ranges:
    return intervals.normal([(start * PAGE, end * PAGE) for start, end in spans])


def test_each_kind_grows_by_its_own_pages() -> None:
    before: KindRanges = {
        "in_use": pages((0, 10)),
        "library": pages((100, 104)),
        "retained": pages((10, 12)),
    }
    after: KindRanges = {
        "in_use": pages((0, 8)),
        "library": pages((100, 110)),
        "retained": pages((8, 13)),
        "file": pages((200, 201)),
    }
    assert kind_growth(before, after) == KindGrowth(
        in_use_bytes=-2 * PAGE,
        retained_bytes=3 * PAGE,
        library_bytes=6 * PAGE,
        file_bytes=PAGE,
        other_bytes=0,
    )


def test_a_block_that_is_not_recognised_any_more_is_still_in_use() -> None:
    before: KindRanges = {"in_use": pages((0, 10), (50, 60))}
    # The second block and new memory beside it, of which nothing is known.
    after: KindRanges = {"in_use": pages((0, 10)), "other": pages((48, 60))}
    growth = kind_growth(before, after)
    assert (growth.in_use_bytes, growth.other_bytes) == (0, 2 * PAGE)
