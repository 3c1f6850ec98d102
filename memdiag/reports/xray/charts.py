"""An X-ray as data for the page: tiles of the treemap, the address map, and the copies as columns.

Plotly draws the tiles; ``templates/owners.js`` filters the copies and draws the address map.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from memdiag.records.attribution import ARENA_SLACK, AddressRange, Attribution
from memdiag.reports.text import plain, shortened
from memdiag.reports.xray.owners import LABELS, owner_rows
from memdiag.reports.xray.weights import CopyRow, WeightRow, rest_summary, weight_rows
from memdiag.units import format_size

_MAX_TILE_NAME = 60
_MAX_RANGE_NAME = 80
_ROW_BYTES = 60  # of a row's numbers as JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One tile of the treemap.

    Attributes:
        parent: the `id` of the tile around it, empty for the outermost.
        size_bytes: the bytes that belong to none of the tiles inside.
        size: the size of the tile with all tiles inside, as text.
        kind: the kind of a copy or of an owner, which has a colour.
    """

    id: str
    parent: str
    label: str
    size_bytes: int
    size: str
    kind: str
    detail: str


def make_tile(
    id: str, parent: str, label: str, own: int, whole: int, kind: str, detail: str = ""
) -> Tile:
    """Return a tile of `whole` bytes, `own` of which belong to none of the tiles inside."""
    return Tile(
        id=id,
        parent=parent,
        label=label,
        size_bytes=own,
        size=format_size(whole),
        kind=kind,
        detail=detail,
    )


def tiles(
    attribution: Attribution, *, max_weights: int = 120, trimmed_bytes: int = 0
) -> tuple[Tile, ...]:
    """Return the tiles: owners, the largest weights in them, and the copies of each weight.

    Each tile comes before the tiles inside it. There is a tile for each row of the owner table,
    with the same size. `trimmed_bytes` were returned by ``malloc_trim`` before the X-ray was taken,
    and count as retained by malloc.
    """
    resident = attribution.resident_bytes + trimmed_bytes
    tiles = [make_tile("all", "", "resident", 0, resident, "all")]
    for row in owner_rows(attribution, trimmed_bytes=trimmed_bytes):
        if not row.size_bytes:
            continue
        inside = _weight_tiles(attribution, max_weights) if row.kind == "weights" else []
        inside = _limited(inside, row.size_bytes)
        own = row.size_bytes - sum(tile.size_bytes for tile in inside)
        tiles.append(make_tile(row.id, "all", row.label, own, row.size_bytes, row.kind, row.parts))
        tiles += inside
    return tuple(tiles)


