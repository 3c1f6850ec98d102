"""Who owns the memory, as tiles in tiles: owners, then weights, then their copies."""

from collections.abc import Iterator
from dataclasses import dataclass

from memdiag.records.attribution import Attribution
from memdiag.reporters.views import attribution as attribution_view
from memdiag.reporters.views import owner_table
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


def build(attribution: Attribution, *, max_weights: int = 120) -> tuple[Tile, ...]:
    """Return the tiles, each before those in it; weights beyond the largest are one tile."""
    tiles = [_tile("all", "", "resident", 0, attribution.resident_bytes, "all", "")]
    for row in owner_table.build(attribution):
        if not row.size_bytes:
            continue
        own = 0 if row.kind == "weights" and attribution.copies else row.size_bytes
        tiles.append(_tile(row.id, "all", row.label, own, row.size_bytes, row.kind, row.detail))
        if not own:
            tiles += _weights(attribution, max_weights)
    return tuple(tiles)


def _weights(attribution: Attribution, max_weights: int) -> Iterator[Tile]:
    rows = attribution_view.build(attribution).weights
    for index, row in enumerate(rows[:max_weights]):
        place = f"w{index}"
        yield _tile(
            place,
            "weights",
            row.titled(_LONGEST_NAME),
            0,
            row.resident_bytes,
            "weights",
            row.summary,
        )
        for number, copy in enumerate(row.copies):
            if copy.resident_bytes:
                times = f" ×{copy.count}" if copy.count > 1 else ""
                detail = ", ".join(
                    part for part in (copy.backing, copy.state, copy.made_by) if part
                )
                size = copy.resident_bytes
                yield _tile(
                    f"{place}c{number}", place, copy.label + times, size, size, copy.kind, detail
                )
    rest = rows[max_weights:]
    if left := sum(row.resident_bytes for row in rest):
        detail = attribution_view.rest(rest)
        kinds = {copy.kind for row in rest for copy in row.copies}
        kind = kinds.pop() if len(kinds) == 1 else "weights"
        yield _tile("rest", "weights", f"{len(rest):,} more", left, left, kind, detail)


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
