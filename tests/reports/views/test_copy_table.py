"""The columns of copies: what is listed can be found, and what is not is counted."""

import msgspec

from memdiag.reports.views import attribution, copy_table
from tests.reports import tied_xray


def test_every_copy_is_a_row_with_its_weight_and_what_it_shares_with_others() -> None:
    weights = attribution.build(tied_xray.attribution(100)).weights
    table = copy_table.build(weights, max_bytes=100_000)
    assert table.unlisted == ""
    assert len(table.weights) == len(weights) == 102
    assert len(table.rows) == 104  # the tied weight has three
    titles = [table.weights[row[0]][0] for row in table.rows]
    assert titles[:3] == ["model.shared.weight +1 more"] * 3
    assert {table.variants[row[1]][0] for row in table.rows[:3]} == {
        "original", "transposed", "packed",
    }  # fmt: skip
    assert len(table.variants) == 5  # of the tied weight, freed, and mapped from the file


def test_a_weight_is_found_by_every_name_that_it_has() -> None:
    (first, *_) = copy_table.build(
        attribution.build(tied_xray.attribution()).weights, max_bytes=10_000
    ).weights
    assert "lm_head.weight" in first[2]


def test_what_there_is_no_room_for_is_counted() -> None:
    weights = attribution.build(tied_xray.attribution(100)).weights
    table = copy_table.build(weights, max_bytes=0)
    assert len(table.weights) == 1
    assert len(table.rows) == 3
    assert table.unlisted.startswith("101 weights more: 101 copies, 102 MiB, which neither")


def test_long_names_take_the_room_that_they_take() -> None:
    record = tied_xray.attribution(100)
    named = [
        msgspec.structs.replace(copy, weights=(f"{place}/" + "x" * 150,))
        for place, copy in enumerate(record.copies)
    ]
    long = attribution.build(msgspec.structs.replace(record, copies=tuple(named))).weights
    short = attribution.build(record).weights
    listed = [len(copy_table.build(each, max_bytes=5000).weights) for each in (long, short)]
    assert 5 < listed[0] < listed[1]
