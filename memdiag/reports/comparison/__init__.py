"""A comparison becomes files and a summary, as a profile does."""

from memdiag.records.comparison import Comparison
from memdiag.reports.files import Reporters

REPORTERS = Reporters[Comparison](__name__, "comparison")

write = REPORTERS.write
