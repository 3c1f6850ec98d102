"""Machine description: versions, CPU, memory. Contains nothing that identifies a host or person."""

import os
import platform
from pathlib import Path

import psutil

from memdiag.records.profile import Environment

# The instruction sets between which CPU kernels choose, in Linux's names, the widest first.
_VECTOR_EXTENSIONS = ("avx512_vnni", "avx512f", "avx2", "avx", "sse4_1", "i8mm", "asimddp", "asimd")
_HUGE_PAGES_FILE = "/sys/kernel/mm/transparent_hugepage/enabled"


def describe_machine(
    memdiag: str,
    onnxruntime: str | None,
    python: str | None,
    *,
    memory_limit_bytes: int | None = None,
    cpu_quota: float | None = None,
) -> Environment:
    """Return the environment of a child that ran `onnxruntime` under `python` (None if unknown).

    `memory_limit_bytes` and `cpu_quota` are the limits of its control groups.
    """
    return Environment(
        memdiag=memdiag,
        onnxruntime=onnxruntime,
        python=python,
        platform=platform.platform(),
        cpu=_cpu_name(),
        cpu_count=len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        machine=machine_class(),
        memory_limit_bytes=memory_limit_bytes,
        cpu_quota=cpu_quota,
    )


def machine_class() -> str:
    """Return the properties on which memory depends, such as ``Linux x86_64 avx512_vnni glibc``.

    Kernels choose their layouts by the vector instructions; the C library and transparent huge
    pages decide how memory is retained and rounded.
    """
    flags = _cpu_facts("flags", "Features").split()
    vector_extension = next((name for name in _VECTOR_EXTENSIONS if name in flags), "")
    parts = (platform.system(), platform.machine(), vector_extension, platform.libc_ver()[0])
    huge_pages = "huge pages" if "[always]" in _system_file_text(Path(_HUGE_PAGES_FILE)) else ""
    return " ".join(part for part in (*parts, huge_pages) if part)


def _cpu_name() -> str:
    return _cpu_facts("model name") or platform.processor() or platform.machine()


def _cpu_facts(*names: str) -> str:
    """Return the value in ``/proc/cpuinfo`` of the first processor for any of `names`."""
    fields = (line.partition(":") for line in _system_file_text(Path("/proc/cpuinfo")).splitlines())
    return next((value.strip() for name, _, value in fields if name.strip() in names), "")


def _system_file_text(path: Path) -> str:
    """Return the text of a system file, empty if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
