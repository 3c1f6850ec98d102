"""The resident set divided among owners: how much each kind has, and what it consists of."""

import math
from dataclasses import dataclass, replace

import msgspec

from memdiag.records.attribution import MODEL_FILE, Attribution, Owner, OwnerKind
from memdiag.reports.views.phase_table import mebibytes
from memdiag.reports.views.text import plain
from memdiag.units import MIB, format_size

_FEW_MIB = 200  # below this a digit after the point still matters

LABELS: dict[OwnerKind, str] = {
    "weights": "weights",
    "external_data": "mapped model files",
    "arena": "arena",
    "allocator_retained": "retained by malloc",
    "runtime_libraries": "onnxruntime libraries",
    "python": "Python",
    "other_libraries": "other libraries",
    "mapped_files": "mapped files",
    "thread_stacks": "thread stacks",
    "other_heap": "other heap",
    "unnamed": "unnamed",
}


SENTENCES: dict[str, str] = {
    "weights": "",
    "external_data": "pages of the model's files",
    "arena": "in use, or free but kept: not known which",
    "arena_in_use": "tensors and buffers of onnxruntime",
    "arena_slack": "free, kept by onnxruntime for later runs",
    "allocator_retained": "freed, not returned to the system",
    "runtime_libraries": "library pages that were used",
    "python": "interpreter, modules and objects",
    "other_libraries": "pages of other libraries and programs",
    "mapped_files": "files and shared memory",
    "thread_stacks": "",
    "other_heap": "blocks in use: graph, kernels, program",
    "unnamed": "not identified",
}
_ARENA: dict[str, tuple[str, str]] = {
    "in use": ("arena_in_use", "arena, in use"),
    "slack": ("arena_slack", "arena slack"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRow:
    """All owners of one kind, the parts of an arena apart.

    Attributes:
        id: the kind, or for a part of an arena ``arena_in_use`` or ``arena_slack``.
        share: the part of the resident set, 0 to 1; `percent` is its text.
        detail: the names of the parts with their sizes.
        sentence: what this memory is, in a few words.
    """

    id: str
    kind: OwnerKind
    label: str
    size_bytes: int
    size: str
    share: float
    percent: str
    detail: str
    sentence: str


def build(attribution: Attribution, *, trimmed_bytes: int = 0) -> tuple[OwnerRow, ...]:
    """Return a row for each kind of owner, the largest first, unidentified memory last.

    `trimmed_bytes` were returned by ``malloc_trim`` before the X-ray was taken. They count as
    retained by malloc, and as resident.
    """
    owners: dict[tuple[OwnerKind, str, str], list[Owner]] = {}
    for owner in attribution.owners:
        id: str = owner.kind
        label = LABELS[owner.kind]
        if owner.kind == "arena":
            id, label = _ARENA.get(owner.name, (id, label))
        owners.setdefault((owner.kind, id, label), []).append(owner)
    if trimmed_bytes > 0:
        kind: OwnerKind = "allocator_retained"
        trimmed = Owner(kind=kind, name="returned by malloc_trim", bytes=trimmed_bytes)
        owners.setdefault((kind, kind, LABELS[kind]), []).append(trimmed)
    resident = attribution.resident_bytes + max(0, trimmed_bytes)
    _part_with_file(owners.get(("weights", "weights", LABELS["weights"]), []), attribution)
    rows = [_row(key, parts, resident) for key, parts in owners.items()]
    rows = [_with_constants(row, attribution) for row in rows]
    return tuple(sorted(rows, key=lambda row: (row.kind == "unnamed", -row.size_bytes, row.id)))


def _part_with_file(parts: list[Owner], attribution: Attribution) -> None:
    """Replace what `parts` have of the model file's bytes by a part of its own."""
    size = sum(
        copy.resident_bytes
        for copy in attribution.copies
        if copy.weights == (MODEL_FILE,) and copy.live is not False
    )
    for part in [one for one in parts if one.name == "original" and size]:
        size = min(size, part.bytes)
        parts.remove(part)
        left = msgspec.structs.replace(part, bytes=part.bytes - size)
        parts += [left] if left.bytes else []
        parts.append(msgspec.structs.replace(part, name="the model file's bytes", bytes=size))


def _with_constants(row: OwnerRow, attribution: Attribution) -> OwnerRow:
    """Say what most of the other heap is, where that are weights without distinct content."""
    size = sum(group.bytes for group in attribution.indistinct)
    if row.kind != "other_heap" or not 0.5 * row.size_bytes <= size <= row.size_bytes:
        return row
    sentence = f"probably {format_size(size)} of weights that are not located, see below"
    return replace(row, sentence=sentence)


def owner_label(owner: Owner) -> str:
    """Return what one owner is called: ``weights (packed)``, ``arena slack``."""
    if owner.kind == "arena":
        return _ARENA.get(owner.name, ("", LABELS["arena"]))[1]
    layout = f" ({plain(owner.name)})" if owner.kind == "weights" else ""
    return f"{LABELS[owner.kind]}{layout}"


def named_share(attribution: Attribution) -> str:
    """Return how much is identified: ``99.7 % of the memory above the baseline is identified``."""
    above = attribution.baseline_bytes is not None
    of = "memory above the baseline" if above else "resident memory"
    return f"{percent(attribution.named_share)} of the {of} is identified"


def percent(share: float) -> str:
    """Return `share` (0 to 1) in per cent, never rounded up: what is not all is not ``100 %``."""
    tenths = math.floor(share * 1000 + 1e-9)
    if share > 0 and tenths == 0:
        return "< 0.1 %"
    return f"{tenths // 10} %" if tenths % 10 == 0 else f"{tenths / 10:.1f} %"


def decimals(largest: int) -> int:
    """Return the digits after the point that a column of MiB up to `largest` bytes has."""
    return 1 if largest < _FEW_MIB * MIB else 0


def short_size(size: int, digits: int) -> str:
    """Return `size` bytes in MiB without the unit; what rounds to nothing reads ``<1``."""
    text = mebibytes(size, digits)
    return f"<{10**-digits:.{digits}f}" if size > 0 and not text.strip("0.") else text


def _row(key: tuple[OwnerKind, str, str], parts: list[Owner], resident: int) -> OwnerRow:
    kind, id, label = key
    size = sum(part.bytes for part in parts)
    share = size / resident if resident else 0.0
    detail = _detail(kind, parts)
    return OwnerRow(
        id=id,
        kind=kind,
        label=label,
        size_bytes=size,
        size=format_size(size),
        share=share,
        percent=percent(share),
        detail=detail,
        sentence=detail if kind == "weights" else SENTENCES[id],
    )


def _detail(kind: OwnerKind, parts: list[Owner]) -> str:
    if kind == "unnamed":
        return ""
    parts = sorted(parts, key=lambda part: -part.bytes)
    if len(parts) == 1:
        return plain(parts[0].name)
    return " · ".join(f"{plain(part.name)} {format_size(part.bytes)}" for part in parts)
