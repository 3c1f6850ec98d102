"""Charts of an X-ray: every byte is in the tiles, every copy in a row."""

import msgspec
import pytest

from memdiag.records.profile import PhaseAttribution
from memdiag.reports.profile.charts import page_xrays
from memdiag.reports.xray.charts import copy_list
from memdiag.reports.xray.charts import xray_tiles as make_tiles
from memdiag.reports.xray.memory_owners import owner_rows
from memdiag.reports.xray.weight_copies import weight_rows
from tests.reports import attributions, profiles, tied_xray
from tests.reports.profiles import MIB


def test_the_tiles_hold_every_byte() -> None:
    record = tied_xray.attribution()
    tiles = make_tiles(record)
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
    record = msgspec.structs.replace(record, copies=(*record.copies, shared, freed))
    tiles = make_tiles(record, trimmed_bytes=trimmed)
    sizes: dict[str, int] = {}
    for tile in reversed(tiles):
        sizes[tile.id] = sizes.get(tile.id, 0) + tile.size_bytes
        sizes[tile.parent] = sizes.get(tile.parent, 0) + sizes[tile.id]
    rows = owner_rows(record, trimmed_bytes=trimmed)
    assert {row.id: row.size_bytes for row in rows} == {row.id: sizes[row.id] for row in rows}
    assert sizes["all"] == record.resident_bytes + trimmed
    assert ("allocator_retained" in sizes) == bool(trimmed)
    assert not [tile for tile in tiles if tile.label == "gone"]


def test_weights_beyond_the_largest_are_one_tile() -> None:
    record = tied_xray.attribution(100)
    few, all_of_them = make_tiles(record, max_weights=3), make_tiles(record, max_weights=200)
    assert sum(tile.size_bytes for tile in few) == sum(tile.size_bytes for tile in all_of_them)
    assert [(tile.label, tile.kind) for tile in few if tile.id == "rest"] == [
        ("98 more", "original")
    ]
    all_kinds = make_tiles(record, max_weights=0)
    assert [tile.kind for tile in all_kinds if tile.id == "rest"] == ["weights"]


def test_a_profile_without_an_xray_has_none() -> None:
    assert page_xrays(profiles.tied_if()) == ()


def test_the_steady_state_comes_first_and_has_more_room() -> None:
    record = tied_xray.attribution(100)
    earlier = PhaseAttribution(phase="parse", attribution=record)
    profile = msgspec.structs.replace(
        profiles.tied_if(), attribution=record, phase_attributions=(earlier,)
    )
    steady, parse = page_xrays(profile)
    assert [steady.moment, parse.moment] == ["steady", "end of parse"]
    assert len(steady.rows.rows) > len(parse.rows.rows) > 0
    assert len(steady.charts["tiles"]["id"]) > len(parse.charts["tiles"]["id"])
    assert len(steady.copies.rows) == 104


def test_no_more_rows_are_shown_than_are_listed() -> None:
    record = tied_xray.attribution(50)
    named = tuple(
        msgspec.structs.replace(copy, weights=tuple(f"{place}.{i}" + "x" * 99 for i in range(400)))
        for place, copy in enumerate(record.copies)
    )
    record = msgspec.structs.replace(record, copies=named)
    (steady,) = page_xrays(msgspec.structs.replace(profiles.tied_if(), attribution=record))
    assert len(steady.rows.rows) == len(steady.copies.rows) < len(named)
    assert steady.copies.rest


def test_every_copy_is_a_row_with_its_weight_and_what_it_shares_with_others() -> None:
    weights = weight_rows(tied_xray.attribution(100))
    table = copy_list(weights, max_bytes=100_000)
    assert table.rest == ""
    assert len(table.weights) == len(weights) == 102
    assert len(table.rows) == 104  # the tied weight has three
    titles = [table.weights[row[0]][0] for row in table.rows]
    assert titles[:3] == ["model.shared.weight +1 more"] * 3
    assert {table.variants[row[1]][0] for row in table.rows[:3]} == {
        "original", "transposed", "packed",
    }  # fmt: skip
    assert len(table.variants) == 5  # of the tied weight, freed, and mapped from the file


def test_a_weight_is_found_by_every_name_that_it_has() -> None:
    (first, *_) = copy_list(weight_rows(tied_xray.attribution()), max_bytes=10_000).weights
    assert "lm_head.weight" in first[2]


def test_what_there_is_no_room_for_is_counted() -> None:
    weights = weight_rows(tied_xray.attribution(100))
    table = copy_list(weights, max_bytes=0)
    assert len(table.weights) == 1
    assert len(table.rows) == 3
    assert table.rest.startswith("101 weights more: 101 copies, 102 MiB, which are neither")


def test_long_names_take_the_room_that_they_take() -> None:
    record = tied_xray.attribution(100)
    named = [
        msgspec.structs.replace(copy, weights=(f"{place}/" + "x" * 150,))
        for place, copy in enumerate(record.copies)
    ]
    long = weight_rows(msgspec.structs.replace(record, copies=tuple(named)))
    short = weight_rows(record)
    listed = [len(copy_list(each, max_bytes=5000).weights) for each in (long, short)]
    assert 5 < listed[0] < listed[1]
