"""A part of a recording that is under way, as the recording process answers it."""

from memdiag.records.base import Record
from memdiag.records.run import Caller, HighWaterRun


class PartSession(Record, frozen=True, kw_only=True):
    """A session that was created in the part.

    Attributes:
        number: the number of the session in the recording, from 1.
        pid: its process.
        model: the path of the model; None if the session was created from bytes.
        model_bytes: the size of these bytes; None for a file.
        library: the distribution whose code created the session; None for other code.
        created_at: file and line of the call.
        callers: the calls that led to the creation, the nearest first.
    """

    number: int
    pid: int
    model: str | None
    model_bytes: int | None
    library: str | None
    created_at: str
    callers: tuple[Caller, ...]


class RecordingPart(Record, frozen=True, kw_only=True):
    """A part of a recording.

    Attributes:
        sessions: the sessions that were created; failed creations are left out.
        peak_rss_bytes: the largest sum of the resident sets of all processes.
        peak_sessions: the numbers of the sessions that were being created or run for the first time
            at that moment.
        peak_run: the later run that raised the high-water mark of its process to the largest size;
            None if no run did.
    """

    sessions: tuple[PartSession, ...]
    peak_rss_bytes: int
    peak_sessions: tuple[int, ...]
    peak_run: HighWaterRun | None
