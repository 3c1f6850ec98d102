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
        parent: the `id` of the tile that contains it; empty for the outermost tile.
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
    id: str, parent: str, label: str, own_bytes: int, total_bytes: int, kind: str, detail: str = ""
) -> TreemapTile:
    """Return a tile of `total_bytes`, of which `own_bytes` belong to none of the tiles inside."""
    return TreemapTile(
        id=id,
        parent=parent,
        label=label,
        size_bytes=own_bytes,
        size=format_size(total_bytes),
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
    resident_bytes = attribution.resident_bytes + trimmed_bytes
    tiles = [make_tile("all", "", "resident", 0, resident_bytes, "all")]
    for row in owner_rows(attribution, trimmed_bytes=trimmed_bytes):
        if not row.size_bytes:
            continue
        inner_tiles = _weight_tiles(attribution, max_weights) if row.kind == "weights" else []
        inner_tiles = _scaled_tiles(inner_tiles, row.size_bytes)
        own_bytes = row.size_bytes - sum(tile.size_bytes for tile in inner_tiles)
        tiles.append(
            make_tile(row.id, "all", row.label, own_bytes, row.size_bytes, row.kind, row.parts)
        )
        tiles += inner_tiles
    return tuple(tiles)


def _scaled_tiles(tiles: Sequence[TreemapTile], limit: int) -> list[TreemapTile]:
    """Return `tiles`, scaled down to `limit` bytes together, as overlapping copies share bytes."""
    total_bytes = sum(tile.size_bytes for tile in tiles)
    if total_bytes <= limit:
        return list(tiles)
    return [replace(tile, size_bytes=tile.size_bytes * limit // total_bytes) for tile in tiles]


def _weight_tiles(attribution: Attribution, max_weights: int) -> list[TreemapTile]:
    """Return the weights and their copies in use. Freed copies belong to other owners."""
    rows = [row for row in weight_rows(attribution) if row.in_use_bytes]
    tiles = []
    for index, row in enumerate(rows[:max_weights]):
        weight_id, title = f"w{index}", row.shortened_title(_MAX_TILE_NAME)
        tiles.append(
            make_tile(weight_id, "weights", title, 0, row.in_use_bytes, "weights", row.summary)
        )
        for number, copy in enumerate(row.copies):
            if copy.resident_bytes and not copy.is_freed:
                count_text = f" ×{copy.count}" if copy.count > 1 else ""
                size, label = copy.resident_bytes, copy.label + count_text
                detail = ", ".join(filter(None, (copy.backing, copy.state, copy.made_by)))
                tiles.append(
                    make_tile(
                        f"{weight_id}c{number}", weight_id, label, size, size, copy.kind, detail
                    )
                )
    remaining_rows = rows[max_weights:]
    if remaining_bytes := sum(row.in_use_bytes for row in remaining_rows):
        kinds = {copy.kind for row in remaining_rows for copy in row.copies if not copy.is_freed}
        kind = kinds.pop() if len(kinds) == 1 else "weights"
        label = f"{len(remaining_rows):,} more"
        tiles.append(
            make_tile(
                "rest",
                "weights",
                label,
                remaining_bytes,
                remaining_bytes,
                kind,
                rest_summary(remaining_rows),
            )
        )
    return tiles


CopyVariant = tuple[str, str, str, str, str]
"""Kind, label, parameters, backing and verified part, which are equal for many copies."""

CopyColumns = tuple[int, int, int, int, str, int, str, str, str]
"""Index of the weight and of the variant, number of copies, bytes and size, resident bytes and
resident size, maker, and addresses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyList:
    """The copies that a page can filter and sort, with weights and variants stored once.

    Attributes:
        weights: title, summary, and the other names of each weight.
        rest: a sentence on the copies that are left out; empty for none.
    """

    weights: tuple[tuple[str, str, str], ...]
    variants: tuple[CopyVariant, ...]
    rows: tuple[CopyColumns, ...]
    rest: str


def copy_list(weights: Sequence[WeightRow], *, max_bytes: int) -> CopyList:
    """Return the copies of as many `weights` as fit into about `max_bytes`, at least of one."""
    names: list[tuple[str, str, str]] = []
    variants: dict[CopyVariant, int] = {}
    rows: list[CopyColumns] = []
    remaining_bytes = max_bytes
    for weight in weights:
        name = (weight.title, weight.summary, " ".join(weight.names[1:]))
        copy_rows = [
            _copy_columns(copy, len(names), variants.setdefault(_copy_variant(copy), len(variants)))
            for copy in weight.copies
        ]
        remaining_bytes -= _text_length(name) + sum(
            _text_length(row) + _COPY_ROW_BYTES for row in copy_rows
        )
        if remaining_bytes < 0 and names:
            break
        names.append(name)
        rows += copy_rows
    omitted = rest_summary(weights[len(names) :])
    return CopyList(
        weights=tuple(names),
        variants=tuple(variants),
        rows=tuple(rows),
        rest=f"{omitted}, which are neither in this table nor found by its filter"
        if omitted
        else "",
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
