"""The resident pages as one strip in the order of their addresses, coloured by owner."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memdiag.records.attribution import AddressRange, Attribution
from memdiag.reports.views import owner_table
from memdiag.reports.views.text import plain, shortened
from memdiag.units import format_size

_LONGEST_NAME = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Resident bytes that belong together: `kind` is that of a copy, or of an owner.

    `idle` is set where nothing uses them: freed copies, slack of the arena, what malloc retains.
    """

    start: int
    resident_bytes: int
    kind: str
    idle: bool
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Legend:
    """One kind of the strip, with all the bytes it has there."""

    kind: str
    label: str
    idle: bool
    size: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressMap:
    """The strip, in the order of addresses, and its legend, the largest first.

    `remarks` say, a sentence each, what the strip or the record does not show apart.
    """

    stretches: tuple[Stretch, ...]
    legend: tuple[Legend, ...]
    remarks: tuple[str, ...]
    resident_bytes: int


def build(attribution: Attribution, *, max_stretches: int = 3000) -> AddressMap | None:
    """Return the strip of `attribution`; None where the record does not tell where owners lie.

    Of more than `max_stretches` the largest are shown; the legend counts all of them.
    """
    ranges = [one for one in attribution.ranges if one.resident_bytes]
    if not ranges:
        return None
    sizes: dict[tuple[str, str, bool], int] = {}
    for one in ranges:
        key = _kind(attribution, one)
        sizes[key] = sizes.get(key, 0) + one.resident_bytes
    ordered = sorted(ranges, key=lambda one: -one.resident_bytes)
    shown, left = ordered[:max_stretches], ordered[max_stretches:]
    return AddressMap(
        stretches=tuple(
            _stretch(attribution, one) for one in sorted(shown, key=lambda one: one.start)
        ),
        legend=tuple(
            Legend(kind=kind, label=label, idle=idle, size=format_size(size))
            for (kind, label, idle), size in sorted(sizes.items(), key=lambda item: -item[1])
        ),
        remarks=tuple(sentence for sentence in (_left(left), *_joined(attribution)) if sentence),
        resident_bytes=_resident(ranges),
    )


def _left(ranges: Sequence[AddressRange]) -> str:
    """Return in words what the `ranges` that are not drawn have together; empty for none."""
    if not ranges:
        return ""
    stretches = "stretch is" if len(ranges) == 1 else "stretches are"
    size = format_size(_resident(ranges))
    return f"The {len(ranges):,} smallest {stretches} left out here: {size} together."


def _joined(attribution: Attribution) -> Iterator[str]:
    """Say what the record itself does not tell apart."""
    wide = [one for one in attribution.ranges if 0 < one.resident_bytes < one.bytes]
    if wide:
        yield (
            f"{format_size(_resident(wide))} in {len(wide):,} of {len(attribution.ranges):,}"
            " stretches lie apart, with gaps or others between, and are drawn as one."
        )
    small = [
        one
        for one in attribution.ranges
        if one.copy is None and attribution.owners[one.owner].kind == "weights"
    ]
    if size := _resident(small):
        yield f"{format_size(size)} of weights are in copies too small to be named here."


def _resident(ranges: Sequence[AddressRange]) -> int:
    return sum(one.resident_bytes for one in ranges)


def _kind(attribution: Attribution, one: AddressRange) -> tuple[str, str, bool]:
    """Return the kind of `one`, what it is called, and whether nothing uses it."""
    owner = attribution.owners[one.owner]
    if one.copy is not None:
        copy = attribution.copies[one.copy]
        freed = copy.live is False
        return copy.kind, f"{copy.kind}{', freed' if freed else ''}", freed
    if owner.kind == "weights":
        return owner.name, plain(owner.name), False
    label = owner_table.LABELS[owner.kind]
    if owner.kind == "arena":
        slack = owner.name == "slack"
        return owner.kind, f"{label} {plain(owner.name)}", slack
    return owner.kind, label, owner.kind == "allocator_retained"


def _stretch(attribution: Attribution, one: AddressRange) -> Stretch:
    kind, label, idle = _kind(attribution, one)
    name = label
    if one.copy is not None:
        weights = attribution.copies[one.copy].weights
        name = f"{shortened(plain(weights[0]), _LONGEST_NAME) if weights else '(no name)'}: {label}"
    within = f" of {format_size(one.bytes)}" if one.resident_bytes < one.bytes else ""
    return Stretch(
        start=one.start,
        resident_bytes=one.resident_bytes,
        kind=kind,
        idle=idle,
        sentence=f"{name}, {format_size(one.resident_bytes)}{within} resident at {one.start:#x}",
    )
