"""A profile becomes files and a summary; other kinds of records do in packages of their own.

What a reporter is, and how one is found, is told in `memdiag.reports.files`.
"""

from memdiag.records.profile import Profile
from memdiag.reports.files import Reporters

DEFAULT_FORMATS = ("html", "png", "markdown", "json")
"""What every kind of record is written as unless something else is asked for."""

REPORTERS = Reporters[Profile](__name__, "profile")

formats, render, write = REPORTERS.formats, REPORTERS.render, REPORTERS.write
