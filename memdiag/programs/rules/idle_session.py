"""A session stays in memory long after its last run, or between few runs.

## Why it costs

A session keeps its weights, and the arena that its largest run needed, until it is
released. A program that reads its documents first and then works with the text, or a
pipeline whose stages follow each other, keeps the models of earlier stages with those of
the later ones. A model for rare cases, such as rotated pages or another language, is in memory all
the time.

The bytes are the weights and arenas of the sessions in the last X-ray of their process,
without weights that are mapped from a file; without an X-ray they are an estimate: the
private memory that the creations kept, or at least the bytes of the weights in the model.

## What to do

- Release the session after its last use: `del session`, and each object that has it. malloc
  may retain part of the memory; `ctypes.CDLL(None).malloc_trim(0)` returns it (glibc).
- Create a session that few requests need when one needs it, and release it after some minutes
  without a run. The finding says how long its creation took: the request that creates it takes so
  much longer.
- If it must stay for the next request: only the arena can be returned, by a run with a
  small input and the run option `memory.enable_memory_arena_shrinkage` set to `cpu:0`.

## Not reported

- Sessions that ran last less than a minute before their end, or in the second half of their life,
  and as often as others: a server waits longer than a minute for its next request. *Few runs* are
  less than one a minute, and at most a tenth of the runs of another session of the process.
- Less than 16 MiB, a fraction of what Python with onnxruntime takes.
- Sessions that never ran (see `unused-session`).
"""

from collections.abc import Iterator, Sequence

from memdiag.programs.session_facts import (
    SHRINKAGE_CODE,
    created_sessions,
    described_sessions,
    inherited_run_counts,
    session_end_s,
    session_numbers,
    session_ready_s,
    sessions_by_model_and_line,
    size_text,
    total_session_bytes,
)
from memdiag.records.run import ProgramFinding, ProgramRun, ProgramSession
from memdiag.rules.rule import Rule
from memdiag.units import MIB, counted, format_duration

RULE = Rule(
    code="MD704",
    name="idle-session",
    summary="A session stays in memory long after its last run, or between few runs",
)

_MIN_IDLE_S = 60.0
_MIN_IDLE_SHARE = 0.5
_MAX_RARE_RUN_SHARE = 0.1
_MIN_IDLE_BYTES = 16 * MIB

_RELEASE_REMEDY = (
    "Release the session after its last use: del session, and each object that has it. If the next"
    f" request needs it, return its arena at least, by a run with a small input: {SHRINKAGE_CODE}."
)
_LAZY_REMEDY = (
    "Create the session when it is needed, and release it after some minutes without a run: del"
    " session, and each object that has it."
)


def detect(recording: ProgramRun) -> Iterator[ProgramFinding]:
    """Yield a finding for each model and line of code whose sessions are idle."""
    forked_run_counts = inherited_run_counts(recording)
    sessions = [
        session for session in created_sessions(recording) if not forked_run_counts[session.number]
    ]
    idle_sessions = [session for session in sessions if _is_idle_long(recording, session)]
    rare_sessions = [
        session
        for session in sessions
        if not _is_idle_long(recording, session) and _runs_rarely(recording, session)
    ]
    for sessions_of_line in sessions_by_model_and_line(idle_sessions):
        idle_s = max(_idle_s(recording, session) for session in sessions_of_line)
        stay_text = (
            f"stayed for {format_duration(idle_s)} after the last of"
            f" {_session_runs_text(sessions_of_line)}"
        )
        yield from _idle_findings(sessions_of_line, stay_text, _RELEASE_REMEDY)
    for sessions_of_line in sessions_by_model_and_line(rare_sessions):
        life_s = max(_life_s(recording, session) for session in sessions_of_line)
        stay_text = (
            f"was in memory for {format_duration(life_s)} for"
            f" {_session_runs_text(sessions_of_line)}"
        )
        yield from _idle_findings(sessions_of_line, stay_text, _LAZY_REMEDY)


def _idle_findings(
    sessions: Sequence[ProgramSession], stay_text: str, remedy: str
) -> Iterator[ProgramFinding]:
    """Yield the finding about `sessions`, unless they are small."""
    size = total_session_bytes(sessions)
    if size is not None and size < _MIN_IDLE_BYTES:
        return
    creation_s = max(session.creation_s or 0.0 for session in sessions)
    yield ProgramFinding(
        name=RULE.name,
        sessions=session_numbers(sessions),
        bytes=size,
        message=(
            f"{described_sessions(sessions)}, {stay_text}, and took {size_text(size, sessions)}."
            f" {'A' if len(sessions) > 1 else 'Its'} creation took {format_duration(creation_s)}."
        ),
        remedy=remedy,
    )


def _session_runs_text(sessions: Sequence[ProgramSession]) -> str:
    return counted(sum(session.run_count for session in sessions), "run")


def _life_s(recording: ProgramRun, session: ProgramSession) -> float:
    return session_end_s(recording, session) - session_ready_s(session)


def _idle_s(recording: ProgramRun, session: ProgramSession) -> float:
    """Return the seconds from the last run of the session to its end; 0 if it never ran."""
    return (
        0.0
        if session.last_run_s is None
        else session_end_s(recording, session) - session.last_run_s
    )


def _is_idle_long(recording: ProgramRun, session: ProgramSession) -> bool:
    idle_s = _idle_s(recording, session)
    return idle_s >= _MIN_IDLE_S and idle_s >= _MIN_IDLE_SHARE * _life_s(recording, session)


def _runs_rarely(recording: ProgramRun, session: ProgramSession) -> bool:
    """Return whether the session ran less than once a minute, and another of its process far more.

    Sessions whose creation is not over, or that never ran, do not count.
    """
    if not session.run_count or _life_s(recording, session) < _MIN_IDLE_S * (session.run_count + 1):
        return False
    run_counts = (
        process_session.run_count
        for process_session in recording.sessions
        if process_session.pid == session.pid
    )
    return session.run_count <= _MAX_RARE_RUN_SHARE * max(run_counts)
