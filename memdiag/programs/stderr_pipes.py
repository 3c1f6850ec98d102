"""The standard error of processes while their sessions are created, without the sessions' log."""

import os
import select
import selectors
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from memdiag.programs.log_filter import LogFilter
from memdiag.programs.recorded_process import RecordedProcess
from memdiag.programs.recorded_program import RecordedProgram
from memdiag.runner.observer import ProcessGone

_STDERR_CHUNK_BYTES = 1 << 16


@dataclass(eq=False)
class _StderrPipe:
    """The standard error of a process while its sessions are created.

    Attributes:
        process: the process.
        reading: the descriptor of the reading end of the pipe.
        target: the descriptor that the process had as standard error; None if it was closed.
        filter: takes out the log of the sessions.
    """

    process: RecordedProcess
    reading: int
    target: int | None
    filter: LogFilter = field(default_factory=LogFilter)


class StderrPipes:
    """The pipes that processes have as standard error, whose other ends the recorder reads.

    The log of a session goes to the session. All other bytes go to the original standard error.

    Args:
        program: the program, which has the clock.
        selector: calls its handlers when data has arrived.
    """

    def __init__(self, program: RecordedProgram, selector: selectors.BaseSelector) -> None:
        self._program = program
        self._selector = selector
        self._pipes: dict[int, _StderrPipe] = {}

    def open(self, process: RecordedProcess, descriptors: Sequence[int]) -> None:
        """Read a pipe of `process` from now on.

        Args:
            process: the process.
            descriptors: the reading end of the pipe, and the original standard error, unless that
                was closed.

        Raises:
            ValueError: the descriptors did not arrive.
        """
        reading, *targets = descriptors
        os.set_blocking(reading, False)
        pipe = _StderrPipe(process, reading, targets[0] if targets else None)
        self._pipes[reading] = pipe
        self._selector.register(reading, selectors.EVENT_READ, lambda _: self._handle_output(pipe))

    def drain(self, process: RecordedProcess) -> None:
        """Handle what `process` has written to standard error until now."""
        for pipe in list(self._pipes.values()):
            if pipe.process is process:
                while self._handle_output(pipe):
                    pass
                self._write_to_target(pipe, pipe.filter.finish())

    def leave(self) -> None:
        """Let a new process handle the pipes that processes still have as standard error.

        A process that was started during a creation has the pipe until it ends.
        """
        pipes = list(self._pipes.values())
        if pipes and not os.fork():
            try:
                _forward_pipes([(pipe.reading, pipe.target) for pipe in pipes])
            finally:
                os._exit(0)
        for pipe in pipes:
            self._close_pipe(pipe)

    def _handle_output(self, pipe: _StderrPipe) -> bool:
        """Handle some output of a process; return False if there is none now."""
        try:
            data = os.read(pipe.reading, _STDERR_CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._write_to_target(pipe, pipe.filter.finish())
            self._close_pipe(pipe)
            return False
        passed_bytes, log_lines = pipe.filter.feed(data, pipe.process.logs)
        self._write_to_target(pipe, passed_bytes)
        for number, session_lines in _lines_by_session(log_lines):
            with suppress(ProcessGone):
                session = pipe.process.local_sessions[number]
                session.add_log(self._program.now_s(), session_lines)
        return True

    def _write_to_target(self, pipe: _StderrPipe, data: bytes) -> None:
        with suppress(OSError):  # nobody reads it; without memdiag the program would have the error
            while data and pipe.target is not None:
                data = data[os.write(pipe.target, data) :]

    def _close_pipe(self, pipe: _StderrPipe) -> None:
        self._selector.unregister(pipe.reading)
        del self._pipes[pipe.reading]
        os.close(pipe.reading)
        if pipe.target is not None:
            os.close(pipe.target)


def _lines_by_session(lines: Sequence[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Yield the number of each session, with all of its lines and their line breaks."""
    session_lines: dict[int, bytearray] = {}
    for number, line in lines:
        session_lines.setdefault(number, bytearray()).extend(line + b"\n")
    for number, joined_lines in session_lines.items():
        yield number, bytes(joined_lines)


def _forward_pipes(pipes: Sequence[tuple[int, int | None]]) -> None:
    """Write the data that arrives in each pipe to its target until all pipes have ended."""
    kept_descriptors = {
        descriptor for pipe in pipes for descriptor in pipe if descriptor is not None
    }
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        if int(name) not in kept_descriptors:
            with suppress(OSError):
                os.close(int(name))
    targets = dict(pipes)
    poll = select.poll()  # select.select has a limit of 1024
    for reading in targets:
        poll.register(reading, select.POLLIN)
    while targets:
        for reading, _ in poll.poll():
            data, target = os.read(reading, _STDERR_CHUNK_BYTES), targets[reading]
            if not data:
                poll.unregister(reading)
                del targets[reading]
            with suppress(OSError):  # nobody reads it
                while data and target is not None:
                    data = data[os.write(target, data) :]
