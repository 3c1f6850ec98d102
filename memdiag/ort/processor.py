"""The processor of this machine, as far as kernels of onnxruntime depend on it."""

import platform
import subprocess
import sys
from functools import cache
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_SYSCTL = ("sysctl", "-n", "hw.optional.arm.FEAT_SME")


@cache
def has_sme() -> bool:
    """Return whether this is an Arm processor with SME, the scalable matrix extension.

    Apple's have it since M4. Where the system does not tell, the answer is False.
    """
    if platform.machine().lower() not in ("arm64", "aarch64"):
        return False
    try:
        if sys.platform == "darwin":
            done = subprocess.run(_SYSCTL, capture_output=True, text=True, timeout=5, check=True)
            return done.stdout.strip() == "1"
        lines = _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, subprocess.SubprocessError):
        return False
    return any("sme" in line.split() for line in lines if line.startswith("Features"))
