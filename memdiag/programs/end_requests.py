"""Requests of a recorded process to end its recording: see `memdiag.programs.recording_process`.

It is a module of its own because the recorded process imports it and must stay small.
"""

from typing import Final

END_REQUEST: Final = b"e"
"""End the recording and answer with the record."""

END_WITH_REPORTS: Final = b"r"
"""The same, and write the record to the folder before the answer, and the reports after it."""
