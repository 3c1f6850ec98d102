"""The processor of this machine, as far as kernels of onnxruntime depend on it."""

import platform
from functools import cache
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")


@cache
def has_sme() -> bool:
    """Return whether this is an Arm processor with SME, the scalable matrix extension.

    Where the system does not tell, the answer is False.
    """
    if platform.machine().lower() not in ("arm64", "aarch64"):
        return False
    try:
        lines = _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return any("sme" in line.split() for line in lines if line.startswith("Features"))
