"""A child process that runs one of our scripts: start, conversation, end."""

import json
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from memdiag.errors import MeasurementError, XrayError
from memdiag.runner import scripts
from memdiag.runner.job import Job
from memdiag.runner.log import LogMarker, LogParser, ScriptEvent
from memdiag.runner.pipe import PipeReader
from memdiag.units import format_duration

_SCRIPTS_FOLDER = os.path.dirname(scripts.__file__)
_MAX_EXIT_S = 10.0
_EVENT_POLL_S = 0.05
_MAX_COPY_S = 60.0
TELEMETRY_OFF = {"ORT_DISABLE_TELEMETRY": "1"}
"""Since 1.29 onnxruntime otherwise writes to the home folder and uploads the model's file name."""

RECORDING_ADDRESS = "MEMDIAG_RUN_ADDRESS"
"""Where a process under ``memdiag run`` sends its events. Children that memdiag itself measures are
not recorded: both would read the log of the session."""


def child_environment() -> dict[str, str]:
    """Return the environment of a process that may import onnxruntime, without its telemetry."""
    inherited = {name: text for name, text in os.environ.items() if name != RECORDING_ADDRESS}
    return {**inherited, **TELEMETRY_OFF}


def is_measurement(command: Sequence[str]) -> bool:
    """Return whether `command` starts a child that memdiag measures."""
    return any(word.startswith(_SCRIPTS_FOLDER + os.sep) for word in command)


def _not_started_error(python: Path, reason: str | None) -> MeasurementError:
    return MeasurementError(
        f"{python}: cannot be started as a Python interpreter ({reason}). Check the path and its"
        " permissions, or name another interpreter with --python."
    )


class Child:
    """A process that runs a script of `memdiag.runner.scripts`; a context manager that ends it.

    Args:
        job: names the interpreter and the environment.
        message: the JSON object that the script receives as its job.
        script: the file name of the script.

    Attributes:
        pid: the process number.
        log: the parser of the standard error, which has the log lines until now.

    Raises:
        MeasurementError: the interpreter cannot be started.
    """

    def __init__(self, job: Job, message: dict[str, Any], script: str = "child.py") -> None:
        session = job.session
        if job.entering and shutil.which(session.python) is None:
            # /bin/sh, which enters a control group first, would start all the same.
            raise _not_started_error(session.python, "not found, or not executable")
        try:
            self._process = subprocess.Popen(
                [*job.entering, str(session.python), os.path.join(_SCRIPTS_FOLDER, script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={
                    **child_environment(),
                    **session.environment,
                },
                # Ctrl-C in the terminal is for memdiag, which reads the memory first.
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise _not_started_error(session.python, error.strerror) from error
        self._limits = job.limits
        self._events = self.events(_EVENT_POLL_S)
        self.pid = self._process.pid
        assert self._process.stderr is not None
        self._pipe = PipeReader(self._process.stderr.fileno())
        # Every event contains it, so that no name in a model can imitate an event.
        secret = secrets.token_hex(16)
        self.log = LogParser(secret)
        self.send({**message, "parent": os.getpid(), "secret": secret})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def read(self, timeout_s: float) -> list[LogMarker | ScriptEvent]:
        """Return the markers and events that arrived, after at most `timeout_s` seconds."""
        self._pipe.wait(max(0.0, timeout_s))
        chunk = self._pipe.read()
        return self.log.feed(chunk) if chunk else []

    @property
    def silent(self) -> bool:
        """Whether nothing more can arrive: the other end of the pipe was closed."""
        return self._pipe.ended

    def events(self, period_s: float) -> Iterator[ScriptEvent | None]:
        """Yield each event as it arrives, and None at least every `period_s` seconds.

        The iteration ends with the child: a process that the child started may keep the pipe open.
        """
        has_ended = False
        while not has_ended:
            # Checked before reading, so that the last output is not missed.
            has_ended = self.silent or self.ended
            items = self.read(0.0 if has_ended else period_s)
            yield from (item for item in items if isinstance(item, ScriptEvent))
            yield None

    def next_event(self, name: str, since: float) -> ScriptEvent | None:
        """Return the next event `name` or ``error``; None if the child ends without one.

        Args:
            name: the name of the event.
            since: the time of `time.monotonic()` at which the job's timeout began.

        Raises:
            TimeLimitReached: the job's deadline passed.
            TimeoutError: the job's timeout passed.
        """
        end = min(since + self._limits.timeout_s, self._limits.deadline.at)
        for event in self._events:
            if event is not None and event.name in (name, "error"):
                return event
            if time.monotonic() >= end:
                self._limits.deadline.check()
                raise TimeoutError
        return None

    def copy_from_device(self, ranges: Sequence[tuple[int, int]]) -> int:
        """Have the child copy memory of its device into a block of its own; return its address.

        Args:
            ranges: (address, length) each, which are copied one after the other.

        Raises:
            XrayError: the copy failed, took too long, or the child has ended.
        """
        self.send({"copy": ranges})
        deadline = time.monotonic() + _MAX_COPY_S
        for event in self._events:
            if event is not None and event.name == "device_block":
                if event.fields["reason"]:
                    raise XrayError(event.fields["reason"])
                return int(event.fields["address"])
            if time.monotonic() >= deadline:
                raise XrayError(f"a copy took more than {format_duration(_MAX_COPY_S)}")
        raise XrayError("the process has ended")

    def proceed(self) -> None:
        """Let the child continue from the step at which it waits."""
        self.send("go")

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the child for the duration of the block (SIGSTOP)."""
        os.kill(self.pid, signal.SIGSTOP)
        # The signal is delivered later; an end of the child is left for `returncode`.
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def end(self) -> None:
        """Kill the child and its process group, unless it has ended, and wait for it."""
        self._pipe.close()
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stderr):
            assert stream is not None
            stream.close()

    def returncode(self) -> int:
        """Return the exit code of a child that is ending: negative for the signal that ended it."""
        try:
            return self._process.wait(_MAX_EXIT_S)
        except subprocess.TimeoutExpired:
            self.end()
            return self._process.returncode

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def send(self, message: Any) -> None:
        """Send a message to a child that waits for one; do nothing if the child has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
        except BrokenPipeError:
            # The child has ended; the next read returns its last output, with the reason.
            return
