"""An X-ray of a process becomes files and a summary, as a profile does."""

from memdiag.records.attribution import Attribution
from memdiag.reports.files import Reporters

REPORTERS = Reporters[Attribution](__name__, "X-ray")
