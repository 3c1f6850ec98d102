"""Who owns the memory, as tiles in tiles: owners, then weights, then their copies."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from memdiag.records.attribution import Attribution
from memdiag.reports.views import attribution as attribution_view
from memdiag.reports.views import owner_table
from memdiag.reports.views.attribution import WeightRow
from memdiag.units import format_size

_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One tile: `parent` is another one's `id`, empty for the outermost.

    `size_bytes` is what it has beside the tiles in it; `kind` is that of a copy, or an owner's.
    """

    id: str
    parent: str
    label: str
    size_bytes: int
    size: str
    kind: str
    detail: str


def build(
    attribution: Attribution, *, max_weights: int = 120, trimmed_bytes: int = 0
) -> tuple[Tile, ...]:
    """Return the tiles, each before those in it; weights beyond the largest are one tile.

    There is a tile for each row of the owner table, with the same size. `trimmed_bytes` were
    returned by ``malloc_trim`` before the X-ray was taken, and count as retained by malloc.
    """
    resident = attribution.resident_bytes + trimmed_bytes
    tiles = [_tile("all", "", "resident", 0, resident, "all", "")]
    for row in owner_table.build(attribution, trimmed_bytes=trimmed_bytes):
        if not row.size_bytes:
            continue
        inside = _weights(attribution, max_weights) if row.kind == "weights" else []
        inside = _scaled(inside, row.size_bytes)
        own = row.size_bytes - sum(tile.size_bytes for tile in inside)
        tiles.append(_tile(row.id, "all", row.label, own, row.size_bytes, row.kind, row.detail))
        tiles += inside
    return tuple(tiles)


def _scaled(tiles: Sequence[Tile], most: int) -> list[Tile]:
    """Return `tiles` with `most` bytes together: copies may overlap, and then share their bytes."""
    whole = sum(tile.size_bytes for tile in tiles)
    if whole <= most:
        return list(tiles)
    return [replace(tile, size_bytes=tile.size_bytes * most // whole) for tile in tiles]


def _weights(attribution: Attribution, max_weights: int) -> list[Tile]:
    """Return the weights and their copies in use; what is freed is in another owner's tile."""
    rows = [row for row in attribution_view.build(attribution).weights if _in_use(row)]
    tiles = []
    for index, row in enumerate(rows[:max_weights]):
        place = f"w{index}"
        title = row.titled(_LONGEST_NAME)
        tiles.append(_tile(place, "weights", title, 0, _in_use(row), "weights", row.summary))
        for number, copy in enumerate(row.copies):
            if copy.resident_bytes and not copy.is_freed:
                times = f" ×{copy.count}" if copy.count > 1 else ""
                detail = ", ".join(
                    part for part in (copy.backing, copy.state, copy.made_by) if part
                )
                label, size = copy.label + times, copy.resident_bytes
                tiles.append(
                    _tile(f"{place}c{number}", place, label, size, size, copy.kind, detail)
                )
    rest = rows[max_weights:]
    if left := sum(map(_in_use, rest)):
        detail = attribution_view.rest(rest)
        kinds = {copy.kind for row in rest for copy in row.copies if not copy.is_freed}
        kind = kinds.pop() if len(kinds) == 1 else "weights"
        tiles.append(_tile("rest", "weights", f"{len(rest):,} more", left, left, kind, detail))
    return tiles


def _in_use(row: WeightRow) -> int:
    return sum(copy.resident_bytes for copy in row.copies if not copy.is_freed)


def _tile(id: str, parent: str, label: str, own: int, whole: int, kind: str, detail: str) -> Tile:
    return Tile(
        id=id,
        parent=parent,
        label=label,
        size_bytes=own,
        size=format_size(whole),
        kind=kind,
        detail=detail,
    )
