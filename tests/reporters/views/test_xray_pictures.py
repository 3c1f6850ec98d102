"""The tiles and the strip: every byte of the X-ray is in them, under its own kind."""

import msgspec

from memdiag.records.attribution import AddressRange
from memdiag.reporters.views import address_map, treemap
from tests.reporters import tied_xray
from tests.reporters.profiles import MIB


def test_the_tiles_hold_every_byte() -> None:
    record = tied_xray.attribution()
    tiles = treemap.build(record)
    owned = sum(owner.bytes for owner in record.owners if owner.kind != "weights")
    copied = sum(copy.resident_bytes for copy in record.copies)
    assert sum(tile.size_bytes for tile in tiles) == owned + copied
    ids = {tile.id for tile in tiles}
    assert len(ids) == len(tiles)
    assert {tile.parent for tile in tiles} <= ids | {""}


def test_weights_beyond_the_largest_are_one_tile() -> None:
    record = tied_xray.attribution(100)
    few, all_of_them = treemap.build(record, max_weights=3), treemap.build(record, max_weights=200)
    assert sum(tile.size_bytes for tile in few) == sum(tile.size_bytes for tile in all_of_them)
    assert [(tile.label, tile.kind) for tile in few if tile.id == "rest"] == [
        ("99 more", "original")
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
