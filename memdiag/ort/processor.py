"""The processor of this machine, as far as kernels of onnxruntime depend on it."""

import platform
from functools import cache
from pathlib import Path

_CPUINFO_FILE = Path("/proc/cpuinfo")


@cache
def has_sme() -> bool:
    """Return whether this is an Arm processor with SME, the scalable matrix extension.

    Return False if the system does not tell.
    """
    return platform.machine().lower() in ("arm64", "aarch64") and _has_cpu_feature(
        "Features", "sme"
    )


@cache
def has_amx() -> bool:
    """Return whether this is an x86 processor with AMX for 8-bit products.

    Return False if the system does not tell.
    """
    return platform.machine().lower() in ("amd64", "x86_64") and _has_cpu_feature(
        "flags", "amx_int8"
    )


def _has_cpu_feature(label: str, feature: str) -> bool:
    try:
        lines = _CPUINFO_FILE.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return any(feature in line.split() for line in lines if line.startswith(label))
