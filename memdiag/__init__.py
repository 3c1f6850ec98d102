"""memdiag: the memory profiler and diagnostician for ONNX models under ONNX Runtime.

>>> profile = memdiag.profile("model.onnx")
>>> profile.peak_phase, profile.peak_above_bytes

Importing this package loads nothing else: each name below is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # "as" makes a name public for type checkers
    from memdiag.api.check import check as check
    from memdiag.api.compare import compare as compare
    from memdiag.api.estimate import estimate as estimate
    from memdiag.api.estimate_device import estimate_device as estimate_device
    from memdiag.api.fix import fix as fix
    from memdiag.api.leak import leak as leak
    from memdiag.api.limit import limit as limit
    from memdiag.api.load import load as load
    from memdiag.api.load import load_profile as load_profile
    from memdiag.api.profile import profile as profile
    from memdiag.api.recording import recording as recording
    from memdiag.api.run import run as run
    from memdiag.api.sweep import sweep as sweep
    from memdiag.api.xray import xray as xray
    from memdiag.errors import MemdiagError as MemdiagError
    from memdiag.records.comparison import Comparison as Comparison
    from memdiag.records.device_estimate import DeviceEstimate as DeviceEstimate
    from memdiag.records.estimate import Estimate as Estimate
    from memdiag.records.finding import Finding as Finding
    from memdiag.records.finding import Findings as Findings
    from memdiag.records.fix import Fix as Fix
    from memdiag.records.growth import Growth as Growth
    from memdiag.records.limit import MemoryLimit as MemoryLimit
    from memdiag.records.profile import Profile as Profile
    from memdiag.records.run import ProgramRun as ProgramRun
    from memdiag.records.sweep import Sweep as Sweep

__version__ = "0.1.0"

_MODULE_OF_NAME = {
    "Comparison": "memdiag.records.comparison",
    "DeviceEstimate": "memdiag.records.device_estimate",
    "Estimate": "memdiag.records.estimate",
    "Finding": "memdiag.records.finding",
    "Findings": "memdiag.records.finding",
    "Fix": "memdiag.records.fix",
    "Growth": "memdiag.records.growth",
    "MemdiagError": "memdiag.errors",
    "MemoryLimit": "memdiag.records.limit",
    "Profile": "memdiag.records.profile",
    "ProgramRun": "memdiag.records.run",
    "Sweep": "memdiag.records.sweep",
    "check": "memdiag.api.check",
    "compare": "memdiag.api.compare",
    "estimate": "memdiag.api.estimate",
    "estimate_device": "memdiag.api.estimate_device",
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
__all__ = list(_MODULE_OF_NAME)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module 'memdiag' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF_NAME[name]), name)


def __dir__() -> list[str]:
    return sorted((*__all__, "__version__"))
