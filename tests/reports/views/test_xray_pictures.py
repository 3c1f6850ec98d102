"""The tiles and the strip: every byte of the X-ray is in them, under its own kind."""

import msgspec
import pytest

from memdiag.records.attribution import AddressRange
from memdiag.reports.views import address_map, owner_table, treemap
from tests.reports import attributions, tied_xray
from tests.reports.profiles import MIB


def test_the_tiles_hold_every_byte() -> None:
    record = tied_xray.attribution()
    tiles = treemap.build(record)
    assert sum(tile.size_bytes for tile in tiles) == record.resident_bytes
    ids = {tile.id for tile in tiles}
    assert len(ids) == len(tiles)
    assert {tile.parent for tile in tiles} <= ids | {""}


@pytest.mark.parametrize("trimmed", [0, 46 * MIB])
def test_each_row_of_the_owner_table_is_a_tile_of_its_size(trimmed: int) -> None:
    """What malloc_trim returned counts as retained by malloc; overlapping copies count once."""
    shared = attributions.copy("packed_fp32", 64 * MIB, "other")
    freed = attributions.copy("original", 4 * MIB, "gone", live=False)
    record = attributions.attribution(*attributions.SHARED)
    record = msgspec.structs.replace(record, copies=(*record.copies, shared, freed))
    tiles = treemap.build(record, trimmed_bytes=trimmed)
    sizes: dict[str, int] = {}
    for tile in reversed(tiles):
        sizes[tile.id] = sizes.get(tile.id, 0) + tile.size_bytes
        sizes[tile.parent] = sizes.get(tile.parent, 0) + sizes[tile.id]
    rows = owner_table.build(record, trimmed_bytes=trimmed)
    assert {row.id: row.size_bytes for row in rows} == {row.id: sizes[row.id] for row in rows}
    assert sizes["all"] == record.resident_bytes + trimmed
    assert ("allocator_retained" in sizes) == bool(trimmed)
    assert not [tile for tile in tiles if tile.label == "gone"]


def test_weights_beyond_the_largest_are_one_tile() -> None:
    record = tied_xray.attribution(100)
    few, all_of_them = treemap.build(record, max_weights=3), treemap.build(record, max_weights=200)
    assert sum(tile.size_bytes for tile in few) == sum(tile.size_bytes for tile in all_of_them)
    assert [(tile.label, tile.kind) for tile in few if tile.id == "rest"] == [
        ("98 more", "original")
    ]
    all_kinds = treemap.build(record, max_weights=0)
    assert [tile.kind for tile in all_kinds if tile.id == "rest"] == ["weights"]


def test_the_strip_tells_what_lies_where_and_what_nothing_uses() -> None:
    record = tied_xray.attribution()
    slack = next(i for i, owner in enumerate(record.owners) if owner.name == "slack")
    freed = next(i for i, copy in enumerate(record.copies) if copy.live is False)
    ranges = (
        AddressRange(start=0x1000, bytes=3 * MIB, resident_bytes=2 * MIB, owner=0, copy=freed),
        AddressRange(start=0x900000, bytes=MIB, resident_bytes=MIB, owner=slack, copy=None),
        AddressRange(start=0xA00000, bytes=4 * MIB, resident_bytes=4 * MIB, owner=1, copy=1),
        AddressRange(start=0xF00000, bytes=MIB, resident_bytes=0, owner=0, copy=None),
    )
    # The figures of so small a strip need not be those of the owners.
    made = msgspec.structs.replace(record)
    msgspec.structs.force_setattr(made, "ranges", ranges)
    shown = address_map.build(made)
    assert shown is not None
    assert shown.resident_bytes == 7 * MIB
    assert [(one.kind, one.idle) for one in shown.stretches] == [
        ("original", True),
        ("arena", True),
        ("transposed", False),
    ]
    assert shown.stretches[0].sentence == (
        "bias: original, freed, 2.0 MiB of 3.0 MiB resident at 0x1000"
    )
    assert [(one.label, one.size) for one in shown.legend] == [
        ("transposed", "4.0 MiB"),
        ("original, freed", "2.0 MiB"),
        ("arena slack", "1.0 MiB"),
    ]
    largest = address_map.build(made, max_stretches=1)
    assert largest is not None
    assert [one.kind for one in largest.stretches] == ["transposed"]
    assert largest.remarks[0] == "The 2 smallest stretches are left out here: 3.0 MiB together."
    assert shown.remarks == (
        "2.0 MiB in 1 of 4 stretches lie apart, with gaps or others between, and are drawn as one.",
    )
    assert largest.legend == shown.legend


def test_weights_whose_copies_are_not_told_apart_are_counted() -> None:
    record = tied_xray.attribution()
    ranges = (AddressRange(start=0x1000, bytes=MIB, resident_bytes=MIB, owner=0, copy=None),)
    msgspec.structs.force_setattr(record, "ranges", ranges)
    shown = address_map.build(record)
    assert shown is not None
    assert shown.remarks == ("1.0 MiB of weights are in copies too small to be named here.",)


def test_a_record_without_ranges_has_no_strip() -> None:
    assert address_map.build(tied_xray.attribution()) is None
