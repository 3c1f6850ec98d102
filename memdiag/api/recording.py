"""Record the sessions of this process: a context manager for programs and notebooks.

This module runs in the measured process, so it imports large modules only where they are needed.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import memdiag
from memdiag.errors import MeasurementError, MemdiagError, ReportError, UsageError
from memdiag.programs.end_requests import END_REQUEST, END_WITH_REPORTS
from memdiag.programs.hook.startup import sitecustomize

if TYPE_CHECKING:
    from memdiag.programs.recording_part import RecordingPart
    from memdiag.records.run import ProgramRun

_PR_SET_PTRACER = 0x59616D61
_RECORDING_PROCESS = "from memdiag.programs.recording_process import main; main()"
_HOOK_VARIABLES = ("PYTHONPATH", sitecustomize.ADDRESS_VARIABLE)


class Recording:
    """A recording of this process and the processes that it starts.

    Use it as a context manager. Sessions of onnxruntime that are created inside it are recorded,
    as ``memdiag run`` records a program. A note in the record counts older sessions.

    The record is in `folder` when the block has ended. Another process then writes the reports;
    `wait` waits for them, as does the end of this process.

    Args:
        folder: where the record and the reports are written at the end, or only the record if this
            process is killed; None for no reports.
        xray: identify the owners of the memory at the end.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, xray: bool = True) -> None:
        self.folder: Path | None = None if folder is None else Path(folder)
        self._record: bytes | None = None
        self._run: ProgramRun | None = None
        self._xray = xray
        self._process: subprocess.Popen[bytes] | None = None
        self._uninstall: Callable[[], None] | None = None

    def __enter__(self) -> Self:
        if self._process is not None:
            raise UsageError("this recording has begun already. Make another one.")
        if sitecustomize.ADDRESS_VARIABLE in os.environ:
            raise UsageError(
                "this process is being recorded already. Leave memdiag run or the outer recording"
                " out."
            )
        self._pid = os.getpid()
        earlier_sessions = count_sessions()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _RECORDING_PROCESS, *self._process_arguments(earlier_sessions)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,  # Ctrl-C is meant for this process, which ends the recording
        )
        assert self._process.stdout is not None
        address, _, origin_s = self._process.stdout.readline().decode().strip().partition(" ")
        if not address:
            raise MeasurementError("the recording cannot be started: its process has ended.")
        self._origin_s = float(origin_s)
        allow_reading_by(self._process.pid)
        self._environment = {name: os.environ.get(name) for name in _HOOK_VARIABLES}
        paths = [sitecustomize.HOOK_STARTUP_FOLDER, *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        os.environ[sitecustomize.ADDRESS_VARIABLE] = address
        self._uninstall = _install_hook(address)
        return self

    def __exit__(self, *error: object) -> None:
        if os.getpid() == self._pid:  # a fork may leave the block, too
            self._end_recording(END_REQUEST if self.folder is None else END_WITH_REPORTS)

    @property
    def run(self) -> ProgramRun | None:
        """The record, once the recording has ended; None before. It is decoded at first use."""
        if self._run is None and self._record is not None:
            from memdiag.records.codec import decode
            from memdiag.records.run import ProgramRun

            self._run = decode(self._record, ProgramRun)
        return self._run

    def stop(self) -> ProgramRun:
        """End the recording and return it, without writing reports.

        Raises:
            UsageError: the recording has not begun.
            MeasurementError: the process that records has ended.
        """
        if self._process is None:
            raise UsageError("this recording has not begun. Enter its with block first.")
        self._end_recording(END_REQUEST)
        assert self.run is not None
        return self.run

    def wait(self) -> None:
        """Wait until the reports are written, which takes some seconds after the block.

        Raises:
            ReportError: a report could not be written.
            MeasurementError: the process that writes them has ended.
        """
        if self not in _writing_recordings:
            return
        _writing_recordings.remove(self)
        failure, has_failed = self._wait_for_process()
        if failure:
            raise ReportError(failure.decode())
        if has_failed:
            raise MeasurementError("the reports are missing: the process that writes them failed.")

    def _end_recording(self, request: bytes) -> None:
        """End the recording with `request`.

        Raises:
            MeasurementError: the process that records has ended.
            ReportError: the record could not be written.
        """
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._uninstall is not None
        self._uninstall()
        for name, value in self._environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        writes_reports = request == END_WITH_REPORTS
        if writes_reports:
            _wait_for_reports(
                [
                    recording
                    for recording in _writing_recordings
                    if recording.folder == self.folder or recording._has_ended()
                ]
            )
        with suppress(OSError), self._process.stdin as requests:
            requests.write(request)
        failure = length = record = b""
        with suppress(OSError):  # the program has closed our files
            failure, length = (self._process.stdout.readline().strip() for _ in range(2))
            record = self._process.stdout.read(int(length or 0))
        if not length or len(record) < int(length):
            self._wait_for_process()
            raise MeasurementError("the recording has failed: its process has ended.")
        self._record = record
        if writes_reports and not failure:
            _writing_recordings.append(self)
            return
        self._wait_for_process()
        if failure:
            raise ReportError(failure.decode())

    def _has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def _wait_for_process(self) -> tuple[bytes, bool]:
        """Wait for the recording process to end; return its last output, and whether it failed."""
        assert self._process is not None
        assert self._process.stdout is not None
        last_words = b""
        with suppress(OSError), self._process:  # the program has closed our files
            last_words = self._process.stdout.read()
        return last_words, self._process.wait() != 0

    def now_s(self) -> float:
        """Return the seconds since the start of the recording, on the clock of its record."""
        return time.perf_counter() - self._origin_s

    def next_part(self) -> RecordingPart:
        """Return the part of the recording since the last call, while recording continues.

        Raises:
            MeasurementError: the process that records has ended.
        """
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        answer = b""
        with suppress(OSError):
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        if not answer:
            raise MeasurementError("the recording has failed: its process has ended.")
        import msgspec

        from memdiag.programs.recording_part import RecordingPart

        return msgspec.json.decode(answer, type=RecordingPart)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the record, such as ``sessions``, once the recording has ended."""
        if name.startswith("_") or self.run is None:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r} while it runs")
        return getattr(self.run, name)

    def _process_arguments(self, earlier_sessions: int) -> list[str]:
        options = [] if self._xray else ["--no-xray"]
        options += [
            str(recording._process.pid)
            for recording in _writing_recordings
            if recording._process is not None
        ]
        folder = "" if self.folder is None else str(self.folder.absolute())
        return [memdiag.__version__, str(os.getpid()), str(earlier_sessions), folder, *options]

    def __repr__(self) -> str:
        """Return one line: the answer, once the recording has ended."""
        if self.run is None:
            return "<Recording under way>"
        return repr(self.run).replace(type(self.run).__name__, type(self).__name__, 1)

    def _repr_html_(self) -> str:
        """Return the answer as HTML for notebooks, once the recording has ended."""
        if self.run is None:
            return "<p>Recording under way</p>"
        return self.run._repr_html_().replace(type(self.run).__name__, type(self).__name__, 1)


def recording(folder: str | os.PathLike[str] | None = None, *, xray: bool = True) -> Recording:
    """Record the onnxruntime sessions of this process while a ``with`` block runs.

    >>> with memdiag.recording("out") as recording:
    ...     answer()
    >>> recording.run.sessions
    >>> recording.wait()  # only if the next line reads a report

    Args:
        folder: where the record and the reports are written at the end; None for none. The record
            is there when the block has ended, the reports some seconds later.
        xray: identify the owners of the memory at the end.

    Raises:
        UsageError: this process is recorded already.
        MeasurementError: the recording cannot be started.
    """
    return Recording(folder, xray=xray)


def _wait_for_reports(recordings: Iterable[Recording]) -> None:
    """Wait for the reports of `recordings`, and warn of their errors."""
    for recording in recordings:
        try:
            recording.wait()
        except MemdiagError as error:
            warnings.warn(str(error), RuntimeWarning, stacklevel=2)


_writing_recordings: list[Recording] = []
"""The recordings that have ended and whose reports are being written."""
atexit.register(lambda: _wait_for_reports(tuple(_writing_recordings)))
os.register_at_fork(
    after_in_child=_writing_recordings.clear
)  # only the parent can wait for its child


def count_sessions() -> int:
    """Return the number of sessions that this process has; 0 if onnxruntime is not imported."""
    session_class = getattr(sys.modules.get("onnxruntime"), "InferenceSession", None)
    if session_class is None:
        return 0
    return sum(issubclass(type(instance), session_class) for instance in gc.get_objects())


def _install_hook(address: str) -> Callable[[], None]:
    """Record the sessions of this process, now or once onnxruntime is imported.

    Returns:
        A function that stops recording sessions.
    """
    onnxruntime = sys.modules.get("onnxruntime")
    if onnxruntime is not None:
        from memdiag.programs.hook.record_sessions import install  # not on Windows

        return install(onnxruntime, address, at_import=False)
    sys.meta_path.insert(0, sitecustomize.OnnxruntimeFinder)

    def uninstall_imported() -> None:
        with suppress(ValueError):  # the finder removes itself at the import
            sys.meta_path.remove(sitecustomize.OnnxruntimeFinder)
        while sitecustomize.uninstall_functions:
            sitecustomize.uninstall_functions.pop()()

    return uninstall_imported


def allow_reading_by(pid: int) -> None:
    """Allow process `pid` to read the memory of this one. Linux may allow only parents to do so."""
    with suppress(OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, pid, 0, 0, 0)
