"""Reports: records as pages, Markdown, pictures, and summaries on a terminal.

Each kind of record has a module: what it says, its tables, its summary, its page and its picture.
"""

from importlib import import_module
from typing import Any

from memdiag.records.attribution import Attribution
from memdiag.records.comparison import Comparison
from memdiag.records.fix import Fix
from memdiag.records.profile import Profile
from memdiag.records.run import ProgramRun
from memdiag.records.tuning import Tuning
from memdiag.reports.report import Report

Reported = Profile | Comparison | Fix | Tuning | Attribution | ProgramRun
"""The records that are written to files."""

MODULES: dict[str, str] = {
    "profile": "memdiag.reports.profile",
    "comparison": "memdiag.reports.comparison",
    "fix": "memdiag.reports.fix",
    "tuning": "memdiag.reports.tuning",
    "X-ray": "memdiag.reports.xray",
    "run": "memdiag.reports.run",
}
"""The module of each kind of record; it has a `REPORT`."""


def kind_of(record: Reported) -> str:
    """Return the kind of `record`."""
    kinds = {
        Profile: "profile",
        Comparison: "comparison",
        Fix: "fix",
        Tuning: "tuning",
        Attribution: "X-ray",
        ProgramRun: "run",
    }
    return kinds[type(record)]


def report_of(record: Reported) -> Report[Any]:
    """Return the report of `record`."""
    return report(kind_of(record))


def report(kind: str) -> Report[Any]:
    """Return the report of a `kind` of record."""
    # Imported on demand: a command that prints one record needs no other.
    report: Report[Any] = import_module(MODULES[kind]).REPORT
    return report
