"""A session stays in memory long after its last run.

## Why it costs

A session keeps its weights, and the arena that its largest run needed, until it is
released. A program that reads its documents first and then works with the text, or a
pipeline whose stages follow each other, keeps the models of earlier stages beside those of
the later ones.

The bytes are the weights and arenas of the sessions in the last X-ray of their process,
without weights that are mapped from a file; without an X-ray they are an estimate: the
private memory that the creations kept, or at least the bytes of the weights in the model.

## What to do

- Release the session after its last use: `del session`, and each object that has it. malloc
  may retain part of the memory; `ctypes.CDLL(None).malloc_trim(0)` returns it (glibc).
- In a server, unload a model after some minutes without a request, if creating it again is
  fast enough.
- If it must stay for the next request: only the arena can be returned, by a run with a
  small input and the run option `memory.enable_memory_arena_shrinkage` set to `cpu:0`.

## Not reported

Sessions that were idle for less than a minute, or for less than half of their life: a
server waits longer than that for its next request; less than 16 MiB, a fraction of what
Python with onnxruntime takes; sessions that never ran (see `unused-session`).
"""

from collections.abc import Iterator

from memdiag.programs.session_facts import (
    SHRINKAGE_CODE,
    created_sessions,
    described_sessions,
    end_s,
    inherited_run_counts,
    numbers,
    ready_s,
    same_model_and_line,
    size_text,
    total_bytes,
)
from memdiag.records.run import ProgramFinding, ProgramRun, ProgramSession
from memdiag.rules.rule import Rule
from memdiag.units import MIB, counted, format_duration

RULE = Rule(
    code="MD704",
    name="idle-session",
    summary="A session stays in memory long after its last run",
)

_MIN_IDLE_S = 60.0
_MIN_IDLE_SHARE = 0.5
_MIN_BYTES = 16 * MIB


def detect(run: ProgramRun) -> Iterator[ProgramFinding]:
    """Yield a finding for each model, and line that created sessions of it, that are idle."""
    ran_elsewhere = inherited_run_counts(run)
    idle = [
        session
        for session in created_sessions(run)
        if not ran_elsewhere[session.number] and _is_idle_long(run, session)
    ]
    for sessions in same_model_and_line(idle):
        size = total_bytes(sessions)
        if size is not None and size < _MIN_BYTES:
            continue
        idle_s = max(_idle_s(run, session) for session in sessions)
        runs = sum(session.run_count for session in sessions)
        yield ProgramFinding(
            rule=RULE.name,
            sessions=numbers(sessions),
            bytes=size,
            message=(
                f"{described_sessions(sessions)}, stayed for {format_duration(idle_s)} after the"
                f" last of {counted(runs, 'run')}, and took {size_text(size, sessions)}."
            ),
            remedy=(
                "Release the session after its last use: del session, and each object that has it."
                " If the next request needs it, return its arena at least, by a run with a small"
                f" input: {SHRINKAGE_CODE}."
            ),
        )


def _idle_s(run: ProgramRun, session: ProgramSession) -> float:
    """Return the seconds from the last run of the session to its end."""
    return 0.0 if session.last_run_s is None else end_s(run, session) - session.last_run_s


def _is_idle_long(run: ProgramRun, session: ProgramSession) -> bool:
    idle_s = _idle_s(run, session)
    life_s = end_s(run, session) - ready_s(session)
    return idle_s >= _MIN_IDLE_S and idle_s >= _MIN_IDLE_SHARE * life_s
