"""The resident set divided among owners: how much each kind has, and what it consists of."""

import math
from dataclasses import dataclass

from memdiag.records.attribution import Attribution, Owner, OwnerKind
from memdiag.reporters.views.phase_table import mebibytes
from memdiag.reporters.views.text import plain
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


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRow:
    """All owners of one kind: their bytes, in text, and as a share of the resident set (0 to 1).

    `detail` names the parts. `brief` is the figure in MiB for a line of many, with what of an
    arena is slack and how much of what is above the baseline has no name.
    """

    kind: OwnerKind
    label: str
    size_bytes: int
    size: str
    share: float
    percent: str
    detail: str
    brief: str


def build(attribution: Attribution) -> tuple[OwnerRow, ...]:
    """Return a row a kind of owner: the weights first, the largest next, what has no name last."""
    owners: dict[OwnerKind, list[Owner]] = {}
    for owner in attribution.owners:
        owners.setdefault(owner.kind, []).append(owner)
    rows = [_row(attribution, kind, parts) for kind, parts in owners.items()]
    return tuple(
        sorted(
            rows,
            key=lambda row: (row.kind == "unnamed", row.kind != "weights", -row.size_bytes),
        )
    )


def line(attribution: Attribution) -> str:
    """Return the owners in one line: ``1,579 MiB resident: weights 1,500 · Python 22 · …``."""
    resident = mebibytes(attribution.resident_bytes, decimals(attribution.resident_bytes))
    parts = " · ".join(f"{row.label} {row.brief}" for row in build(attribution))
    return f"{resident} MiB resident: {parts}" if parts else f"{resident} MiB resident"


def named_share(attribution: Attribution) -> str:
    """Return in words how much has a name: ``99.7 % of what is above the baseline has a name``."""
    of = "of what is above the baseline" if _has_baseline(attribution) else "of what is resident"
    return f"{percent(attribution.named_share)} {of} has a name"


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


def _row(attribution: Attribution, kind: OwnerKind, parts: list[Owner]) -> OwnerRow:
    size = sum(part.bytes for part in parts)
    resident = attribution.resident_bytes
    share = size / resident if resident else 0.0
    return OwnerRow(
        kind=kind,
        label=LABELS[kind],
        size_bytes=size,
        size=format_size(size),
        share=share,
        percent=percent(share),
        detail=_detail(kind, parts),
        brief=_brief(attribution, kind, parts),
    )


def _detail(kind: OwnerKind, parts: list[Owner]) -> str:
    if kind == "unnamed":
        return ""
    parts = sorted(parts, key=lambda part: -part.bytes)
    if len(parts) == 1:
        return plain(parts[0].name)
    return " · ".join(f"{plain(part.name)} {format_size(part.bytes)}" for part in parts)


def _brief(attribution: Attribution, kind: OwnerKind, parts: list[Owner]) -> str:
    digits = decimals(attribution.resident_bytes)
    size = short_size(sum(part.bytes for part in parts), digits)
    slack = sum(part.bytes for part in parts if part.name == "slack")
    if kind == "arena" and slack:
        return f"{size} ({short_size(slack, digits)} slack)"
    if kind == "unnamed":
        above = " above the baseline" if _has_baseline(attribution) else ""
        return f"{size} ({_unnamed(attribution)}{above})"
    return size


def _unnamed(attribution: Attribution) -> str:
    # The complement of the named share as it is printed, so that both add up to the whole.
    tenths = 1000 - math.floor(attribution.named_share * 1000 + 1e-9)
    return f"{tenths // 10} %" if tenths % 10 == 0 else f"{tenths / 10:.1f} %"


def _has_baseline(attribution: Attribution) -> bool:
    return attribution.baseline_bytes is not None
