"""The kinds of records that become reports, and where the reporters of each are."""

from typing import Any

from memdiag import reports
from memdiag.records.attribution import Attribution
from memdiag.records.comparison import Comparison
from memdiag.records.fix import Fix
from memdiag.records.profile import Profile
from memdiag.reports import comparison, fixes, tunings, xrays
from memdiag.reports.files import Reporters

Reported = Profile | Comparison | Fix | Attribution


def reporters_of(record: Reported) -> Reporters[Any]:
    """Return the reporters of `record`; a fix that has points is a tuning."""
    if isinstance(record, Profile):
        return reports.REPORTERS
    if isinstance(record, Comparison):
        return comparison.REPORTERS
    if isinstance(record, Attribution):
        return xrays.REPORTERS
    return tunings.REPORTERS if record.points else fixes.REPORTERS
