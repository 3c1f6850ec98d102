import msgspec

from memdiag.budgets.figures import MAX_BASELINE_COPIES, copy_totals, largest_repeated, new_since
from memdiag.records.baseline import CopyTotal
from tests.reports import tied_xray


def row(weight: str, kind: str = "original", count: int = 1, size: int = 100) -> CopyTotal:
    return msgspec.convert(
        {"weight": weight, "kind": kind, "count": count, "bytes": size, "made_by": None}, CopyTotal
    )


def test_live_copies_are_held_the_largest_first() -> None:
    attribution = tied_xray.with_attribution().attribution
    assert attribution is not None
    rows = copy_totals(attribution)
    assert {each.kind for each in rows} == {"original", "transposed", "packed"}
    assert [each.bytes for each in rows] == sorted((each.bytes for each in rows), reverse=True)


def test_freed_small_and_absent_copies_are_not_held() -> None:
    attribution = tied_xray.with_attribution().attribution
    assert attribution is not None
    for change in ({"in_use": False}, {"resident_bytes": 0}):
        copies = tuple(msgspec.structs.replace(copy, **change) for copy in attribution.copies)
        gone = msgspec.structs.replace(attribution, copies=copies)
        assert copy_totals(gone) == ()


def test_the_weight_with_the_most_bytes_in_several_copies_is_named() -> None:
    rows = (row("a", size=500), row("b", size=200), row("b", "packed", size=200), row("c"))
    assert largest_repeated(rows) == rows[1:3]
    assert largest_repeated(rows[:1]) == ()
    assert largest_repeated((row("a", count=2),)) == (row("a", count=2),)


def test_copies_that_a_baseline_had_not_are_new() -> None:
    before = (row("a"), row("b", count=1))
    now = (row("a"), row("b", count=2), row("a", "packed"))
    assert new_since(before, now) == now[1:]
    assert new_since(now, before) == ()


def test_below_what_a_full_baseline_kept_nothing_is_called_new() -> None:
    before = tuple(row(f"w{index}", size=100 + index) for index in range(MAX_BASELINE_COPIES))
    assert new_since(before, (row("small", size=99),)) == ()
    assert new_since(before, (row("large", size=101),)) == (row("large", size=101),)
    assert new_since(before[1:], (row("small", size=99),)) == (row("small", size=99),)
