"""Who owns the memory: the copies of each weight, the worst weight first, and how it is known."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

from memdiag.records.attribution import MODEL_FILE, Attribution, Copy, CopyKind, Indistinct
from memdiag.reports.views import owner_table
from memdiag.reports.views.text import plain, shortened
from memdiag.units import format_duration, format_size

FREED = "freed, kept by malloc or the arena"

_KINDS: tuple[str, ...] = get_args(CopyKind)
_LONGEST_NAME = 160
_FILE_TITLE = "the model file's bytes"
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
    """One weight, or several with equal content: all its copies, in bytes, and them by layout.

    `model` names the models that it belongs to, where several were looked for.
    """

    model: str
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
        prefix = f"{self.model}: " if self.model else ""
        return f"{prefix}{self.names[0]} +{more} more" if more else f"{prefix}{self.names[0]}"

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
        more = len(self.names) - 1
        end = f" +{more} more" if more else ""
        start = self.title[: len(self.title) - len(end)]
        return shortened(start, max(8, length - len(end))) + end


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """One of several models: its copies, in number and bytes, shared ones included.

    `times` is their size as a multiple of the model's weights, and `shared` what of it other models
    have as well; both are text, empty where there is nothing to say.
    """

    name: str
    count: int
    size_bytes: int
    size: str
    weights: str
    times: str
    shared: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """An X-ray in words and rows.

    Attributes:
        first: the weight with most memory, in a sentence.
        absent: the models of which no weight was found, in a sentence, or empty.
        share: how much of the memory is identified.
        weights: all weights, the largest first.
        models: the models, where several were looked for.
        single: the sum of the weights that have a single copy; empty where there are none.
        freed: the copies that nothing uses any more.
        verification: how the copies were identified.
        indistinct: the weights that could not be located.
        notes: what was wrong.
    """

    first: str
    share: str
    weights: tuple[WeightRow, ...]
    single: str
    models: tuple[ModelRow, ...]
    absent: str
    owners: tuple[owner_table.OwnerRow, ...]
    freed: str
    verification: str
    indistinct: tuple[str, ...]
    notes: tuple[str, ...]
    timing: str

    @property
    def repeated(self) -> tuple[WeightRow, ...]:
        """The weights that have more than one copy."""
        return tuple(row for row in self.weights if row.count > 1)

    @property
    def has_makers(self) -> bool:
        """Whether it is known of any copy what made it."""
        return any(copy.made_by for weight in self.weights for copy in weight.copies)

    @property
    def largest_bytes(self) -> int:
        """The size of the largest owner, for bars."""
        return max((row.size_bytes for row in self.owners), default=0)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What there is to say below the tables, notes first."""
        said = (*self.notes, self.absent, self.freed, *self.indistinct, self.verification)
        return tuple(sentence for sentence in said if sentence)


def build(attribution: Attribution, *, trimmed_bytes: int = 0) -> Owned:
    """Return what there is to show of `attribution`.

    `trimmed_bytes` were returned by ``malloc_trim`` before it was taken.
    """
    weights = _weights(attribution)
    models = _models(attribution) if len(attribution.models) > 1 else ()
    absent = [row.name for row in models if not row.count]
    return Owned(
        absent=f"No weight was found of: {', '.join(absent)}." if absent else "",
        first=f"{weights[0].title}: {weights[0].summary}" if weights else _none(attribution),
        share=owner_table.named_share(attribution),
        weights=weights,
        single=_single([r for r in weights if r.count == 1 and r.names != (_FILE_TITLE,)]),
        models=tuple(row for row in models if row.count),
        owners=owner_table.build(attribution, trimmed_bytes=trimmed_bytes),
        freed=_freed(attribution.copies),
        verification=_verification(attribution),
        indistinct=_indistinct(attribution),
        notes=_notes(attribution),
        timing=_timing(attribution),
    )


def _single(weights: Sequence[WeightRow]) -> str:
    """Return the sum of `weights`, each with a single copy, by kind; empty for none."""
    if not weights:
        return ""
    sizes: dict[str, int] = {}
    for row in (copy for weight in weights for copy in weight.copies):
        kind = "freed" if row.is_freed else row.kind
        sizes[kind] = sizes.get(kind, 0) + row.resident_bytes
    size = format_size(sum(sizes.values()))
    kinds = sorted(sizes.items(), key=lambda item: -item[1])
    parts = ", ".join(f"{kind} {format_size(size)}" for kind, size in kinds)
    counted = f"{_counted(len(weights), 'weight')} with a single copy{' each' * (len(weights) > 1)}"
    return f"{counted}: {size} ({parts})" if len(kinds) > 1 else f"{counted}, {parts}"


PER_MODEL = (
    "Only weights are attributed to a model: arena slack, retained memory and the rest of the heap"
    " belong to the process, not to one session."
)
"""Stated beneath the table of models."""


