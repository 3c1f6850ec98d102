"""The arenas of sessions keep memory that is free.

## Why it costs

onnxruntime takes the tensors of a run from the arena of the session. The arena grows by
doubling, and releases nothing until the session ends: after the run its memory is free,
*slack*, and stays resident for the next run. In a program with several sessions the slack of
each waits while another one runs.

The bytes are the resident slack of the arenas in the last X-ray of each process, an upper
bound: the next run needs some of it for a moment. Pages that forks share are counted once.

## What to do

- `RunOptions` with the config entry `memory.enable_memory_arena_shrinkage` set to `cpu:0`
  return free regions to the system at the end of the run; each run then allocates again. A
  text detector had 112 MiB of slack after runs with 640 × 640 pixels, and 15 MiB with the
  option (1.32.0).
- `enable_cpu_mem_arena = False` does without the arena.
- With both, set `MALLOC_MMAP_THRESHOLD_=131072` in the environment: without the arena the same
  detector had 63 MiB that malloc retained, and 1.7 MiB with the variable. Where 8 threads call
  one session, shrinkage alone took more memory than before.
- Several sessions in a process can share one arena, if their runs take turns. Call
  `onnxruntime.create_and_register_allocator(onnxruntime.OrtMemoryInfo("Cpu",
  onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT), None)`
  before the sessions are created, and set the config entry `session.use_env_allocators` to `1`
  in the options of each. Six models that ran one after another took 435 MiB instead of 1,079,
  and four of a text recognition program 185 instead of 240, in the same CPU time (1.32.0).
- `memdiag fix MODEL --only arena-shrinkage,arena-off` measures both, with the latency.

## Not reported

Less than 16 MiB, or less than a tenth of the process's memory; slack of a rare large input
(see `rare-large-input`); sessions that onnxruntime's own tools make, such as a calibration, whose
options cannot be set; processes without an X-ray.
"""

from collections.abc import Iterator, Sequence

from memdiag.defaults import PINNED_TEXT
from memdiag.programs.session_facts import (
    SHRINKAGE_CODE,
    model_name,
    process_ids,
    reserved_text,
    session_numbers,
    sessions_by_key,
    slack_bytes,
)
from memdiag.programs.session_patterns import rare_large_inputs
from memdiag.programs.xray_facts import (
    large_owners,
    sessions_in,
    shared_once_bytes,
)
from memdiag.records.attribution import ARENA_SLACK_NAME
from memdiag.records.run import ProgramFinding, ProgramRun, ProgramSession
from memdiag.rules.rule import Rule
from memdiag.session_options import SHARED_ALLOCATORS_OPTION
from memdiag.units import format_size, some_of

RULE = Rule(
    code="MD709",
    name="arena-slack",
    summary="The arenas of sessions keep memory that is free",
    needs_sessions=False,
)

_MIN_SHARED_SHARE = 1 / 3
"""Share of the slack that sharing an arena must be able to save."""

SHARED_ARENA_CODE = (
    'onnxruntime.create_and_register_allocator(onnxruntime.OrtMemoryInfo("Cpu",'
    " onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT), None)"
)
"""An arena with the usual settings for all sessions of the process that ask for it."""


def detect(recording: ProgramRun) -> Iterator[ProgramFinding]:
    """Yield a finding for all processes whose arenas have much slack."""
    explained_pids = {rare.session.pid for rare in rare_large_inputs(recording)}
    parts = [
        part
        for part in large_owners(recording, "arena", ARENA_SLACK_NAME)
        if part.xray.pid not in explained_pids
        and not _is_of_tool(sessions_in(recording, [part.xray]))
    ]
    if not parts:
        return
    xrays = [part.xray for part in parts]
    size = shared_once_bytes(recording, parts)
    sessions = sorted(
        (session for session in sessions_in(recording, xrays) if _known_slack_bytes(session)),
        key=_known_slack_bytes,
        reverse=True,
    )
    reserved_bytes = sum(arena.slack_bytes for xray in xrays for arena in xray.attribution.arenas)
    yield ProgramFinding(
        name=RULE.name,
        sessions=session_numbers(sessions),
        bytes=size,
        message=(
            f"{format_size(size)}{reserved_text(reserved_bytes, size)} in"
            f" {process_ids(xrays)} are free space in onnxruntime's arenas, kept for later"
            f" runs{_largest_slack_text(sessions)}."
        ),
        remedy=" ".join(_slack_remedies(sessions)),
    )


def _is_of_tool(sessions: Sequence[ProgramSession]) -> bool:
    """Return whether a tool of onnxruntime, such as a calibrator, made all of the sessions.

    Neither the options of such sessions nor of their runs can be set.
    """
    return bool(sessions) and all(session.library == "onnxruntime" for session in sessions)


def _slack_remedies(sessions: Sequence[ProgramSession]) -> Iterator[str]:
    """Yield the remedies that leave less slack: one arena for all sessions, shrinkage, no arena."""
    shared_bytes = _shared_bytes(sessions)
    can_share = shared_bytes > 0 and shared_bytes >= _MIN_SHARED_SHARE * sum(
        map(_known_slack_bytes, sessions)
    )
    if can_share:
        yield (
            "Let the sessions of a process share one arena, if their runs take turns: call"
            f" {SHARED_ARENA_CODE} before they are created, and set {SHARED_ALLOCATORS_OPTION} to 1"
            " in the options of each."
        )
    yield (
        f"{'Or let' if can_share else 'Let'} runs return free memory at their end:"
        f" {SHRINKAGE_CODE}. Or set enable_cpu_mem_arena=False."
    )
    yield (
        f"With both, set {PINNED_TEXT} in the environment: otherwise malloc retains what the arena"
        " frees, and the peak can be higher than now. memdiag fix MODEL --only"
        " arena-shrinkage,arena-off measures both."
    )


def _shared_bytes(sessions: Sequence[ProgramSession]) -> int:
    """Return the bytes of slack that a shared arena in each process would save.

    That is the slack of all sessions but the largest. Sessions that run at the same time as others
    would need their slack, so they are left out.
    """
    sessions_with_own_arena = [
        session
        for session in sessions
        if session.options.get(SHARED_ALLOCATORS_OPTION) != "1" and session.run_threads <= 1
    ]
    sizes_by_process = [
        list(map(_known_slack_bytes, group))
        for group in sessions_by_key(sessions_with_own_arena, lambda session: session.pid)
    ]
    return sum(
        sum(sizes_of_process) - max(sizes_of_process) for sizes_of_process in sizes_by_process
    )


def _known_slack_bytes(session: ProgramSession) -> int:
    return slack_bytes(session) or 0


def _largest_slack_text(sessions: list[ProgramSession]) -> str:
    if not sessions:
        return ""
    session_texts = [
        f"session {session.number} ({model_name(session)})"
        f" {format_size(_known_slack_bytes(session))}"
        for session in sessions
    ]
    return f": {some_of(session_texts)}"
