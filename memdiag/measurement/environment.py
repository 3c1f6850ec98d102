"""The machine that a measurement was made on, as far as it matters and is nobody's business."""

import os
import platform
from pathlib import Path

import psutil

from memdiag.records.profile import Environment

# Widest first, by Linux's names: the sets that the runtime's CPU kernels tell apart.
_VECTORS = ("avx512_vnni", "avx512f", "avx2", "avx", "sse4_1", "i8mm", "asimddp", "asimd")
_HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"


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
        machine=machine_class(),
    )


def machine_class() -> str:
    """Return what of this machine decides on memory: ``Linux x86_64 avx512_vnni glibc``.

    Kernels choose their layouts by the vector instructions, and the C library and transparent huge
    pages decide how memory is kept and rounded.
    """
    flags = _cpu_facts("flags", "Features").split()
    vectors = next((name for name in _VECTORS if name in flags), "")
    parts = (platform.system(), platform.machine(), vectors, platform.libc_ver()[0])
    huge = "huge pages" if "[always]" in _text(Path(_HUGE_PAGES)) else ""
    return " ".join(part for part in (*parts, huge) if part)


def _cpu_name() -> str:
    return _cpu_facts("model name") or platform.processor() or platform.machine()


def _cpu_facts(*names: str) -> str:
    """Return what ``/proc/cpuinfo`` says of the first processor under the first of `names`."""
    fields = (line.partition(":") for line in _text(Path("/proc/cpuinfo")).splitlines())
    return next((value.strip() for name, _, value in fields if name.strip() in names), "")


def _text(path: Path) -> str:
    """Return what a file of the system's holds, nothing where it has none."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _cpu_count() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
