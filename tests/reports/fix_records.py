"""Fixes made by hand, and what makes any text of a record hostile."""

from typing import Any, TypeVar

import msgspec

from memdiag.records.base import Record
from memdiag.records.fix import FIX_SCHEMA, Fix, Remedy
from memdiag.records.measured_change import Figures, LatencyAt
from memdiag.units import MIB
from tests.reports import profiles

R = TypeVar("R", bound=Record)

EVIL = f"\x1b[31m\n\u202e{profiles.HOSTILE}{'界' * 30} {'m' * 300}"
_FIXED = ("schema", "status", "load_from", "ended_by", "clock")  # they have a choice of values


def remedy(name: str, *weights: str, status: Any = "applied") -> Remedy:
    return Remedy(name=name, rule="a-rule", status=status, reason="because", weights=weights)


def figures(peak: int, steady: int, mapped: int, disk: int, unread: int = 0) -> Figures:
    """Figures in MiB."""
    return Figures(
        peak_bytes=peak * MIB,
        peak_spread_bytes=2 * MIB,
        steady_bytes=steady * MIB,
        steady_spread_bytes=0,
        anonymous_bytes=(steady - mapped) * MIB,
        file_bytes=mapped * MIB,
        load_s=0.65,
        latency_s=0.004,
        disk_bytes=disk * MIB,
        unread_table_bytes=unread * MIB,
    )


def latency(inputs: str, ratio: float, low: float, high: float) -> LatencyAt:
    return LatencyAt(
        inputs=inputs,
        before_s=0.01,
        after_s=0.01 * ratio,
        ratio=ratio,
        low=low,
        high=high,
        pairs=25,
    )


def verified(**changes: Any) -> Fix:
    """Return a fix whose output stands beside the original."""
    made = Fix(
        schema=FIX_SCHEMA,
        model="dir/m.onnx",
        onnxruntime="1.31.1",
        output="dir/m.fixed.onnx",
        output_files=("dir/m.fixed.onnx", "dir/m.onnx"),
        kept_files=("dir/m.onnx",),
        kept_bytes=500 * MIB,
        remedies=(
            remedy("slow-one", "w", status="rejected"),
            remedy("good-one", "w"),
            remedy("no-one", "v", status="refused"),
        ),
        before=figures(1583, 1500, 8, 500),
        after=figures(559, 540, 510, 501),
        latencies=(latency("size 1", 0.99, 0.97, 1.01), latency("size 4", 1.02, 0.98, 1.05)),
        largest_difference=2.4e-6,
        bound=6.1e-5,
        bound_reason="sums of 1,024 products",
        verified=True,
        verified_on=("1.31.1",),
        is_valid=True,
        oldest_onnxruntime="1.20.0",
        notes=("a note",),
        duration_s=34.0,
        command=("memdiag", "fix", "dir/m.onnx"),
    )
    return msgspec.structs.replace(made, **changes)


_NOTHING_WRITTEN: dict[str, Any] = {
    "output": None,
    "output_files": (),
    "kept_files": (),
    "kept_bytes": 0,
    "after": None,
    "latencies": (),
    "largest_difference": None,
    "verified_on": (),
}


def nothing_found() -> Fix:
    return verified(**_NOTHING_WRITTEN, remedies=(), before=None)


def all_rejected() -> Fix:
    return verified(**_NOTHING_WRITTEN, remedies=(remedy("slow-one", "w", status="rejected"),))


def dry_run() -> Fix:
    possible = (remedy("good-one", "w", status="possible"),)
    return verified(**_NOTHING_WRITTEN, remedies=possible, before=None)


def unverified() -> Fix:
    return verified(
        remedies=(remedy("good-one", "w", status="unverified"),),
        before=None,
        after=None,
        latencies=(),
        largest_difference=None,
        bound=None,
        verified=False,
        verified_on=(),
    )


def hostile(record: R) -> R:
    """Return `record` with something hostile behind each of its texts."""
    return msgspec.convert(_hostile(msgspec.to_builtins(record)), type(record), strict=False)


def _hostile(value: Any) -> Any:
    if isinstance(value, str):
        return value + EVIL if value else value
    if isinstance(value, list | tuple):
        return [_hostile(each) for each in value]
    if isinstance(value, dict):
        return {name: each if name in _FIXED else _hostile(each) for name, each in value.items()}
    return value


ALL = (verified, nothing_found, all_rejected, dry_run, unverified)
