"""The owner table: the resident set divided among weights, arena, libraries and the rest."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from memdiag.records.attribution import (
    ARENA_IN_USE_NAME,
    ARENA_SLACK_NAME,
    HEAP_UNKNOWN_NAME,
    WHOLE_FILE_COPY_NAME,
    Attribution,
    CopyKind,
    Owner,
    OwnerKind,
)
from memdiag.reports.table import BarPart, Cell, Column, Row, Table
from memdiag.reports.text import mebibyte_decimals, mebibytes_text, plain
from memdiag.units import format_size, some_of

OWNER_KIND_LABELS: Mapping[OwnerKind, str] = {
    "weights": "weights",
    "kv_cache": "KV cache",
    "external_data": "mapped model files",
    "arena": "arena",
    "allocator_retained": "retained by malloc",
    "runtime_libraries": "onnxruntime libraries",
    "provider_libraries": "provider libraries",
    "python": "Python",
    "other_libraries": "other libraries",
    "mapped_files": "mapped files",
    "thread_stacks": "thread stacks",
    "other_heap": "other heap",
    "unnamed": "unnamed",
}

OWNER_SENTENCES: Mapping[str, str] = {
    "weights": "",
    "kv_cache": "",
    "external_data": "pages of the model's files",
    "arena": "in use, or free but kept: not known which",
    "arena_in_use": "tensors and buffers of onnxruntime",
    "arena_slack": "free, kept by onnxruntime for later runs",
    "allocator_retained": "freed, not returned to the system",
    "runtime_libraries": "library pages that were used",
    "provider_libraries": "used pages of execution providers",
    "python": "interpreter, modules and objects",
    "other_libraries": "pages of other libraries and programs",
    "mapped_files": "files and shared memory",
    "thread_stacks": "",
    "other_heap": "blocks in use: graph, kernels, program",
    "unnamed": "not identified",
}

_ARENA_PARTS: Mapping[str, tuple[str, str]] = {
    ARENA_IN_USE_NAME: ("arena_in_use", "arena, in use"),
    ARENA_SLACK_NAME: ("arena_slack", "arena slack"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRow:
    """All owners of one kind; the parts of the arena are separate rows.

    Attributes:
        id: the kind, or for a part of the arena ``arena_in_use`` or ``arena_slack``.
        percent: the share of the resident set.
        parts: the names of the parts with their sizes.
        sentence: what this memory is, in a few words.
    """

    id: str
    kind: OwnerKind
    label: str
    size_bytes: int
    percent: str
    parts: str
    sentence: str


def owner_rows(attribution: Attribution, *, trimmed_bytes: int = 0) -> tuple[OwnerRow, ...]:
    """Return a row for each kind of owner, the largest first, unidentified memory last.

    `trimmed_bytes` were returned by malloc on request before the X-ray was taken. They count as
    retained by malloc, and as resident.
    """
    owners_by_row: dict[tuple[OwnerKind, str, str], list[Owner]] = {}
    for owner in attribution.owners:
        row_id: str = owner.kind
        label = OWNER_KIND_LABELS[owner.kind]
        if owner.kind == "arena":
            row_id, label = _ARENA_PARTS.get(owner.name, (row_id, label))
        owners_by_row.setdefault((owner.kind, row_id, label), []).append(owner)
    if trimmed_bytes > 0:
        kind: OwnerKind = "allocator_retained"
        name = f"returned by {trim_function_name(attribution.allocator)}"
        trimmed_owner = Owner(
            kind=kind, name=name, bytes=trimmed_bytes, private_bytes=trimmed_bytes
        )
        owners_by_row.setdefault((kind, kind, OWNER_KIND_LABELS[kind]), []).append(trimmed_owner)
    resident_bytes = attribution.resident_bytes + max(0, trimmed_bytes)
    weights = owners_by_row.get(("weights", "weights", OWNER_KIND_LABELS["weights"]))
    if weights is not None:
        weights[:] = _separated_file_parts(weights, attribution)
    rows = [_owner_row(key, parts, resident_bytes) for key, parts in owners_by_row.items()]
    rows = [
        _constants_owner_row(_allocator_owner_row(row, attribution), attribution) for row in rows
    ]
    return tuple(sorted(rows, key=lambda row: (row.kind == "unnamed", -row.size_bytes, row.id)))


def largest_owners_text(rows: Sequence[OwnerRow], count: int) -> str:
    """Return a sentence with the first `count` of `rows` and their sizes, and how many follow."""
    parts = [f"{row.label} {format_size(row.size_bytes)}" for row in rows]
    return f"{some_of(parts, count, ' · ')}."


def owner_table(
    rows: tuple[OwnerRow, ...], *, heading: str = "owner", weights_kind: CopyKind | None = None
) -> Table:
    """Return the table of `rows`.

    Args:
        rows: the owners.
        heading: the heading of their column.
        weights_kind: the kind of copy whose colour weights have; None if copies are coloured by
            their kinds.
    """
    largest_bytes = max((row.size_bytes for row in rows), default=0)
    decimals = mebibyte_decimals(sum(row.size_bytes for row in rows))
    return Table(
        columns=(
            Column(heading),
            Column("MiB", "right", formats=("console",)),
            Column("size", "right", css="strong", formats=("markdown", "html")),
            Column("of all", "right"),
            Column(css="wide", formats=("html",)),
            Column("what it is", wraps=True, css="prose"),
        ),
        rows=tuple(
            Row(
                Cell(row.label, color=_owner_css_color(row.kind, weights_kind)),
                rounded_mebibytes(row.size_bytes, decimals),
                Cell(format_size(row.size_bytes), title=f"{row.size_bytes:,} bytes"),
                row.percent,
                Cell(
                    bars=(
                        (BarPart(css="end", percent=100 * row.size_bytes / (largest_bytes or 1)),),
                    )
                ),
                Cell(row.sentence, note=_parts_note(row)),
            )
            for row in rows
        ),
    )


def owner_label(owner: Owner) -> str:
    """Return the name of one owner: ``weights (packed)``, ``arena slack``."""
    if owner.kind == "arena":
        return _ARENA_PARTS.get(owner.name, ("", OWNER_KIND_LABELS["arena"]))[1]
    layout = f" ({plain(owner.name)})" if owner.kind == "weights" else ""
    return f"{OWNER_KIND_LABELS[owner.kind]}{layout}"


def owner_sizes(owners: Sequence[Owner]) -> list[tuple[str, int]]:
    """Return the label and size of each row of the owner table, the largest first."""
    size_by_label: dict[str, int] = {}
    for owner in owners:
        label = owner_label(owner) if owner.kind == "arena" else OWNER_KIND_LABELS[owner.kind]
        size_by_label[label] = size_by_label.get(label, 0) + owner.bytes
    return sorted(size_by_label.items(), key=lambda item: -item[1])


def identified_share(attribution: Attribution) -> str:
    """Return the share of identified memory: ``99.7 % of the resident memory is identified``."""
    is_above_baseline = attribution.baseline_bytes is not None
    memory = "memory above the baseline" if is_above_baseline else "resident memory"
    reading_remark = "; not all memory could be read" if attribution.partial else ""
    return f"{percent_text(attribution.named_share)} of the {memory} is identified{reading_remark}"


def percent_text(share: float) -> str:
    """Return `share` (0 to 1) in per cent, rounded down, so that only all of it is ``100 %``."""
    tenths = math.floor(share * 1000 + 1e-9)
    if share > 0 and tenths == 0:
        return "< 0.1 %"
    return f"{tenths // 10} %" if tenths % 10 == 0 else f"{tenths / 10:.1f} %"


def rounded_mebibytes(size: int, decimals: int) -> str:
    """Return `size` bytes in MiB without the unit; ``<1`` if that rounds to 0."""
    text = mebibytes_text(size, decimals)
    return f"<{10**-decimals:.{decimals}f}" if size > 0 and not text.strip("0.") else text


def _owner_css_color(kind: OwnerKind, weights_kind: CopyKind | None) -> str:
    """Return the CSS colour of an owner; weights have the colour of `weights_kind`."""
    color_kind = weights_kind if kind == "weights" else kind
    return "transparent" if color_kind is None else f"var(--{color_kind.replace('_', '-')})"


def _parts_note(row: OwnerRow) -> str:
    return row.parts if " · " in row.parts and row.parts != row.sentence else ""


def _separated_file_parts(parts: list[Owner], attribution: Attribution) -> list[Owner]:
    """Return `parts` with the bytes of the model's file as a separate part."""
    file_bytes = sum(
        copy.resident_bytes
        for copy in attribution.copies
        if copy.weights == (WHOLE_FILE_COPY_NAME,) and copy.in_use is not False
    )
    divided_parts = []
    for part in parts:
        if part.name != "original" or not file_bytes:
            divided_parts.append(part)
            continue
        file_bytes = min(file_bytes, part.bytes)
        if part.bytes > file_bytes:
            divided_parts.append(msgspec.structs.replace(part, bytes=part.bytes - file_bytes))
        divided_parts.append(
            msgspec.structs.replace(part, name="the model file's bytes", bytes=file_bytes)
        )
    return divided_parts


