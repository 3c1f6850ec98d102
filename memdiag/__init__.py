"""memdiag: the memory profiler and diagnostician for ONNX models under ONNX Runtime.

>>> profile = memdiag.profile("model.onnx")
>>> profile.peak_phase, profile.peak_rss_bytes - profile.baseline_rss_bytes

Importing this module loads nothing else; each name below does when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memdiag.errors import MemdiagError
    from memdiag.records.comparison import Comparison
    from memdiag.records.finding import Finding, Findings
    from memdiag.records.fix import Fix
    from memdiag.records.profile import Profile
    from memdiag.workflows.check import check
    from memdiag.workflows.compare import compare
    from memdiag.workflows.fix import fix
    from memdiag.workflows.inspect import inspect
    from memdiag.workflows.load_profile import load_profile
    from memdiag.workflows.load_record import load
    from memdiag.workflows.profile import profile
    from memdiag.workflows.tune import tune
    from memdiag.workflows.xray import xray

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
    "check": "memdiag.workflows.check",
    "compare": "memdiag.workflows.compare",
    "fix": "memdiag.workflows.fix",
    "inspect": "memdiag.workflows.inspect",
    "load": "memdiag.workflows.load_record",
    "load_profile": "memdiag.workflows.load_profile",
    "profile": "memdiag.workflows.profile",
    "tune": "memdiag.workflows.tune",
    "xray": "memdiag.workflows.xray",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'memdiag' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted((*__all__, "__version__"))
