"""memdiag: the memory profiler and diagnostician for ONNX models under ONNX Runtime.

>>> profile = memdiag.profile("model.onnx")
>>> profile.peak_phase, profile.peak_rss_bytes - profile.baseline_rss_bytes

Importing this module loads nothing else; each name below does when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memdiag.api.check import check
    from memdiag.api.compare import compare
    from memdiag.api.fix import fix
    from memdiag.api.inspect import inspect
    from memdiag.api.load_profile import load_profile
    from memdiag.api.load_record import load
    from memdiag.api.profile import profile
    from memdiag.api.tune import tune
    from memdiag.api.xray import xray
    from memdiag.errors import MemdiagError
    from memdiag.records.comparison import Comparison
    from memdiag.records.finding import Finding, Findings
    from memdiag.records.fix import Fix
    from memdiag.records.profile import Profile

__version__ = "0.1.0"

__all__ = [
    "Comparison",
    "Finding",
    "Findings",
    "Fix",
    "MemdiagError",
    "Profile",
    "check",
    "compare",
    "fix",
    "inspect",
    "load",
    "load_profile",
    "profile",
    "tune",
    "xray",
]

_HOMES = {
    "MemdiagError": "memdiag.errors",
    "Profile": "memdiag.records.profile",
    "Comparison": "memdiag.records.comparison",
    "Finding": "memdiag.records.finding",
    "Findings": "memdiag.records.finding",
    "Fix": "memdiag.records.fix",
    "check": "memdiag.api.check",
    "compare": "memdiag.api.compare",
    "fix": "memdiag.api.fix",
    "inspect": "memdiag.api.inspect",
    "load": "memdiag.api.load_record",
    "load_profile": "memdiag.api.load_profile",
    "profile": "memdiag.api.profile",
    "tune": "memdiag.api.tune",
    "xray": "memdiag.api.xray",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'memdiag' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted((*__all__, "__version__"))
