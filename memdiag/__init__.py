"""memdiag: the memory profiler and diagnostician for ONNX models under ONNX Runtime.

>>> profile = memdiag.profile("model.onnx")
>>> profile.peak_phase, profile.peak_above_bytes

Importing this package loads nothing else: each name below is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memdiag.api.check import check
    from memdiag.api.compare import compare
    from memdiag.api.estimate import estimate
    from memdiag.api.fix import fix
    from memdiag.api.leak import leak
    from memdiag.api.limit import limit
    from memdiag.api.load import load, load_profile
    from memdiag.api.profile import profile
    from memdiag.api.recording import recording
    from memdiag.api.run import run
    from memdiag.api.sweep import sweep
    from memdiag.api.xray import xray
    from memdiag.errors import MemdiagError
    from memdiag.records.comparison import Comparison
    from memdiag.records.estimate import Estimate
    from memdiag.records.finding import Finding, Findings
    from memdiag.records.fix import Fix
    from memdiag.records.growth import Growth
    from memdiag.records.limit import MemoryLimit
    from memdiag.records.profile import Profile
    from memdiag.records.run import ProgramRun
    from memdiag.records.sweep import Sweep

__version__ = "0.1.0"

__all__ = [
    "Comparison",
    "Estimate",
    "Finding",
    "Findings",
    "Fix",
    "Growth",
    "MemdiagError",
    "MemoryLimit",
    "Profile",
    "ProgramRun",
    "Sweep",
    "check",
    "compare",
    "estimate",
    "fix",
    "leak",
    "limit",
    "load",
    "load_profile",
    "profile",
    "recording",
    "run",
    "sweep",
    "xray",
]

_MODULE_OF_NAME = {
    "MemdiagError": "memdiag.errors",
    "MemoryLimit": "memdiag.records.limit",
    "Profile": "memdiag.records.profile",
    "ProgramRun": "memdiag.records.run",
    "Sweep": "memdiag.records.sweep",
    "Comparison": "memdiag.records.comparison",
    "Estimate": "memdiag.records.estimate",
    "Finding": "memdiag.records.finding",
    "Findings": "memdiag.records.finding",
    "Fix": "memdiag.records.fix",
    "Growth": "memdiag.records.growth",
    "check": "memdiag.api.check",
    "compare": "memdiag.api.compare",
    "estimate": "memdiag.api.estimate",
    "fix": "memdiag.api.fix",
    "leak": "memdiag.api.leak",
    "limit": "memdiag.api.limit",
    "load": "memdiag.api.load",
    "load_profile": "memdiag.api.load",
    "profile": "memdiag.api.profile",
    "recording": "memdiag.api.recording",
    "run": "memdiag.api.run",
    "sweep": "memdiag.api.sweep",
    "xray": "memdiag.api.xray",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module 'memdiag' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF_NAME[name]), name)


def __dir__() -> list[str]:
    return sorted((*__all__, "__version__"))
