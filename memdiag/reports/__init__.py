"""Reports: records as pages, Markdown, pictures, and summaries on a terminal.

Each kind of record has a module with its answer, its tables, its summary, its page and its picture.
"""

from importlib import import_module
from typing import Any

from memdiag.records.attribution import Attribution
from memdiag.records.comparison import Comparison
from memdiag.records.device_estimate import DeviceEstimate
from memdiag.records.estimate import Estimate
from memdiag.records.fix import Fix
from memdiag.records.growth import Growth
from memdiag.records.limit import MemoryLimit
from memdiag.records.profile import Profile
from memdiag.records.run import ProgramRun
from memdiag.records.schemas import ReportedRecord
from memdiag.records.sweep import Sweep
from memdiag.reports.report import Report

REPORT_MODULES: dict[type[ReportedRecord], str] = {
    Profile: "memdiag.reports.profile",
    Comparison: "memdiag.reports.comparison",
    Fix: "memdiag.reports.fix",
    Attribution: "memdiag.reports.xray",
    ProgramRun: "memdiag.reports.run",
    Growth: "memdiag.reports.growth",
    Estimate: "memdiag.reports.estimate",
    DeviceEstimate: "memdiag.reports.device_estimate",
    Sweep: "memdiag.reports.sweep",
    MemoryLimit: "memdiag.reports.limit",
}
"""The module of each kind of record; it has a `REPORT`."""


def report_of(record: ReportedRecord) -> Report[Any]:
    """Return the report of `record`."""
    return report_for(type(record))


def report_for(kind: type[ReportedRecord]) -> Report[Any]:
    """Return the report of records of the type `kind`."""
    # Imported on demand: a command that prints one record needs no other.
    report: Report[Any] = import_module(REPORT_MODULES[kind]).REPORT
    return report
