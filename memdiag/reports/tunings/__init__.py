"""A tuning, which is a fix with the points that were measured, becomes files and a summary."""

from memdiag.records.fix import Fix
from memdiag.reports.files import Reporters

REPORTERS = Reporters[Fix](__name__, "tuning")

write = REPORTERS.write
