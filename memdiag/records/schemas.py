"""The JSON Schemas of the records, generated from them and stored next to this file.

``python -m memdiag.records.schemas`` writes them again after a record has changed.
"""

from pathlib import Path

from memdiag.records.attribution import Attribution
from memdiag.records.base import Record
from memdiag.records.baseline import Baseline
from memdiag.records.codec import json_schema
from memdiag.records.comparison import Comparison
from memdiag.records.device_estimate import DeviceEstimate
from memdiag.records.estimate import Estimate
from memdiag.records.finding import Check
from memdiag.records.fix import Fix
from memdiag.records.growth import Growth
from memdiag.records.limit import MemoryLimit
from memdiag.records.profile import Profile
from memdiag.records.run import ProgramRun
from memdiag.records.sweep import Sweep

RECORD_BY_SCHEMA: dict[str, type[Record]] = {
    "memdiag.attribution-1": Attribution,
    "memdiag.baseline-1": Baseline,
    "memdiag.check-1": Check,
    "memdiag.comparison-1": Comparison,
    "memdiag.estimate-1": Estimate,
    "memdiag.fix-1": Fix,
    "memdiag.gpu-1": DeviceEstimate,
    "memdiag.growth-1": Growth,
    "memdiag.limit-1": MemoryLimit,
    "memdiag.profile-1": Profile,
    "memdiag.run-1": ProgramRun,
    "memdiag.sweep-1": Sweep,
}


ReportedRecord = (
    Profile
    | Comparison
    | Fix
    | Attribution
    | ProgramRun
    | Growth
    | Estimate
    | DeviceEstimate
    | Sweep
    | MemoryLimit
)
"""The records that have reports."""


def schema_path(name: str) -> Path:
    """Return the file of the schema `name`."""
    return Path(__file__).with_name(f"{name}.schema.json")


if __name__ == "__main__":
    for name, kind in RECORD_BY_SCHEMA.items():
        schema_path(name).write_text(json_schema(kind))
