"""The owners of the memory at the moments: the layers of the charts, and the table."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import sub

from memdiag.growth.growth_sentences import MIN_PATTERN_BYTES, OWNER_LABELS
from memdiag.growth.verdict import compared_moments
from memdiag.records.attribution import OwnerKind
from memdiag.records.growth import GROWING_OWNERS, GrowingOwner, Growth, Moment, kinds_of
from memdiag.reports.table import Cell, Column, Row, Table
from memdiag.reports.xray.memory_owners import OWNER_KIND_LABELS
from memdiag.units import format_duration, format_rate, format_size

_OWNER_ORDER: tuple[OwnerKind, ...] = tuple(OWNER_KIND_LABELS)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerSeries:
    """One owner at the moments whose owners are known.

    Attributes:
        kind: the kind of owner, which has a colour.
        growing: the owner in the words of the verdict.
        is_idle: whether nothing uses the memory: slack of arenas, and freed blocks.
        resident_bytes: the resident bytes at each moment.
        bytes: the sizes by which growth is judged. For blocks of malloc and values in arenas they
            are the sizes, resident or not, for other owners the resident bytes.
    """

    kind: OwnerKind
    label: str
    growing: GrowingOwner
    is_idle: bool
    resident_bytes: tuple[int, ...]
    bytes: tuple[int, ...]

    def growth_bytes(self, since: int) -> int:
        """Return the growth from the moment at index `since` to the last one."""
        return self.bytes[-1] - self.bytes[since]


def moment_position(growth: Growth, moment: Moment) -> float:
    """Return the time of `moment`: the number of runs, or seconds if runs are not known."""
    return moment.position(growth.unit)


def warm_up_position(growth: Growth) -> float:
    """Return the position of the end of the warm-up."""
    return growth.warm_up_s if growth.unit == "second" else growth.warm_up_runs


def attributed_moments(growth: Growth) -> tuple[Moment, ...]:
    """Return the moments whose owners are known, without those whose heap could not be read.

    The verdict depends on these moments. If no heap could be read, all are returned.
    """
    moments = compared_moments(growth.moments)
    return moments if any(moment.owners for moment in moments) else ()


def warm_up_index(growth: Growth, moments: Sequence[Moment]) -> int:
    """Return the index of the first of `moments` after the warm-up, or of the last one."""
    warm_up_end = warm_up_position(growth)
    later_indices = (
        index
        for index, moment in enumerate(moments)
        if moment_position(growth, moment) >= warm_up_end
    )
    return next(later_indices, len(moments) - 1)


def has_later_reading(growth: Growth) -> bool:
    """Return whether owners were read after the warm-up, so that they can be compared."""
    moments = attributed_moments(growth)
    return len(moments) > 1 and warm_up_index(growth, moments) < len(moments) - 1


def owner_series(growth: Growth) -> tuple[OwnerSeries, ...]:
    """Return each owner at the attributed moments, in a fixed order, without empty owners.

    The sum of their resident bytes is the resident set.
    """
    moments = attributed_moments(growth)
    series: list[OwnerSeries] = []
    for kind in _OWNER_ORDER:
        resident_bytes = tuple(moment.bytes_of(kind) for moment in moments)
        if kind == "arena":
            series += _arena_series(moments, resident_bytes)
            continue
        sizes = (
            _complete_readings([moment.heap_bytes for moment in moments])
            if kind == "other_heap"
            else None
        )
        patterns = _complete_readings([moment.pattern_bytes for moment in moments])
        if sizes and patterns and max(patterns) >= MIN_PATTERN_BYTES:
            resident_patterns = tuple(map(min, patterns, resident_bytes))
            resident_bytes = tuple(map(sub, resident_bytes, resident_patterns))
            series.append(
                OwnerSeries(
                    kind=kind,
                    label=OWNER_LABELS["patterns"],
                    growing="patterns",
                    is_idle=False,
                    resident_bytes=resident_patterns,
                    bytes=patterns,
                )
            )
        series.append(
            OwnerSeries(
                kind=kind,
                label=_growing_owner_label(kind),
                growing=GROWING_OWNERS[kind],
                is_idle=kind == "allocator_retained",
                resident_bytes=resident_bytes,
                bytes=sizes or resident_bytes,
            )
        )
    return tuple(owner for owner in series if any(owner.bytes) or any(owner.resident_bytes))


def _growing_owner_label(kind: OwnerKind) -> str:
    """Return the verdict's label of `kind`, or the X-ray's label if verdicts do not name it."""
    owner = GROWING_OWNERS[kind]
    is_named = kind == "other_heap" or kinds_of(owner) == (kind,)
    return OWNER_LABELS[owner] if is_named else OWNER_KIND_LABELS[kind]


def _arena_series(moments: Sequence[Moment], resident: tuple[int, ...]) -> tuple[OwnerSeries, ...]:
    """Return the values and the slack of arenas; as one owner if the chunks are not known."""
    used_bytes = _complete_readings([moment.arena_used_bytes for moment in moments])
    if used_bytes is None:
        return (
            OwnerSeries(
                kind="arena",
                label=OWNER_KIND_LABELS["arena"],
                growing="arena",
                is_idle=False,
                resident_bytes=resident,
                bytes=resident,
            ),
        )
    resident_used = tuple(min(sizes) for sizes in zip(used_bytes, resident, strict=True))
    slack = tuple(whole - part for whole, part in zip(resident, resident_used, strict=True))
    return (
        OwnerSeries(
            kind="arena",
            label=OWNER_LABELS["arena"],
            growing="arena",
            is_idle=False,
            resident_bytes=resident_used,
            bytes=used_bytes,
        ),
        OwnerSeries(
            kind="arena",
            label=OWNER_LABELS["arena_slack"],
            growing="arena_slack",
            is_idle=True,
            resident_bytes=slack,
            bytes=slack,
        ),
    )


def _complete_readings(values: Sequence[int | None]) -> tuple[int, ...] | None:
    known_values = tuple(value for value in values if value is not None)
    return known_values if known_values and len(known_values) == len(values) else None


def judged_series(growth: Growth, series: Sequence[OwnerSeries]) -> OwnerSeries | None:
    """Return the owner whose slope decides on a leak or kept values; None for other verdicts."""
    if not growth.is_leak_or_kept or growth.owner is None:
        return None
    # Sessions consist of blocks and of values in arenas.
    owners = ("heap", "arena") if growth.owner == "sessions" else (growth.owner,)
    since = warm_up_index(growth, attributed_moments(growth))
    candidates = [owner for owner in series if owner.growing in owners]
    return max(candidates, key=lambda owner: owner.growth_bytes(since), default=None)


def growth_owner_table(growth: Growth) -> Table:
    """Return the owners at the first moment, after the warm-up and at the end, and their growth."""
    series = owner_series(growth)
    moments = attributed_moments(growth) if series else growth.moments
    since = warm_up_index(growth, moments)
    resident_bytes = tuple(moment.resident_bytes for moment in moments)
    span = moment_position(growth, moments[-1]) - moment_position(growth, moments[since])
    judged_owner = judged_series(growth, series)
    ordered_owners = sorted(series, key=lambda owner: -owner.bytes[-1])
    rows = [_owner_growth_row(Cell("resident set"), resident_bytes, since, span)]
    for owner in ordered_owners:
        cell = Cell(owner.label, color=f"var(--{owner.kind.replace('_', '-')})")
        is_judged = owner is judged_owner or (
            judged_owner is None and owner.growing == growth.owner
        )
        rows.append(_owner_growth_row(cell, owner.bytes, since, span, is_strong=is_judged, level=1))
    headings = ("start", "warm-up", "end", "growth", f"a {growth.unit}")
    return Table(
        columns=(
            Column("owner"),
            *(Column(heading, "right", css=_heading_css(heading)) for heading in headings),
        ),
        rows=tuple(rows),
        caption=_owner_moments_caption(growth, moments, since),
    )


def _heading_css(heading: str) -> str:
    return {"start": "less", "warm-up": "less", "growth": "strong"}.get(heading, "")


def _owner_growth_row(
    name: Cell,
    sizes: Sequence[int],
    since: int,
    span: float,
    *,
    is_strong: bool = False,
    level: int = 0,
) -> Row:
    growth_bytes = sizes[-1] - sizes[since]
    # A rate below half a byte is shown as no rate.
    rate = round(growth_bytes / span) if span > 0 else 0
    return Row(
        name,
        *(_owner_size_cell(sizes[index]) for index in (0, since, -1)),
        Cell(
            format_size(growth_bytes, signed=True) if growth_bytes else "0",
            title=f"{growth_bytes:+,} bytes",
        ),
        format_rate(rate, signed=True) if rate else "",
        is_strong=is_strong,
        level=level,
    )


def _owner_size_cell(size: int) -> Cell:
    return Cell(format_size(size), title=f"{size:,} bytes")


def _owner_moments_caption(growth: Growth, moments: Sequence[Moment], since: int) -> str:
    first_text, warm_up_text, last_text = (
        moment_text(growth, moments[index]) for index in (0, since, -1)
    )
    return (
        f"After {first_text}, after the warm-up ({warm_up_text}), and at the end ({last_text});"
        " growth since the warm-up."
        " The owners are resident bytes, except malloc blocks and arena values in use."
        " These two rows also count memory that is not resident, so rows may not add up to the"
        " resident set. Unnamed is private memory of no known owner."
    )


def moment_text(growth: Growth, moment: Moment) -> str:
    """Return the time of `moment` in words: ``run 30``, ``12 s``."""
    if growth.unit == "second":
        return format_duration(moment.time_s)
    return f"{growth.unit} {moment.run:,}"
