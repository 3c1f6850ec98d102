"""Starting the loader in a process of its own, talking to it, and making sure that it ends."""

import json
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import memdiag.loader
from memdiag.errors import MeasurementError
from memdiag.measurement.job import Job

_LOADERS = os.path.dirname(memdiag.loader.__file__)
_PATIENCE_S = 10.0
TELEMETRY_OFF = {"ORT_DISABLE_TELEMETRY": "1"}
"""Since 1.29 onnxruntime otherwise writes to the home folder and uploads the model's file name."""


def child_environment(*, telemetry: bool = False) -> dict[str, str]:
    """Return the environment of a process that may import onnxruntime.

    Telemetry is off in it, or, where it is to be measured, on as it is by default.
    """
    if telemetry:
        return {name: text for name, text in os.environ.items() if name not in TELEMETRY_OFF}
    return {**os.environ, **TELEMETRY_OFF}


class Child:
    """A process that runs `script` of the loader; as a context manager it never outlives the block.

    It is sent `message`, a JSON object, as its job. Each event that it writes carries `secret`.

    Raises:
        MeasurementError: the interpreter cannot be started.
    """

    def __init__(self, job: Job, message: dict[str, Any], script: str = "child.py") -> None:
        try:
            self._process = subprocess.Popen(
                [str(job.python), os.path.join(_LOADERS, script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**child_environment(telemetry=job.telemetry), **job.environment},
                # Ctrl-C in the terminal is for us: we end the child after a last look.
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise MeasurementError(
                f"{job.python}: cannot be started as a Python interpreter ({error.strerror})."
            ) from error
        self.pid = self._process.pid
        assert self._process.stderr is not None
        self.log = self._process.stderr.fileno()
        self.secret = secrets.token_hex(16)
        self._send({**message, "parent": os.getpid(), "secret": self.secret})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()

    def proceed(self) -> None:
        """Let the child go on from the step at which it waits."""
        self._send("go")

    def ask(self, request: dict[str, Any]) -> None:
        """Send a request to a child that waits for one."""
        self._send(request)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Keep the child from running for the while."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def end(self) -> None:
        """Kill the child, and what it may have started, unless it has ended; then wait for it."""
        if self._process.poll() is None:
            if os.name == "posix":
                os.killpg(self.pid, signal.SIGKILL)
            else:
                self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stderr):
            assert stream is not None
            stream.close()

    def returncode(self) -> int:
        """Return the exit code of a child that is ending (negative: the signal that ended it)."""
        try:
            return self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.end()
            return self._process.returncode

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def _send(self, message: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
        except BrokenPipeError:
            # It has ended; the watcher sees that next, with the reason.
            return
