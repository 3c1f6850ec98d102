"""An X-ray as data for the page: tiles of the treemap, and the copies as columns.

Plotly draws the tiles; ``templates/owners.js`` filters the copies.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from memdiag.records.attribution import Attribution
from memdiag.reports.xray.memory_owners import owner_rows
from memdiag.reports.xray.weight_copies import CopyRow, WeightRow, rest_summary, weight_rows
from memdiag.units import format_size

_MAX_TILE_NAME = 60
_COPY_ROW_BYTES = 60  # of a row's numbers as JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class TreemapTile:
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
) -> TreemapTile:
    """Return a tile of `whole` bytes, `own` of which belong to none of the tiles inside."""
    return TreemapTile(
        id=id,
        parent=parent,
        label=label,
        size_bytes=own,
        size=format_size(whole),
        kind=kind,
        detail=detail,
    )


def xray_tiles(
    attribution: Attribution, *, max_weights: int = 120, trimmed_bytes: int = 0
) -> tuple[TreemapTile, ...]:
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
        inside = _scaled_tiles(inside, row.size_bytes)
        own = row.size_bytes - sum(tile.size_bytes for tile in inside)
        tiles.append(make_tile(row.id, "all", row.label, own, row.size_bytes, row.kind, row.parts))
        tiles += inside
    return tuple(tiles)


def _scaled_tiles(tiles: Sequence[TreemapTile], limit: int) -> list[TreemapTile]:
    """Return `tiles` scaled down to `limit` bytes in all: overlapping copies share their bytes."""
    whole = sum(tile.size_bytes for tile in tiles)
    if whole <= limit:
        return list(tiles)
    return [replace(tile, size_bytes=tile.size_bytes * limit // whole) for tile in tiles]


def _weight_tiles(attribution: Attribution, max_weights: int) -> list[TreemapTile]:
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


CopyVariant = tuple[str, str, str, str, str]
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
    variants: tuple[CopyVariant, ...]
    rows: tuple[CopyColumns, ...]
    rest: str


def copy_list(weights: Sequence[WeightRow], *, max_bytes: int) -> CopyList:
    """Return the copies of as many `weights` as take about `max_bytes`, and of at least one."""
    names: list[tuple[str, str, str]] = []
    variants: dict[CopyVariant, int] = {}
    rows: list[CopyColumns] = []
    left = max_bytes
    for weight in weights:
        name = (weight.title, weight.summary, " ".join(weight.names[1:]))
        added = [
            _copy_columns(copy, len(names), variants.setdefault(_copy_variant(copy), len(variants)))
            for copy in weight.copies
        ]
        left -= _text_length(name) + sum(_text_length(row) + _COPY_ROW_BYTES for row in added)
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


def _copy_variant(copy: CopyRow) -> CopyVariant:
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


def tile_columns(tiles: Sequence[TreemapTile]) -> dict[str, list[Any]]:
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


def xray_chart_data(tiles: Sequence[TreemapTile], copies: CopyList) -> dict[str, Any]:
    """Return the data of the charts of one X-ray, as columns."""
    return {
        "tiles": tile_columns(tiles),
        "copies": {"weights": copies.weights, "variants": copies.variants, "rows": copies.rows},
    }
