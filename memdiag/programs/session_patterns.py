"""Uses of sessions that one rule reports and that another rule therefore leaves out."""

from collections.abc import Iterator, Sequence
from math import prod
from statistics import median
from typing import NamedTuple

from memdiag.programs.session_facts import created_sessions, sessions_by_key, slack_bytes
from memdiag.records.run import HighWaterRun, InputShapes, ProgramRun, ProgramSession
from memdiag.units import MIB

_MIN_SESSIONS = 5
_MAX_RUNS_PER_SESSION = 10
_MIN_REPLACED_SHARE = 0.5

_MIN_SLACK_BYTES = 64 * MIB
_MAX_LARGE_RUN_SHARE = 0.05
_MIN_ELEMENTS_RATIO = 2

_ShapesByName = dict[str, tuple[int, ...]]


def sessions_per_call(recording: ProgramRun) -> Iterator[list[ProgramSession]]:
    """Yield the sessions of each line that creates a session for each call, in creation order."""
    for sessions in sessions_by_key(
        created_sessions(recording),
        lambda session: (session.pid, session.model_key, session.created_at),
    ):
        if (
            len(sessions) >= _MIN_SESSIONS
            and median(session.run_count for session in sessions) <= _MAX_RUNS_PER_SESSION
            and _replaced_share(sessions) >= _MIN_REPLACED_SHARE
        ):
            yield sessions


def _replaced_share(sessions: Sequence[ProgramSession]) -> float:
    """Return the share of the sessions whose last run was before the last session was created."""
    *earlier, last = sessions
    replaced_count = sum(
        session.last_run_s is not None and session.last_run_s <= last.created_s
        for session in earlier
    )
    return replaced_count / len(earlier)


class RareLargeInput(NamedTuple):
    """A rare run with a large input, which enlarged the arena of its session most.

    Attributes:
        session: the session.
        shapes: the shapes of the large input.
        slack_bytes: the resident bytes of the arena that are free.
        runs: the number of runs of the session with known shapes.
        large_runs: the number of these runs with such large inputs.
        ratio: the elements of the large input, divided by the most elements of 95 % of the runs.
    """

    session: ProgramSession
    shapes: _ShapesByName
    slack_bytes: int
    runs: int
    large_runs: int
    ratio: float


def rare_large_inputs(recording: ProgramRun) -> Iterator[RareLargeInput]:
    """Yield the rare large input of each session whose arena is as large as this input made it."""
    for session in created_sessions(recording):
        slack = slack_bytes(session)
        peak = _largest_step(recording, session)
        if slack is None or slack < _MIN_SLACK_BYTES or peak is None or not peak.shapes:
            continue
        known_shapes = [shape for shape in session.shapes if shape.shapes]
        runs = sum(shape.runs for shape in known_shapes)
        usual_elements = _usual_elements(known_shapes, runs)
        large_runs = sum(
            shape.runs
            for shape in known_shapes
            if _input_elements(shape) >= _MIN_ELEMENTS_RATIO * usual_elements
        )
        ratio = _shapes_elements(peak.shapes) / max(usual_elements, 1)
        if ratio >= _MIN_ELEMENTS_RATIO and large_runs <= _MAX_LARGE_RUN_SHARE * runs:
            yield RareLargeInput(session, peak.shapes, slack, runs, large_runs, ratio)


def _largest_step(recording: ProgramRun, session: ProgramSession) -> HighWaterRun | None:
    """Return the run of `session` that raised the high-water mark most; None if no run did."""
    peaks = [peak for peak in recording.peaks if peak.session == session.number]
    start = max((phase.peak_rss_bytes for phase in session.phases), default=0)
    earlier_marks = [start, *(peak.peak_rss_bytes for peak in peaks)]
    steps = [peak.peak_rss_bytes - mark for peak, mark in zip(peaks, earlier_marks, strict=False)]
    return peaks[steps.index(max(steps))] if peaks else None


def _usual_elements(shapes: Sequence[InputShapes], runs: int) -> int:
    """Return the smallest number of elements that nearly all runs do not exceed."""
    covered_runs = 0
    for shape in sorted(shapes, key=_input_elements):
        covered_runs += shape.runs
        if covered_runs >= (1 - _MAX_LARGE_RUN_SHARE) * runs:
            return _input_elements(shape)
    return 0


def _input_elements(shapes: InputShapes) -> int:
    return _shapes_elements(shapes.shapes or {})


def _shapes_elements(shapes: _ShapesByName) -> int:
    return sum(prod(shape) for shape in shapes.values())