def trim_function_name(allocator: str | None) -> str:
    """Return the name of the function or allocator that returned freed heap to the system."""
    return "malloc_trim" if allocator is None or allocator == "glibc" else plain(allocator)


def _allocator_owner_row(row: OwnerRow, attribution: Attribution) -> OwnerRow:
    """Name the allocator in the row of the other heap, if it is not glibc's."""
    name = plain(attribution.allocator or "")
    if row.kind != "other_heap" or name in ("", "glibc"):
        return row
    if attribution.bytes_of("other_heap", HEAP_UNKNOWN_NAME):
        return replace(row, sentence=f"{name}'s heap, in use or kept, and private mappings")
    return replace(row, sentence=f"{name}'s {row.sentence}")


def _constants_owner_row(row: OwnerRow, attribution: Attribution) -> OwnerRow:
    """Note in the row of the other heap if most of it is weights that cannot be located."""
    size = sum(group.bytes for group in attribution.indistinct)
    if row.kind != "other_heap" or not 0.5 * row.size_bytes <= size <= row.size_bytes:
        return row
    sentence = f"probably {format_size(size)} of weights that are not located, see below"
    return replace(row, sentence=sentence)


def _owner_row(
    key: tuple[OwnerKind, str, str], parts: list[Owner], resident_bytes: int
) -> OwnerRow:
    kind, row_id, label = key
    size = sum(part.bytes for part in parts)
    names = _part_names(kind, parts)
    return OwnerRow(
        id=row_id,
        kind=kind,
        label=label,
        size_bytes=size,
        percent=percent_text(size / resident_bytes if resident_bytes else 0.0),
        parts=names,
        sentence=names if kind in ("weights", "kv_cache") else OWNER_SENTENCES[row_id],
    )


def _part_names(kind: OwnerKind, parts: list[Owner]) -> str:
    if kind == "unnamed":
        return ""
    parts = sorted(parts, key=lambda part: -part.bytes)
    if len(parts) == 1:
        return plain(parts[0].name)
    return " · ".join(f"{plain(part.name)} {format_size(part.bytes)}" for part in parts)
