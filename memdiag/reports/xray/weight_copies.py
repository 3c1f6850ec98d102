"""The copies of each weight, the weight with most memory first, and how they were identified."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

from memdiag.records.attribution import (
    WHOLE_FILE_COPY_NAME,
    Attribution,
    Copy,
    CopyKind,
    Unidentifiable,
)
from memdiag.records.device import DeviceCopy, DeviceXray
from memdiag.reports.table import Cell, Column, Row, Table
from memdiag.reports.text import mebibyte_decimals, plain, shortened
from memdiag.reports.xray.memory_owners import percent_text, rounded_mebibytes
from memdiag.units import counted, format_size

FREED_STATE = "freed, kept by malloc or the arena"

_COPY_KIND_ORDER: tuple[str, ...] = get_args(CopyKind)
_MODEL_FILE_TITLE = "the model file's bytes"
_MAX_DISPLAY_NAME = 160
_MAX_ADDRESSES = 3
_MAX_WEIGHT_LABEL = 60
MAX_CONSOLE_WEIGHT = 30
_MAX_CONSOLE_BACKING = 24
_MAX_CONSOLE_MAKER = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRow:
    """Copies of one weight that differ only in their address.

    Attributes:
        label: kind and layout in words.
        parameters: the parameters of the layout.
        size_bytes, resident_bytes, verified_bytes: bytes of all `count` copies together.
        state: ``in use``, `FREED_STATE`, or empty if unknown.
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
        """The size of the copies, with the unit."""
        return format_size(self.size_bytes)

    @property
    def resident(self) -> str:
        """The resident part of the copies, with the unit."""
        return format_size(self.resident_bytes)

    @property
    def verified(self) -> str:
        """The part of the copies that was compared with the model: ``every byte``, ``98 %``."""
        if self.backing != "anonymous":
            return "by its mapping"
        if self.verified_bytes == self.size_bytes:
            return "every byte"
        return percent_text(self.verified_bytes / self.size_bytes)

    @property
    def backing_and_state(self) -> str:
        """The backing, and whether the copies are unused."""
        return f"{self.backing}, freed" if self.is_freed else self.backing

    @property
    def address_text(self) -> str:
        """The first addresses, and the number of the others."""
        omitted_count = len(self.addresses) - _MAX_ADDRESSES
        first_addresses = " ".join(f"{address:#x}" for address in self.addresses[:_MAX_ADDRESSES])
        return f"{first_addresses} +{omitted_count} more" if omitted_count > 0 else first_addresses

    @property
    def is_freed(self) -> bool:
        """Whether the copies of this row are in freed memory."""
        return self.state == FREED_STATE


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightRow:
    """One weight, or several with equal content, with all copies by layout.

    Attributes:
        model: the models to which it belongs, if several were searched for.
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
        """The first name, and the number of further weights with the same content."""
        prefix = f"{self.model}: " if self.model else ""
        return f"{prefix}{self.names[0]}{self._more_names}"

    @property
    def summary(self) -> str:
        """The copies in words: ``3 copies, 1.46 GiB, 1 of them freed``."""
        text = f"{counted(self.count, 'copy', 'copies')}, {format_size(self.size_bytes)}"
        # Pages at both ends of an extent may be missing. That is not worth mentioning.
        if format_size(self.resident_bytes) != format_size(self.size_bytes):
            text += f" ({format_size(self.resident_bytes)} resident)"
        if self.freed_count == self.count:
            return f"{text}, freed"
        return f"{text}, {self.freed_count} of them freed" if self.freed_count else text

    @property
    def in_use_bytes(self) -> int:
        """The resident bytes of the copies in use."""
        return sum(copy.resident_bytes for copy in self.copies if not copy.is_freed)

    @property
    def _more_names(self) -> str:
        further_count = len(self.names) - 1
        return f" +{further_count} more" if further_count else ""

    def shortened_title(self, length: int) -> str:
        """Return the title in at most `length` characters; a longer name loses its middle."""
        suffix = self._more_names
        name = self.title[: len(self.title) - len(suffix)]
        return shortened(name, max(8, length - len(suffix))) + suffix


def weight_rows(attribution: Attribution) -> tuple[WeightRow, ...]:
    """Return the weights with their copies, the largest first."""
    copies_by_weight: dict[tuple[tuple[int, ...], tuple[str, ...]], list[Copy]] = {}
    for copy in attribution.copies:
        copies_by_weight.setdefault((copy.models, copy.weights), []).append(copy)
    rows = []
    for (models, names), copies in copies_by_weight.items():
        model = " and ".join(display_name(attribution.models[index].name) for index in models[:2])
        more_text = f" +{len(models) - 2} more" if len(models) > 2 else ""
        rows.append(_weight_row(f"{model}{more_text}", names, copies))
    return tuple(sorted(rows, key=lambda row: (-row.size_bytes, row.model, row.names)))


def repeated_table(weights: Sequence[WeightRow]) -> Table:
    """Return a row for each weight and, below it, for each copy, for terminals and Markdown."""
    sizes = [copy.size_bytes for weight in weights for copy in weight.copies]
    # All sizes have the same number of decimals, so that they can be compared.
    decimals = mebibyte_decimals(max(sizes, default=0))
    rows = []
    for weight in weights:
        rows.append(
            Row(
                Cell(weight.shortened_title(_MAX_WEIGHT_LABEL), is_code=True),
                f"{weight.count:,}",
                _row_mebibytes_text(weight, decimals),
                format_size(weight.resident_bytes),
                "",
                "",
                is_strong=True,
            )
        )
        for copy in weight.copies:
            parameters = f" ({copy.parameters})" if copy.parameters else ""
            rows.append(
                Row(
                    f"{copy.label}{parameters}",
                    f"{copy.count:,}",
                    _row_mebibytes_text(copy, decimals),
                    copy.resident,
                    copy.backing_and_state,
                    copy.made_by,
                    level=1,
                )
            )
    table = Table(
        columns=(
            Column("weight", max_width=MAX_CONSOLE_WEIGHT),
            Column("copies", "right"),
            Column("MiB", "right", formats=("console",)),
            Column("resident", "right", formats=("markdown",)),
            Column("backing", max_width=_MAX_CONSOLE_BACKING),
            Column("made by", wraps=True, max_width=_MAX_CONSOLE_MAKER),
        ),
        rows=tuple(rows),
    )
    return table.without_empty_columns()


def _row_mebibytes_text(row: WeightRow | CopyRow, decimals: int) -> str:
    size = rounded_mebibytes(row.size_bytes, decimals)
    resident = rounded_mebibytes(row.resident_bytes, decimals)
    return size if size == resident else f"{resident} of {size}"


def copies_table(weights: Sequence[WeightRow]) -> Table:
    """Return the copies of `weights` for a page, whose script finds cells by their position."""
    return Table(
        columns=(
            Column("weight", css="name"),
            Column("copy"),
            Column("copies", "right"),
            Column("size", "right"),
            Column("resident", "right"),
            Column("backing", css="name"),
            Column("made by", css="name"),
            Column("verified"),
            Column("at", css="at"),
        ),
        rows=tuple(_copy_cells(weight, copy) for weight in weights for copy in weight.copies),
    )


def _copy_cells(weight: WeightRow, copy: CopyRow) -> Row:
    return Row(
        Cell(weight.title, title=weight.summary),
        Cell(copy.label, color=f"var(--{copy.kind})", note=copy.parameters or " "),
        f"{copy.count:,}",
        Cell(copy.size, title=f"{copy.size_bytes:,} bytes"),
        Cell(copy.resident, title=f"{copy.resident_bytes:,} bytes"),
        copy.backing_and_state,
        copy.made_by,
        copy.verified,
        copy.address_text,
    )


def rest_summary(weights: Sequence[WeightRow]) -> str:
    """Return the sum of `weights` in one line; empty for none."""
    if not weights:
        return ""
    count = sum(row.count for row in weights)
    size = format_size(sum(row.size_bytes for row in weights))
    copies = counted(count, "copy", "copies")
    return f"{counted(len(weights), 'weight')} more: {copies}, {size}"


def single_copies_summary(weights: Sequence[WeightRow]) -> str:
    """Return the sum of the `weights` with a single copy each, by kind; empty for none."""
    single_weights = [
        row for row in weights if row.count == 1 and row.names != (_MODEL_FILE_TITLE,)
    ]
    if not single_weights:
        return ""
    size_by_kind: dict[str, int] = {}
    for copy in (copy for weight in single_weights for copy in weight.copies):
        kind = "freed" if copy.is_freed else copy.kind
        size_by_kind[kind] = size_by_kind.get(kind, 0) + copy.resident_bytes
    total = format_size(sum(size_by_kind.values()))
    kinds = sorted(size_by_kind.items(), key=lambda item: -item[1])
    parts = ", ".join(f"{kind} {format_size(size)}" for kind, size in kinds)
    each_word = " each" * (len(single_weights) > 1)
    text = f"{counted(len(single_weights), 'weight')} with a single copy{each_word}"
    return f"{text}: {total} ({parts})" if len(kinds) > 1 else f"{text}, {parts}"


def freed_summary(copies: Iterable[Copy]) -> str:
    """Return the size of the copies that nothing uses any more; empty for none."""
    freed_copies = [copy for copy in copies if copy.in_use is False]
    if not freed_copies:
        return ""
    size = format_size(sum(copy.bytes for copy in freed_copies))
    verb = (
        "was freed, but its memory is"
        if len(freed_copies) == 1
        else "were freed, but their memory is"
    )
    copies_text = counted(len(freed_copies), "copy", "copies")
    return f"{copies_text} ({size}) {verb} kept by malloc or the arena."


def verification_summary(attribution: Attribution) -> str:
    """Return sentences on how the copies were compared with the model."""
    copies = attribution.copies
    scanned_copies = [copy for copy in copies if copy.backing.kind == "anonymous"]
    sentences = []
    if scanned_copies:
        total_bytes = sum(copy.bytes for copy in scanned_copies)
        compared_bytes = sum(copy.verified_bytes for copy in scanned_copies)
        size = format_size(total_bytes)
        if compared_bytes == total_bytes:
            sentences.append(f"All {size} of copies match the model byte for byte.")
        else:
            complete_count = sum(copy.verified_bytes == copy.bytes for copy in scanned_copies)
            sentences.append(
                f"{percent_text(compared_bytes / total_bytes)} of {size} of copies was compared"
                f" with the model and matches ({complete_count:,} of {len(scanned_copies):,} copies"
                " byte for byte); the rest is padding of the layout."
            )
    if len(scanned_copies) < len(copies):
        sentences.append("Copies mapped from a file were identified by the mapping.")
    return " ".join(sentences)


def unlocated_sentences(xray: Attribution | DeviceXray) -> tuple[str, ...]:
    """Return a sentence for each reason why weights could not be located."""
    groups_by_reason: dict[str, list[Unidentifiable]] = {}
    for group in xray.indistinct:
        groups_by_reason.setdefault(group.reason, []).append(group)
    return tuple(_unlocated_sentence(reason, groups) for reason, groups in groups_by_reason.items())


def _unlocated_sentence(reason: str, groups: Sequence[Unidentifiable]) -> str:
    count, size = sum(group.count for group in groups), sum(group.bytes for group in groups)
    first_names = [display_name(name) for group in groups for name in group.weights][:2]
    omitted_count = count - len(first_names)
    names = ", ".join([*first_names, f"+{omitted_count:,} more"] if omitted_count else first_names)
    weights = counted(count, "weight") + (f" ({names})" if first_names else "")
    return (
        f"Not located: {weights}, {format_size(size)}: {plain(reason)}."
        " Other owners contain their memory."
    )


def display_name(name: str) -> str:
    """Return the name of a weight or file as plain text of limited length."""
    if name == WHOLE_FILE_COPY_NAME:
        return _MODEL_FILE_TITLE
    return shortened(plain(name), _MAX_DISPLAY_NAME) or "(no name)"


def _weight_row(model: str, names: tuple[str, ...], copies: Sequence[Copy]) -> WeightRow:
    copies_by_row: dict[tuple[object, ...], list[Copy]] = {}
    for copy in copies:
        layout = (copy.kind, copy.layout, *sorted(copy.parameters.items()))
        backing = (copy.backing.kind, copy.backing.file)
        copies_by_row.setdefault((layout, backing, copy.in_use, copy.made_by), []).append(copy)
    rows = [_copy_row(equal_copies) for equal_copies in copies_by_row.values()]
    return WeightRow(
        model=model,
        names=tuple(display_name(name) for name in names) or ("(no name)",),
        count=len(copies),
        size_bytes=sum(copy.bytes for copy in copies),
        resident_bytes=sum(copy.resident_bytes for copy in copies),
        freed_count=sum(copy.in_use is False for copy in copies),
        copies=tuple(
            sorted(
                rows, key=lambda row: (_COPY_KIND_ORDER.index(row.kind), row.is_freed, row.label)
            )
        ),
    )


def _copy_row(copies: Sequence[Copy]) -> CopyRow:
    first_copy = copies[0]
    return CopyRow(
        kind=first_copy.kind,
        label=copy_label(first_copy),
        parameters=parameters_text(first_copy),
        count=len(copies),
        size_bytes=sum(copy.bytes for copy in copies),
        resident_bytes=sum(copy.resident_bytes for copy in copies),
        verified_bytes=sum(copy.verified_bytes for copy in copies),
        backing=_copy_backing_text(first_copy),
        state={True: "in use", False: FREED_STATE, None: ""}[first_copy.in_use],
        made_by=shortened(plain(first_copy.made_by or ""), _MAX_DISPLAY_NAME),
        addresses=tuple(sorted(copy.address for copy in copies)),
    )


def copy_label(copy: Copy | DeviceCopy) -> str:
    """Return the kind and the layout of a copy in words."""
    layout = plain(copy.layout.replace("_", " "))
    return layout if layout.startswith(copy.kind) else f"{copy.kind} ({layout})"


def parameters_text(copy: Copy | DeviceCopy) -> str:
    """Return the parameters of the layout of a copy; empty if it has none."""
    return ", ".join(f"{plain(key)} {plain(value)}" for key, value in copy.parameters.items())


def _copy_backing_text(copy: Copy) -> str:
    if copy.backing.kind == "anonymous":
        return "anonymous"
    return f"file:{display_name(copy.backing.file or '')}"
