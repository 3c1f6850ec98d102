"""Records of memory limits, built by hand."""

from typing import Any

import msgspec

from memdiag.records.device import Device
from memdiag.records.dimension import Dimension
from memdiag.records.limit import CountedMemory, LimitPoint, MemoryLimit
from memdiag.units import MIB


def point(mebibytes: int | None, latency_s: float = 0.1, **fields: Any) -> LimitPoint:
    """Return a trial that completed, unless `fields` state otherwise."""
    made = LimitPoint(
        limit_bytes=None if mebibytes is None else mebibytes * MIB,
        outcome="completed",
        load_s=1.0,
        latency_s=latency_s,
        peak_bytes=(mebibytes or 300) * MIB,
    )
    return msgspec.structs.replace(made, **fields)


def killed(mebibytes: int, **fields: Any) -> LimitPoint:
    """Return a trial that was killed."""
    ended: dict[str, Any] = {
        "outcome": "killed",
        "phase": "prepack",
        "load_s": None,
        "latency_s": None,
        "message": "killed at the limit (SIGKILL by the kernel)",
    }
    return point(mebibytes, **{**ended, **fields})


def limit(**fields: Any) -> MemoryLimit:
    """Return a record of a model that is slow in 240 MiB, not in 260, and killed in 230."""
    slow: dict[str, Any] = {"latency_s": 0.15, "refault_bytes": 80 * MIB, "is_slow": True}
    made = MemoryLimit(
        subject="models/encoder.onnx",
        kind="model",
        smallest_bytes=240 * MIB,
        comfortable_bytes=260 * MIB,
        request_bytes=270 * MIB,
        limit_bytes=324 * MIB,
        is_measured_under_limits=True,
        margin=0.2,
        uncounted_bytes=10 * MIB,
        counted=CountedMemory(
            anonymous_bytes=180 * MIB, file_bytes=50 * MIB, kernel_bytes=700 * 1024
        ),
        group_version=1,
        max_slowdown=1.05,
        points=(
            point(None),
            point(None, 0.102),
            point(260, 0.103),
            *(point(240, **slow) for _ in range(3)),
            killed(230),
        ),
        dimensions=(
            Dimension(name="batch", size=1, role="batch", source="chosen", reason="a batch"),
        ),
        onnxruntime="1.32.0",
        notes=("the control group of memdiag is itself limited to 2.00 GiB",),
        duration_s=41.0,
    )
    return msgspec.structs.replace(made, **fields)


def of_gpu() -> MemoryLimit:
    """Return a record of the memory on a GPU: it works in 168 MiB, and fails in 160."""
    failed: dict[str, Any] = {
        "outcome": "failed",
        "phase": "first_run",
        "message": "Available memory of 33554432 is smaller than requested bytes of 41943040",
    }
    return limit(
        smallest_bytes=168 * MIB,
        comfortable_bytes=168 * MIB,
        request_bytes=168 * MIB,
        limit_bytes=202 * MIB,
        uncounted_bytes=0,
        counted=None,
        group_version=None,
        points=(
            *(point(None, 0.01, peak_bytes=256 * MIB, device_bytes=929 * MIB) for _ in range(2)),
            *(point(168, 0.0102, device_bytes=841 * MIB) for _ in range(3)),
            killed(160, **failed),
        ),
        notes=(),
        device=Device(name="NVIDIA H100 80GB HBM3", total_bytes=80 << 30),
    )


def without_group() -> MemoryLimit:
    """Return a record where no control group could be created."""
    return limit(
        smallest_bytes=None,
        comfortable_bytes=None,
        is_measured_under_limits=False,
        uncounted_bytes=0,
        counted=None,
        measured_peak_bytes=280 * MIB,
        estimated_bytes=310 * MIB,
        request_bytes=310 * MIB,
        limit_bytes=372 * MIB,
        group_version=None,
        points=(point(None, peak_bytes=None),),
        notes=(),
        message="/sys/fs/cgroup: control groups are mounted read-only, as in most containers.",
    )


def program() -> MemoryLimit:
    """Return a record of a program."""
    return limit(
        subject="python app.py --port 80",
        kind="program",
        smallest_bytes=260 * MIB,
        points=(
            point(None, load_s=None),
            point(260, load_s=None),
            killed(250, phase="", message="killed at the limit after 2.0 s"),
        ),
        dimensions=(),
        onnxruntime=None,
    )
