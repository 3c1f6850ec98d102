"""A pause of processes between two runs, in which ``memdiag leak`` reads their memory."""

from collections.abc import Callable
from dataclasses import dataclass

from memdiag.programs.events import BetweenRuns
from memdiag.programs.hook.record_sessions import PAUSE_PERIOD
from memdiag.programs.recorded_process import RecordedProcess


@dataclass(frozen=True)
class RunPause:
    """A pause of a process between two runs, at most once a period, in which its memory is read.

    Attributes:
        period_s: the seconds between two pauses.
        read: called with the process, the seconds since the start of the recording, and the event
            of the process that waits. It returns the seconds until the next reading.
    """

    period_s: float
    read: Callable[[RecordedProcess, float, BetweenRuns], float]

    @property
    def environment(self) -> dict[str, str]:
        """The environment variable that tells the hook to pause."""
        return {PAUSE_PERIOD: str(self.period_s)}
