"""The X-rays of a profile as a page shows them: who owns what, which copies, and where they lie."""

from dataclasses import dataclass
from typing import NamedTuple

from memdiag.records.attribution import Attribution
from memdiag.records.profile import Profile
from memdiag.reports.views import address_map, attribution, copy_table, treemap
from memdiag.reports.views.attribution import CopyRow, WeightRow


class _Room(NamedTuple):
    """How much of an X-ray a page has room for."""

    rows: int
    copies_bytes: int
    stretches: int
    tiles: int


_STEADY = _Room(rows=100, copies_bytes=800_000, stretches=3000, tiles=120)
_EARLIER = _Room(rows=20, copies_bytes=200_000, stretches=600, tiles=40)
"""For each moment before the steady state; the bytes are those of all such moments together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Xray:
    """One moment: `shown` are the first rows of `copies`, `strip` is None without addresses."""

    name: str
    owners: attribution.Owned
    shown: tuple[tuple[WeightRow, CopyRow], ...]
    copies: copy_table.CopyTable
    tiles: tuple[treemap.Tile, ...]
    strip: address_map.AddressMap | None


def build(profile: Profile) -> tuple[Xray, ...]:
    """Return the X-rays that were taken, that of the steady state first."""
    earlier = profile.phase_attributions
    room = _EARLIER._replace(copies_bytes=_EARLIER.copies_bytes // max(1, len(earlier)))
    trimmed = profile.allocator_retained_bytes or 0
    taken = profile.attribution
    steady = [_xray("steady", taken, _STEADY, trimmed_bytes=trimmed)] if taken else []
    return (*steady, *(_xray(f"end of {one.phase}", one.attribution, room) for one in earlier))


def of_process(taken: Attribution) -> Xray:
    """Return the X-ray of a process."""
    return _xray("now", taken, _STEADY)


def _xray(name: str, taken: Attribution, room: _Room, *, trimmed_bytes: int = 0) -> Xray:
    owners = attribution.build(taken, trimmed_bytes=trimmed_bytes)
    copies = copy_table.build(owners.weights, max_bytes=room.copies_bytes)
    rows = [(weight, copy) for weight in owners.weights for copy in weight.copies]
    return Xray(
        name=name,
        owners=owners,
        shown=tuple(rows[: min(room.rows, len(copies.rows))]),
        copies=copies,
        tiles=treemap.build(taken, max_weights=room.tiles, trimmed_bytes=trimmed_bytes),
        strip=address_map.build(taken, max_stretches=room.stretches),
    )
