"""Notes at the end of a recording: what its reader must know about missing data."""

from collections.abc import Collection, Iterator

from memdiag.programs.recorded_program import RecordedProgram
from memdiag.programs.unhooked_process import runtime_note
from memdiag.runner.child import is_measurement
from memdiag.runner.job import fallback_text, missing_providers
from memdiag.runner.nvml import uses_nvidia_device
from memdiag.units import counted, format_size, plural, some_of


def unread_note(program: RecordedProgram) -> Iterator[str]:
    """Yield a note on the processes that could not be read, if there are any."""
    if program.unread:
        pid, reason = next(iter(program.unread.items()))
        yield (
            f"{counted(len(program.unread), 'process', 'processes')} could not be read all the"
            f" time, such as process {pid} ({reason})"
        )


def missing_xray_note(program: RecordedProgram, interrupted: Collection[int]) -> Iterator[str]:
    """Yield a note on the processes that ended before an X-ray of their sessions could be taken.

    Args:
        program: the program.
        interrupted: the ids of processes whose X-rays took too long or were incomplete, which have
            notes of their own.
    """
    examined_pids = {xray.pid for xray in program.xrays if xray.reason == "end"}
    missing_pids = [
        str(process.pid)
        for process in sorted(program.processes, key=lambda process: process.pid)
        if process.has_sessions and process.pid not in examined_pids.union(interrupted)
    ]
    if missing_pids:
        is_plural = len(missing_pids) > 1
        yield (
            f"no X-ray at the end of process{'es' if is_plural else ''} {some_of(missing_pids)}:"
            f" {'they' if is_plural else 'it'} ended without Python's exit handlers: by a signal"
            " (uvicorn repeats the one that stopped it), by exec or os._exit, or in a"
            " multiprocessing pool that was not closed and joined; memdiag xray with the folder of"
            " the recording, in a second terminal, takes one while"
            f" {'they run' if is_plural else 'it runs'}"
        )


def released_sessions_note(program: RecordedProgram) -> Iterator[str]:
    """Yield a note if there is no X-ray because processes released their sessions before the end.

    If there is an X-ray of any process, a note on each helper that created a session would be
    noise.
    """
    ended_processes = [
        process
        for process in program.processes
        if process.exit_rss_bytes is not None
        and any(session.providers for session in process.local_sessions.values())
        and not process.live_sessions
    ]
    if program.xrays or not ended_processes:
        return
    process = max(ended_processes, key=lambda process: process.exit_rss_bytes or 0)
    first_session = next(iter(process.local_sessions.values()))
    others_clause = (
        f" (and of {len(ended_processes) - 1} more processes)" if len(ended_processes) > 1 else ""
    )
    yield (
        f"no X-ray at the end of process {process.pid}{others_clause}: its sessions had been"
        f" released. Its resident set was {format_size(first_session.rss_before_bytes)} before the"
        f" first one was created, and {format_size(process.exit_rss_bytes or 0)} at its end. To see"
        " the owners, run memdiag xray with the folder of the recording in a second terminal while"
        " a session is alive, or have the program keep its sessions until its end"
    )


def still_running_note(program: RecordedProgram, root: int) -> Iterator[str]:
    """Yield a note on the processes that did not end with process `root`, if there are any."""
    if program.live and root not in program.live:
        pids = ", ".join(map(str, program.live))
        yield (
            f"still running when the program ended: process {pids}; memdiag watch PID records"
            " such a process"
        )


def unrecorded_notes(program: RecordedProgram) -> Iterator[str]:
    """Yield a note on each process whose sessions are missing because it has no hook."""
    for process in program.unrecorded:
        if not is_measurement(process.info.command):
            yield (
                f"{runtime_note(process)}, but its sessions are not recorded: it is not Python,"
                " Python was started with -I, -E or -S, another memdiag run records them, or it"
                " was forked while onnxruntime was imported"
            )


def fallback_notes(program: RecordedProgram) -> Iterator[str]:
    """Yield a note on the sessions without a provider for a GPU that the program asked for."""
    numbers_by_text: dict[str, list[int]] = {}
    for session in program.sessions:
        requested = session.description.providers
        missing = missing_providers(requested, session.providers) if session.providers else []
        if uses_nvidia_device(missing):
            text = fallback_text(missing, session.providers)
            numbers_by_text.setdefault(text, []).append(session.number)
    for text, numbers in numbers_by_text.items():
        sessions = plural(len(numbers), "session", "sessions")
        yield (
            f"{sessions} {some_of([*map(str, numbers)])}: {text}; memdiag explain provider-fallback"
            " has the causes"
        )