def _limited(tiles: Sequence[Tile], limit: int) -> list[Tile]:
    """Return `tiles` scaled down to `limit` bytes in all: overlapping copies share their bytes."""
    whole = sum(tile.size_bytes for tile in tiles)
    if whole <= limit:
        return list(tiles)
    return [replace(tile, size_bytes=tile.size_bytes * limit // whole) for tile in tiles]


def _weight_tiles(attribution: Attribution, max_weights: int) -> list[Tile]:
    """Return the weights and their copies in use; freed copies belong to other owners."""
    rows = [row for row in weight_rows(attribution) if row.in_use_bytes]
    tiles = []
    for index, row in enumerate(rows[:max_weights]):
        id, title = f"w{index}", row.titled(_MAX_TILE_NAME)
        tiles.append(make_tile(id, "weights", title, 0, row.in_use_bytes, "weights", row.summary))
        for number, copy in enumerate(row.copies):
            if copy.resident_bytes and not copy.is_freed:
                times = f" ×{copy.count}" if copy.count > 1 else ""
                size, label = copy.resident_bytes, copy.label + times
                detail = ", ".join(filter(None, (copy.backing, copy.state, copy.made_by)))
                tiles.append(make_tile(f"{id}c{number}", id, label, size, size, copy.kind, detail))
    rest = rows[max_weights:]
    if left := sum(row.in_use_bytes for row in rest):
        kinds = {copy.kind for row in rest for copy in row.copies if not copy.is_freed}
        kind = kinds.pop() if len(kinds) == 1 else "weights"
        label = f"{len(rest):,} more"
        tiles.append(make_tile("rest", "weights", label, left, left, kind, rest_summary(rest)))
    return tiles


@dataclass(frozen=True, slots=True, kw_only=True)
class MapRange:
    """One range of the address map.

    Attributes:
        kind: the kind of a copy or of an owner, which has a colour.
        is_idle: whether nothing uses the range: freed copies, arena slack, blocks that malloc
            retains.
    """

    start: int
    resident_bytes: int
    kind: str
    is_idle: bool
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MapLegend:
    """One entry in the legend of the address map.

    Attributes:
        kind: the kind of copy or owner, which has the colour.
        is_idle: whether the memory is freed, or free space of an arena.
        size: the sum of the ranges, with the unit.
    """

    kind: str
    label: str
    is_idle: bool
    size: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressMap:
    """The resident ranges in the order of their addresses, and the legend, the largest first.

    Attributes:
        remarks: sentences about ranges that are left out or joined.
    """

    ranges: tuple[MapRange, ...]
    legend: tuple[MapLegend, ...]
    remarks: tuple[str, ...]
    resident_bytes: int


def address_map(attribution: Attribution, *, max_ranges: int = 3000) -> AddressMap | None:
    """Return the address map of `attribution`; None if the record has no addresses.

    The largest `max_ranges` ranges are drawn. The legend counts all ranges.
    """
    ranges = [each for each in attribution.ranges if each.resident_bytes]
    if not ranges:
        return None
    sizes: dict[tuple[str, str, bool], int] = {}
    for each in ranges:
        key = _range_kind(attribution, each)
        sizes[key] = sizes.get(key, 0) + each.resident_bytes
    ordered = sorted(ranges, key=lambda each: -each.resident_bytes)
    listed, left_out = ordered[:max_ranges], ordered[max_ranges:]
    return AddressMap(
        ranges=tuple(
            _map_range(attribution, each) for each in sorted(listed, key=lambda each: each.start)
        ),
        legend=tuple(
            MapLegend(kind=kind, label=label, is_idle=is_idle, size=format_size(size))
            for (kind, label, is_idle), size in sorted(sizes.items(), key=lambda item: -item[1])
        ),
        remarks=tuple(_map_remarks(attribution, left_out)),
        resident_bytes=_resident(ranges),
    )


def _map_remarks(attribution: Attribution, left_out: Sequence[AddressRange]) -> Iterator[str]:
    if left_out:
        ranges = "range is" if len(left_out) == 1 else "ranges are"
        size = format_size(_resident(left_out))
        yield f"The {len(left_out):,} smallest {ranges} left out here: {size} together."
    wide = [each for each in attribution.ranges if 0 < each.resident_bytes < each.bytes]
    if wide:
        yield (
            f"{format_size(_resident(wide))} in {len(wide):,} of {len(attribution.ranges):,}"
            " ranges have gaps or other owners between their parts, and are drawn as one."
        )
    small = [
        each
        for each in attribution.ranges
        if each.copy is None and attribution.owners[each.owner].kind == "weights"
    ]
    if size_bytes := _resident(small):
        yield f"{format_size(size_bytes)} of weights are in copies too small to be named here."


def _resident(ranges: Sequence[AddressRange]) -> int:
    return sum(each.resident_bytes for each in ranges)


def _range_kind(attribution: Attribution, each: AddressRange) -> tuple[str, str, bool]:
    """Return (kind, label, whether nothing uses the memory) of an address range."""
    owner = attribution.owners[each.owner]
    if each.copy is not None:
        copy = attribution.copies[each.copy]
        is_freed = copy.in_use is False
        return copy.kind, f"{copy.kind}{', freed' if is_freed else ''}", is_freed
    if owner.kind == "weights":
        return owner.name, plain(owner.name), False
    label = LABELS[owner.kind]
    if owner.kind == "arena":
        return owner.kind, f"{label} {plain(owner.name)}", owner.name == ARENA_SLACK
    return owner.kind, label, owner.kind == "allocator_retained"


def _map_range(attribution: Attribution, each: AddressRange) -> MapRange:
    kind, label, is_idle = _range_kind(attribution, each)
    name = label
    if each.copy is not None:
        weights = attribution.copies[each.copy].weights
        weight = shortened(plain(weights[0]), _MAX_RANGE_NAME) if weights else "(no name)"
        name = f"{weight}: {label}"
    extent = f" of {format_size(each.bytes)}" if each.resident_bytes < each.bytes else ""
    return MapRange(
        start=each.start,
        resident_bytes=each.resident_bytes,
        kind=kind,
        is_idle=is_idle,
        sentence=f"{name}, {format_size(each.resident_bytes)}{extent} resident at {each.start:#x}",
    )


Variant = tuple[str, str, str, str, str]
"""Kind, label, parameters, backing and verified part: equal for many copies."""

CopyColumns = tuple[int, int, int, int, str, int, str, str, str]
"""Index of the weight and of the variant, number of copies, bytes and size, resident bytes and
resident size, maker, and addresses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyList:
    """The copies that a page can filter and sort, with weights and variants stored once.

    Attributes:
        weights: title, summary, and the other names of each weight.
        rest: a sentence about the copies that are left out; empty for none.
    """

    weights: tuple[tuple[str, str, str], ...]
    variants: tuple[Variant, ...]
    rows: tuple[CopyColumns, ...]
    rest: str


def copy_list(weights: Sequence[WeightRow], *, max_bytes: int) -> CopyList:
    """Return the copies of as many `weights` as take about `max_bytes`, and of at least one."""
    names: list[tuple[str, str, str]] = []
    variants: dict[Variant, int] = {}
    rows: list[CopyColumns] = []
    left = max_bytes
    for weight in weights:
        name = (weight.title, weight.summary, " ".join(weight.names[1:]))
        added = [
            _copy_columns(copy, len(names), variants.setdefault(_variant(copy), len(variants)))
            for copy in weight.copies
        ]
        left -= _text_length(name) + sum(_text_length(row) + _ROW_BYTES for row in added)
        if left < 0 and names:
            break
        names.append(name)
        rows += added
    rest = rest_summary(weights[len(names) :])
    return CopyList(
        weights=tuple(names),
        variants=tuple(variants),
        rows=tuple(rows),
        rest=f"{rest}, which are neither in this table nor found by its filter" if rest else "",
    )


def _variant(copy: CopyRow) -> Variant:
    return copy.kind, copy.label, copy.parameters, copy.backing_and_state, copy.verified


def _copy_columns(copy: CopyRow, weight: int, variant: int) -> CopyColumns:
    return (
        weight,
        variant,
        copy.count,
        copy.size_bytes,
        copy.size,
        copy.resident_bytes,
        copy.resident,
        copy.made_by,
        copy.address_text,
    )


def _text_length(cells: Iterable[str | int]) -> int:
    return sum(len(cell) for cell in cells if isinstance(cell, str))


def tile_columns(tiles: Sequence[Tile]) -> dict[str, list[Any]]:
    """Return the fields of `tiles` as lists of equal length, for the page's chart."""
    return {
        "id": [tile.id for tile in tiles],
        "parent": [tile.parent for tile in tiles],
        "label": [tile.label for tile in tiles],
        "bytes": [tile.size_bytes for tile in tiles],
        "size": [tile.size for tile in tiles],
        "kind": [tile.kind for tile in tiles],
        "detail": [tile.detail for tile in tiles],
    }


def chart_data(
    tiles: Sequence[Tile], addresses: AddressMap | None, copies: CopyList
) -> dict[str, Any]:
    """Return the data of the charts of one X-ray, as columns."""
    return {
        "tiles": tile_columns(tiles),
        "ranges": [
            (each.resident_bytes, each.kind, each.is_idle, each.sentence, each.start)
            for each in (addresses.ranges if addresses else ())
        ],
        "copies": {"weights": copies.weights, "variants": copies.variants, "rows": copies.rows},
    }
