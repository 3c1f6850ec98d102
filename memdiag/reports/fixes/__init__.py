"""A fix becomes files and a summary, as a profile does."""

from memdiag.records.fix import Fix
from memdiag.reports.files import Reporters

REPORTERS = Reporters[Fix](__name__, "fix")

write = REPORTERS.write
