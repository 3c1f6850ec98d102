"""Charts of an X-ray: every byte is in the tiles, every copy in a row."""

import pytest

from memdiag.records.attribution import Attribution
from memdiag.records.profile import PhaseAttribution
from memdiag.reports.profile.charts import page_xrays
from memdiag.reports.xray.charts import copy_list, xray_tiles
from memdiag.reports.xray.memory_owners import owner_rows
from memdiag.reports.xray.weight_copies import weight_rows
from tests.reports import attributions, profiles, tied_xray
from tests.reports.profiles import MIB
from tests.reports.rendering import replaced

MANY = tied_xray.attribution(100)


def renamed(record: Attribution, names: str, *, count: int = 1) -> Attribution:
    """Return `record` whose copies have `count` names each, formatted with two numbers."""
    copies = (
        replaced(copy, weights=tuple(names.format(place, i) for i in range(count)))
        for place, copy in enumerate(record.copies)
    )
    return replaced(record, copies=tuple(copies))


def test_the_tiles_hold_every_byte() -> None:
    record = tied_xray.attribution()
    tiles = xray_tiles(record)
    assert sum(tile.size_bytes for tile in tiles) == record.resident_bytes
    ids = {tile.id for tile in tiles}
    assert len(ids) == len(tiles)
    assert {tile.parent for tile in tiles} <= ids | {""}


@pytest.mark.parametrize("trimmed", [0, 46 * MIB])
def test_each_row_of_the_owner_table_is_a_tile_of_its_size(trimmed: int) -> None:
    """What malloc_trim returned counts as retained by malloc; overlapping copies count once."""
    shared = attributions.copy("packed_fp32", 64 * MIB, "other")
    freed = attributions.copy("original", 4 * MIB, "gone", in_use=False)
    record = attributions.attribution(*attributions.SHARED)
    record = replaced(record, copies=(*record.copies, shared, freed))
    tiles = xray_tiles(record, trimmed_bytes=trimmed)
    sizes: dict[str, int] = {}
    for tile in reversed(tiles):
        sizes[tile.id] = sizes.get(tile.id, 0) + tile.size_bytes
        sizes[tile.parent] = sizes.get(tile.parent, 0) + sizes[tile.id]
    rows = owner_rows(record, trimmed_bytes=trimmed)
    assert {row.id: row.size_bytes for row in rows} == {row.id: sizes[row.id] for row in rows}
    assert sizes["all"] == record.resident_bytes + trimmed
    assert ("allocator_retained" in sizes) == bool(trimmed)
    assert not [tile for tile in tiles if tile.label == "gone"]


@pytest.mark.parametrize(
    ("most", "rest"), [(200, []), (3, [("98 more", "original")]), (0, [("101 more", "weights")])]
)
def test_weights_beyond_the_largest_are_one_tile(most: int, rest: list[tuple[str, str]]) -> None:
    tiles = xray_tiles(MANY, max_weights=most)
    assert sum(tile.size_bytes for tile in tiles) == MANY.resident_bytes
    assert [(tile.label, tile.kind) for tile in tiles if tile.id == "rest"] == rest


def test_the_steady_state_comes_first_and_has_more_room() -> None:
    earlier = PhaseAttribution(phase="parse", attribution=MANY)
    profile = replaced(profiles.tied_if(), attribution=MANY, phase_attributions=(earlier,))
    steady, parse = page_xrays(profile)
    assert [steady.moment, parse.moment] == ["steady", "end of parse"]
    assert len(steady.rows.rows) > len(parse.rows.rows) > 0
    assert len(steady.charts["tiles"]["id"]) > len(parse.charts["tiles"]["id"])
    assert len(steady.copies.rows) == 104
    assert page_xrays(profiles.tied_if()) == ()


def test_no_more_rows_are_shown_than_are_listed() -> None:
    named = renamed(tied_xray.attribution(50), "{}.{}" + "x" * 99, count=400)
    (steady,) = page_xrays(replaced(profiles.tied_if(), attribution=named))
    assert len(steady.rows.rows) == len(steady.copies.rows) < len(named.copies)
    assert steady.copies.rest


def test_every_copy_is_a_row_with_its_weight_and_what_it_shares_with_others() -> None:
    weights = weight_rows(MANY)
    table = copy_list(weights, max_bytes=100_000)
    assert table.rest == ""
    assert len(table.weights) == len(weights) == 102
    assert len(table.rows) == 104  # the tied weight has three
    titles = [table.weights[row[0]][0] for row in table.rows]
    assert titles[:3] == ["model.shared.weight +1 more"] * 3
    kinds = {table.variants[row[1]][0] for row in table.rows[:3]}
    assert kinds == {"original", "transposed", "packed"}
    assert len(table.variants) == 5  # of the tied weight, freed, and mapped from the file
    assert "lm_head.weight" in table.weights[0][2]  # each name finds it


def test_what_there_is_no_room_for_is_counted() -> None:
    table = copy_list(weight_rows(MANY), max_bytes=0)
    assert (len(table.weights), len(table.rows)) == (1, 3)
    assert table.rest.startswith("101 weights more: 101 copies, 102 MiB, which are neither")
    long = copy_list(weight_rows(renamed(MANY, "{}/" + "x" * 150)), max_bytes=5000)
    short = copy_list(weight_rows(MANY), max_bytes=5000)
    assert 5 < len(long.weights) < len(short.weights)
