"""Who owns the memory: the copies of each weight, the worst weight first, and how it is known."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

from memdiag.records.attribution import Attribution, Copy, CopyKind, Indistinct
from memdiag.reporters.views import owner_table
from memdiag.reporters.views.text import plain, shortened
from memdiag.units import format_duration, format_size

FREED = "freed, kept by malloc or the arena"

_KINDS: tuple[str, ...] = get_args(CopyKind)
_LONGEST_NAME = 160
_PLACES = 3  # addresses that are written out


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRow:
    """Copies of one weight that differ in nothing but their address.

    `label` is their kind and layout in words and `parameters` what the layout adds to that.
    Sizes are bytes of all `count` copies together. `state` is ``in use``, `FREED`, or empty where
    that is not known.
    """

    kind: CopyKind
    label: str
    parameters: str
    count: int
    size_bytes: int
    resident_bytes: int
    verified_bytes: int
    backing: str
    state: str
    made_by: str
    addresses: tuple[int, ...]

    @property
    def size(self) -> str:
        """The copies' extents together, with the unit."""
        return format_size(self.size_bytes)

    @property
    def resident(self) -> str:
        """What of them is resident, with the unit."""
        return format_size(self.resident_bytes)

    @property
    def verified(self) -> str:
        """How much was compared with the model; a mapping of its file proves itself."""
        if self.backing != "anonymous":
            return "by its mapping"
        if self.verified_bytes == self.size_bytes:
            return "every byte"
        return owner_table.percent(self.verified_bytes / self.size_bytes)

    @property
    def state_and_backing(self) -> str:
        """The backing, and whether nothing uses the copies any more."""
        return f"{self.backing}, freed" if self.is_freed else self.backing

    @property
    def places(self) -> str:
        """The first addresses, and how many more there are."""
        more = len(self.addresses) - _PLACES
        listed = " ".join(f"{address:#x}" for address in self.addresses[:_PLACES])
        return f"{listed} +{more} more" if more > 0 else listed

    @property
    def is_freed(self) -> bool:
        """Whether nothing uses these copies any more."""
        return self.state == FREED


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightRow:
    """One weight, or several with equal content: all its copies, in bytes, and them by layout."""

    names: tuple[str, ...]
    count: int
    size_bytes: int
    resident_bytes: int
    freed_count: int
    copies: tuple[CopyRow, ...]

    @property
    def title(self) -> str:
        """The first name, and how many more weights have the same content."""
        more = len(self.names) - 1
        return f"{self.names[0]} +{more} more" if more else self.names[0]

    @property
    def summary(self) -> str:
        """The copies in words: ``3 copies, 1.46 GiB, 1 of them freed``."""
        text = f"{self.count} {_copies(self.count)}, {format_size(self.size_bytes)}"
        # Pages at both ends of an extent may be missing without its being worth a word.
        if format_size(self.resident_bytes) != format_size(self.size_bytes):
            text += f" ({format_size(self.resident_bytes)} resident)"
        if self.freed_count == self.count:
            return f"{text}, freed"
        return f"{text}, {self.freed_count} of them freed" if self.freed_count else text

    def titled(self, length: int) -> str:
        """Return the title in at most `length` characters, the name's middle left out."""
        more = self.title[len(self.names[0]) :]
        return shortened(self.names[0], max(8, length - len(more))) + more


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """The whole: `first` is the answer in a sentence, `share` how much of the memory has a name.

    `freed` tells of copies that nothing uses any more, `verification` how the copies are known,
    `indistinct` of what could not be told, `notes` what was wrong, each a sentence or empty.
    """

    first: str
    share: str
    weights: tuple[WeightRow, ...]
    owners: tuple[owner_table.OwnerRow, ...]
    owner_line: str
    freed: str
    verification: str
    indistinct: tuple[str, ...]
    notes: tuple[str, ...]
    timing: str

    @property
    def largest_bytes(self) -> int:
        """The size of the largest owner, for bars."""
        return max((row.size_bytes for row in self.owners), default=0)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What there is to say below the tables, notes first."""
        said = (*self.notes, self.freed, *self.indistinct, self.verification)
        return tuple(sentence for sentence in said if sentence)


def build(attribution: Attribution) -> Owned:
    """Return what there is to show of `attribution`."""
    weights = _weights(attribution.copies)
    return Owned(
        first=f"{weights[0].title}: {weights[0].summary}" if weights else "no weight was found",
        share=owner_table.named_share(attribution),
        weights=weights,
        owners=owner_table.build(attribution),
        owner_line=owner_table.line(attribution),
        freed=_freed(attribution.copies),
        verification=_verification(attribution),
        indistinct=tuple(_indistinct(group) for group in attribution.indistinct),
        notes=_notes(attribution),
        timing=_timing(attribution),
    )


def rest(weights: Sequence[WeightRow]) -> str:
    """Return in words what the `weights` that are not listed have together; empty for none."""
    if not weights:
        return ""
    count = sum(row.count for row in weights)
    size = format_size(sum(row.size_bytes for row in weights))
    return f"{_counted(len(weights), 'weight')} more: {count:,} {_copies(count)}, {size}"


def _weights(copies: Sequence[Copy]) -> tuple[WeightRow, ...]:
    groups: dict[tuple[str, ...], list[Copy]] = {}
    for copy in copies:
        groups.setdefault(copy.weights, []).append(copy)
    rows = [_weight(names, group) for names, group in groups.items()]
    return tuple(sorted(rows, key=lambda row: (-row.size_bytes, row.names)))


def _weight(names: tuple[str, ...], copies: Sequence[Copy]) -> WeightRow:
    alike: dict[tuple[object, ...], list[Copy]] = {}
    for copy in copies:
        key = (copy.kind, copy.layout, *sorted(copy.parameters.items()))
        backing = (copy.backing.kind, copy.backing.file)
        alike.setdefault((key, backing, copy.live, copy.made_by), []).append(copy)
    rows = [_copy_row(group) for group in alike.values()]
    return WeightRow(
        names=tuple(_name(name) for name in names) or ("(no name)",),
        count=len(copies),
        size_bytes=sum(copy.bytes for copy in copies),
        resident_bytes=sum(copy.resident_bytes for copy in copies),
        freed_count=sum(copy.live is False for copy in copies),
        copies=tuple(
            sorted(rows, key=lambda row: (_KINDS.index(row.kind), row.is_freed, row.label))
        ),
    )


def _copy_row(copies: Sequence[Copy]) -> CopyRow:
    first = copies[0]
    state = {True: "in use", False: FREED, None: ""}[first.live]
    return CopyRow(
        kind=first.kind,
        label=_label(first),
        parameters=", ".join(
            f"{plain(key)} {plain(value)}" for key, value in first.parameters.items()
        ),
        count=len(copies),
        size_bytes=sum(copy.bytes for copy in copies),
        resident_bytes=sum(copy.resident_bytes for copy in copies),
        verified_bytes=sum(copy.verified_bytes for copy in copies),
        backing=_backing(first),
        state=state,
        made_by=shortened(plain(first.made_by or ""), _LONGEST_NAME),
        addresses=tuple(sorted(copy.address for copy in copies)),
    )


def _label(copy: Copy) -> str:
    layout = plain(copy.layout.replace("_", " "))
    return layout if layout.startswith(copy.kind) else f"{copy.kind} ({layout})"


def _backing(copy: Copy) -> str:
    if copy.backing.kind == "anonymous":
        return "anonymous"
    return f"file:{_name(copy.backing.file or '')}"


def _name(name: str) -> str:
    return shortened(plain(name), _LONGEST_NAME) or "(no name)"


def _freed(copies: Iterable[Copy]) -> str:
    freed = [copy for copy in copies if copy.live is False]
    if not freed:
        return ""
    size = format_size(sum(copy.bytes for copy in freed))
    verb = "is a block" if len(freed) == 1 else "are blocks"
    return (
        f"freed: {_counted(len(freed), 'copy', 'copies')} ({size}) {verb} that nothing uses any"
        " more and malloc keeps"
    )


def _verification(attribution: Attribution) -> str:
    """Return how the copies are known, told by what was compared."""
    copies = attribution.copies
    scanned = [copy for copy in copies if copy.backing.kind == "anonymous"]
    parts = []
    if scanned:
        whole = sum(copy.bytes for copy in scanned)
        compared = sum(copy.verified_bytes for copy in scanned)
        size = format_size(whole)
        if compared == whole:
            parts.append(f"all {size} of copies were compared with the model byte for byte")
        else:
            share = owner_table.percent(compared / whole)
            complete = sum(copy.verified_bytes == copy.bytes for copy in scanned)
            rest = "padding of the layout"
            if attribution.verification == "sampled":
                rest = f"between the blocks that were sampled, or {rest}"
            parts.append(
                f"{share} of {size} of copies was compared with the model"
                f" ({complete:,} of {len(scanned):,} copies byte for byte); the rest is {rest}"
            )
    if len(scanned) < len(copies):
        parts.append("copies mapped from a file are known by the mapping")
    return f"verified: {'; '.join(parts)}" if parts else ""


def _indistinct(group: Indistinct) -> str:
    names = ", ".join(_name(name) for name in group.weights[:2])
    more = group.count - min(2, len(group.weights))
    listed = f" ({names}{f', +{more:,} more' if more else ''})" if names else ""
    return (
        f"not distinguishable: {_counted(group.count, 'weight')}{listed},"
        f" {format_size(group.bytes)}: {plain(group.reason)}"
    )


def _notes(attribution: Attribution) -> tuple[str, ...]:
    notes = [f"note: {plain(note)}" for note in attribution.notes]
    if attribution.partial:
        notes.insert(0, "partial: not all memory could be read; what was read is shown")
    return tuple(notes)


def _timing(attribution: Attribution) -> str:
    timing = attribution.timing
    speed = timing.scan_gb_per_s
    scanned = f"{format_size(timing.scanned_bytes)} scanned in {format_duration(timing.scan_s)}"
    return (
        f"{scanned}{f' ({speed:.1f} GB/s)' if speed else ''},"
        f" {format_size(timing.verified_bytes)} compared in {format_duration(timing.verify_s)},"
        f" {format_duration(timing.total_s)} in all"
    )


def _copies(count: int) -> str:
    return "copy" if count == 1 else "copies"


def _counted(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
