"""A session was created and never ran, while the program went on.

## Why it costs

Its weights, its arena and its threads are in memory, and the time and the peak of its
creation were spent, for nothing. Typical causes are a pipeline that loads all its models
and uses one of them, a fallback that is loaded in advance, and a library that loads every
model of a package.

The bytes are the weights and arenas of the sessions in the last X-ray of their process,
without weights that are mapped from a file; without an X-ray they are an estimate: the
private memory that the creations kept, or at least the bytes of the weights in the model.

## What to do

- Create the session when it is first needed, for example in a function with
  `functools.cache`.
- If it is there for requests that the recording did not have, record those too, before you
  decide.
- If it was created to read names and shapes of inputs, read them from the file with
  `onnx.load(path, load_external_data=False)`.

## Not reported

Sessions that were released; sessions that were created less than 2 seconds before the end,
which is about what a program needs to come to its first run; sessions after which no other
session ran either, unless the program went on for a minute: a server that was recorded
without a request uses none of its sessions; sessions that ran in a forked process.
"""

from collections.abc import Iterator

from memdiag.programs.session_facts import (
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
from memdiag.units import format_duration

RULE = Rule(
    code="MD703",
    name="unused-session",
    summary="A session was created and never ran, while the program went on",
)

_MIN_UNUSED_S = 2.0
_MIN_UNUSED_ALONE_S = 60.0


def detect(recording: ProgramRun) -> Iterator[ProgramFinding]:
    """Yield a finding for each model and line of code whose sessions never ran."""
    forked_run_counts = inherited_run_counts(recording)
    last_run_s = max((session.last_run_s or 0 for session in recording.sessions), default=0.0)
    unused_sessions = [
        session
        for session in created_sessions(recording)
        if not session.run_count
        and not forked_run_counts[session.number]
        and session.released_s is None
        and _is_unused_long(recording, session, last_run_s)
    ]
    for sessions in sessions_by_model_and_line(unused_sessions):
        size = total_session_bytes(sessions)
        waited_s = max(
            session_end_s(recording, session) - session_ready_s(session) for session in sessions
        )
        yield ProgramFinding(
            name=RULE.name,
            sessions=session_numbers(sessions),
            bytes=size,
            message=(
                f"{described_sessions(sessions)}, never ran in the {format_duration(waited_s)}"
                f" until the end, and took {size_text(size, sessions)}."
            ),
            remedy=(
                "Create the session when it is first needed, for example in a function with"
                " functools.cache; if it is for requests that were not recorded, record those too."
            ),
        )


def _is_unused_long(recording: ProgramRun, session: ProgramSession, last_run_s: float) -> bool:
    """Return whether the program went on for long enough to use the session."""
    unused_s = session_end_s(recording, session) - session_ready_s(session)
    return unused_s >= (
        _MIN_UNUSED_S if last_run_s > session_ready_s(session) else _MIN_UNUSED_ALONE_S
    )
