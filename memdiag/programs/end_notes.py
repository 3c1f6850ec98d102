"""Notes at the end of a recording: what its reader must know of what is missing."""

from collections.abc import Collection, Iterator

from memdiag.programs.recorded_program import RecordedProgram
from memdiag.programs.unhooked_process import runtime_note
from memdiag.runner.child import is_measurement
from memdiag.units import counted, format_size, some_of


def unread_note(program: RecordedProgram) -> Iterator[str]:
    """Yield a note of the processes that could not be read."""
    if program.unread:
        pid, reason = next(iter(program.unread.items()))
        yield (
            f"{counted(len(program.unread), 'process', 'processes')} could not be read all the"
            f" time, such as process {pid} ({reason})"
        )


def missing_xray_note(program: RecordedProgram, interrupted: Collection[int]) -> Iterator[str]:
    """Yield a note of the processes that ended before an X-ray of their sessions could be taken.

    Args:
        program: the program.
        interrupted: the ids of processes whose X-rays took too long or were incomplete, which have
            notes of their own.
    """
    examined = {xray.pid for xray in program.xrays if xray.reason == "end"}
    missing = [
        str(process.pid)
        for process in sorted(program.processes, key=lambda recorded: recorded.pid)
        if process.has_sessions and process.pid not in examined.union(interrupted)
    ]
    if missing:
        several = len(missing) > 1
        yield (
            f"no X-ray at the end of process{'es' if several else ''} {some_of(missing)}:"
            f" {'they' if several else 'it'} ended without Python's exit handlers: by a signal"
            " (uvicorn repeats the one that stopped it), by exec or os._exit, or in a"
            " multiprocessing pool that was not closed and joined; memdiag xray with the folder of"
            " the recording, in a second terminal, takes one while"
            f" {'they run' if several else 'it runs'}"
        )


def released_sessions_note(program: RecordedProgram) -> Iterator[str]:
    """Yield a note that there is no X-ray because the sessions were released before the ends.

    With the X-ray of one process, a note on each helper that creates a session is only noise.
    """
    released = [
        process
        for process in program.processes
        if process.exit_rss_bytes is not None
        and any(session.providers for session in process.local_sessions.values())
        and not process.live_sessions
    ]
    if program.xrays or not released:
        return
    process = max(released, key=lambda recorded: recorded.exit_rss_bytes or 0)
    first = next(iter(process.local_sessions.values()))
    more = f" (and of {len(released) - 1} more processes)" if len(released) > 1 else ""
    yield (
        f"no X-ray at the end of process {process.pid}{more}: its sessions had been released."
        f" Its resident set was {format_size(first.rss_before_bytes)} before the first one was"
        f" created, and {format_size(process.exit_rss_bytes or 0)} at its end. To see the"
        " owners, run memdiag xray with the folder of the recording in a second terminal while"
        " a session is alive, or have the program keep its sessions until its end"
    )


def still_running_note(program: RecordedProgram, root: int) -> Iterator[str]:
    """Yield a note of the processes that have not ended with process `root`."""
    if program.live and root not in program.live:
        pids = ", ".join(map(str, program.live))
        yield (
            f"still running when the program ended: process {pids}; memdiag watch PID records"
            " such a process"
        )


def unrecorded_notes(program: RecordedProgram) -> Iterator[str]:
    """Yield a note of each process whose sessions are missing, as it has no hook."""
    for process in program.unrecorded:
        if not is_measurement(process.info.command):
            yield (
                f"{runtime_note(process)}, but its sessions are not recorded: it is not Python,"
                " Python was started with -I, -E or -S, another memdiag run records them, or it"
                " was forked while onnxruntime was imported"
            )
