"""The machine that a measurement was made on, as far as it matters and is nobody's business."""

import os
import platform
from pathlib import Path

import psutil

from memdiag.records.profile import Environment


def describe(memdiag: str, onnxruntime: str | None, python: str | None) -> Environment:
    """Return the environment of a child that ran `onnxruntime` under `python` (None: unknown)."""
    return Environment(
        memdiag=memdiag,
        onnxruntime=onnxruntime,
        python=python,
        platform=platform.platform(),
        cpu=_cpu_name(),
        cpu_count=_cpu_count(),
        memory_bytes=psutil.virtual_memory().total,
    )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _cpu_count() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
