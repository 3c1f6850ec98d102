"""The times of the phases of a recorded session."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from memdiag.programs.events import Create, Created, SessionModelSource
from memdiag.programs.recorded_process import RecordedProcess
from memdiag.programs.recorded_session import RecordedSession
from memdiag.system.process_tree import process_info


@pytest.fixture
def session() -> Iterator[RecordedSession]:
    """A session of this process, whose creation started after 1 s."""
    info = process_info(os.getpid())
    assert info is not None
    process = RecordedProcess(info, 0.0, 0.0)
    model = SessionModelSource(path="m.onnx", bytes=None)
    facts: dict[str, Any] = {"callers": (), "options": {}, "config": {}, "providers": ()}
    event = Create(session=1, model=model, threads=(0, 0), severity=2, logid="", **facts)
    yield RecordedSession(1, process, 1.0, event, process.before_creation(1.0))
    process.close()


def times_of(session: RecordedSession) -> list[tuple[str, float, float]]:
    return [(time.phase, time.start_s, time.end_s) for time in session.phase_times()]


def test_the_time_between_creation_and_first_run_is_in_no_phase(session: RecordedSession) -> None:
    session.finish_creation(1.5, Created(session=1, latency_s=0.5))
    session.start_first_run(3.0)
    session.finish_first_run(3.25)
    phases = session.finished_phases()
    assert times_of(session) == [("parse", 1.0, 1.5), ("first_run", 3.0, 3.25)]
    assert [phase.name for phase in phases] == ["parse", "first_run"]


def test_spans_of_a_phase_that_follow_each_other_are_one_time(session: RecordedSession) -> None:
    reading = session.process.boundary(1.25, session)
    session.phases.start_span("resolve the graph", "parse", 1.25, reading)
    session.finish_creation(1.5, Created(session=1, latency_s=0.5))
    session.finished_phases()
    assert times_of(session) == [("parse", 1.0, 1.5)]