def model_table(models: Sequence[ModelRow]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the headings and the rows of the table of `models`, without empty columns."""
    headings = ("model", "weights", "copies", "size of copies", "÷ weights", "shared")
    rows = [
        (row.name, row.weights, f"{row.count:,}", row.size, row.times, row.shared) for row in models
    ]
    shown = [column for column in range(len(headings)) if any(row[column] for row in rows)]
    return (
        tuple(headings[column] for column in shown),
        [tuple(row[column] for column in shown) for row in rows],
    )


def rest(weights: Sequence[WeightRow]) -> str:
    """Return in words what the `weights` that are not listed have together; empty for none."""
    if not weights:
        return ""
    count = sum(row.count for row in weights)
    size = format_size(sum(row.size_bytes for row in weights))
    return f"{_counted(len(weights), 'weight')} more: {count:,} {_copies(count)}, {size}"


def _none(attribution: Attribution) -> str:
    looked = attribution.models or attribution.indistinct
    return "no weight was found" if looked else "no weight was looked for"


def _models(attribution: Attribution) -> tuple[ModelRow, ...]:
    rows = []
    for index, model in enumerate(attribution.models):
        copies = [copy for copy in attribution.copies if index in copy.models]
        size = sum(copy.resident_bytes for copy in copies)
        shared = sum(copy.resident_bytes for copy in copies if len(copy.models) > 1)
        ratio = size / model.weight_bytes if model.weight_bytes else 0.0
        rows.append(
            ModelRow(
                name=_name(model.name),
                count=len(copies),
                size_bytes=size,
                size=format_size(size),
                weights=format_size(model.weight_bytes),
                times=f"{ratio:.1f} ×" if ratio else "",
                shared=format_size(shared) if shared else "",
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.size_bytes, row.name)))


def _weights(attribution: Attribution) -> tuple[WeightRow, ...]:
    groups: dict[tuple[tuple[int, ...], tuple[str, ...]], list[Copy]] = {}
    for copy in attribution.copies:
        groups.setdefault((copy.models, copy.weights), []).append(copy)
    rows = []
    for (models, names), group in groups.items():
        model = " and ".join(_name(attribution.models[index].name) for index in models[:2])
        more = f" +{len(models) - 2} more" if len(models) > 2 else ""
        rows.append(_weight(f"{model}{more}", names, group))
    return tuple(sorted(rows, key=lambda row: (-row.size_bytes, row.model, row.names)))


def _weight(model: str, names: tuple[str, ...], copies: Sequence[Copy]) -> WeightRow:
    alike: dict[tuple[object, ...], list[Copy]] = {}
    for copy in copies:
        key = (copy.kind, copy.layout, *sorted(copy.parameters.items()))
        backing = (copy.backing.kind, copy.backing.file)
        alike.setdefault((key, backing, copy.live, copy.made_by), []).append(copy)
    rows = [_copy_row(group) for group in alike.values()]
    return WeightRow(
        model=model,
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
    if name == MODEL_FILE:
        return _FILE_TITLE
    return shortened(plain(name), _LONGEST_NAME) or "(no name)"


def _freed(copies: Iterable[Copy]) -> str:
    freed = [copy for copy in copies if copy.live is False]
    if not freed:
        return ""
    size = format_size(sum(copy.bytes for copy in freed))
    verb = "was freed, but its memory is" if len(freed) == 1 else "were freed, but their memory is"
    return f"{_counted(len(freed), 'copy', 'copies')} ({size}) {verb} kept by malloc or the arena."


def _verification(attribution: Attribution) -> str:
    """Return how the copies were identified."""
    copies = attribution.copies
    scanned = [copy for copy in copies if copy.backing.kind == "anonymous"]
    parts = []
    if scanned:
        whole = sum(copy.bytes for copy in scanned)
        compared = sum(copy.verified_bytes for copy in scanned)
        size = format_size(whole)
        if compared == whole:
            parts.append(f"All {size} of copies match the model byte for byte.")
        else:
            share = owner_table.percent(compared / whole)
            complete = sum(copy.verified_bytes == copy.bytes for copy in scanned)
            rest = "padding of the layout"
            if attribution.verification == "sampled":
                rest = f"between the blocks that were sampled, or {rest}"
            parts.append(
                f"{share} of {size} of copies was compared with the model and matches"
                f" ({complete:,} of {len(scanned):,} copies byte for byte); the rest is {rest}."
            )
    if len(scanned) < len(copies):
        parts.append("Copies mapped from a file were identified by the mapping.")
    return " ".join(parts)


def _indistinct(attribution: Attribution) -> tuple[str, ...]:
    """Return a sentence for each reason why weights could not be located, of all models."""
    groups: dict[str, list[Indistinct]] = {}
    for group in attribution.indistinct:
        groups.setdefault(group.reason, []).append(group)
    return tuple(_not_located(reason, same) for reason, same in groups.items())


def _not_located(reason: str, groups: Sequence[Indistinct]) -> str:
    count, size = sum(one.count for one in groups), sum(one.bytes for one in groups)
    first = [_name(name) for one in groups for name in one.weights][:2]
    more = count - len(first)
    names = ", ".join([*first, f"+{more:,} more"] if more else first)
    listed = f" ({names})" if first else ""
    counted = _counted(count, "weight")
    return f"Not located: {counted}{listed}, {format_size(size)}: {plain(reason)}."


def _notes(attribution: Attribution) -> tuple[str, ...]:
    notes = [f"Note: {plain(note).rstrip('.')}." for note in attribution.notes]
    if attribution.partial:
        notes.insert(0, "Incomplete: not all memory could be read. The rest is shown.")
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
