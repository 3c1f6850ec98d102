"""The process that records the program that has started it: see `memdiag.api.recording`."""

import os
import select
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from importlib import import_module
from pathlib import Path

import msgspec

from memdiag.errors import MemdiagError
from memdiag.programs.end_requests import END_REQUEST, END_WITH_REPORTS
from memdiag.programs.recorder import Recorder
from memdiag.programs.recording_part import PartSession, RecordingPart
from memdiag.records.codec import encode
from memdiag.records.files import save_bytes
from memdiag.runner.observer import MemoryReading, ProcessGone
from memdiag.system.open_files import max_open_files
from memdiag.system.process_tree import process_info

_RUN_FILE = "run.json"
"""The name of the record, as in the reports."""

_REPORTS_NICENESS = 10
"""The program goes on while reports are written. If the next block ended at that time, it waited
1.7 s for its X-ray, and 3.2 s without this niceness (median of 3, 2 CPUs with a load of 7)."""

_ASSEMBLE_MODULES = ("numpy", "onnx", "memdiag.programs.assemble")
_XRAY_MODULE = "memdiag.programs.xrays.xray_task"
"""Modules that the end of a recording needs. They are imported after the first run of a session, so
that neither the start of the recording nor a creation waits for them."""


def main() -> None:
    """Record process PID until it sends `END_REQUEST`, and write the record to standard output.

    The arguments are the version of memdiag, PID, the number of sessions that PID has already,
    FOLDER, and optionally ``--no-xray`` and the ids of processes to ignore. The address of the
    recording is printed on standard output, with the reading of `time.perf_counter` at its start.
    Each line of standard input is answered with the part of the recording since the last answer.

    The answer to `END_REQUEST` is a line with the length of the record, and the record. At
    `END_WITH_REPORTS` the record is first written to FOLDER, and the reports after the answer. They
    are written here and not in the measured process, which reports would enlarge and delay. A line
    with the error of writing the record comes before the length, and a line with the error of
    writing the reports after the record; the lines are empty without an error. If standard input
    ends without a request, the process was killed: the record is then written to FOLDER, unless
    that is empty.
    """
    version, pid, earlier_sessions, folder, *options = sys.argv[1:]
    takes_xray = "--no-xray" not in options
    ignored = [int(option) for option in options if option.isdecimal()]
    recorder = Recorder(
        takes_xray=takes_xray, earlier_sessions=int(earlier_sessions), ignored=ignored
    )
    with closing(recorder):
        info = process_info(int(pid))
        origin_s = time.perf_counter() - recorder.now_s()
        parts = _RecordingParts(recorder)
        preload = _module_preloader((*_ASSEMBLE_MODULES, *([_XRAY_MODULE] if takes_xray else [])))

        def on_step(recorder: Recorder) -> None:
            parts.add_step(recorder)
            has_run = any(session.first_run_s is not None for session in recorder.sessions)
            if has_run and not recorder.is_busy:  # no session waits for the import
                preload()

        try:
            os.write(sys.stdout.fileno(), f"{recorder.address} {origin_s!r}\n".encode())
        except BrokenPipeError:  # the process was killed
            return
        with max_open_files():
            recorder.run(int(pid), parts.has_input_ended, on_step)
        command = info.command if info else ()
        from memdiag.programs.assemble import assemble_run

        run = assemble_run(recorder, command, None, memdiag_version=version)
    record = encode(run)
    if not parts.request:
        if folder:
            _error_of(lambda: save_bytes(record, Path(folder, _RUN_FILE)))  # nobody reads the error
        return
    writes_reports = parts.request == END_WITH_REPORTS
    error = (
        _error_of(lambda: save_bytes(record, Path(folder, _RUN_FILE))) if writes_reports else b""
    )
    with suppress(BrokenPipeError), open(sys.stdout.fileno(), "wb") as output:
        output.write(b"%s\n%d\n%s" % (error, len(record), record))
        output.flush()
        if writes_reports and not error:
            os.nice(_REPORTS_NICENESS)
            output.write(_error_of(lambda: run.write_reports(folder)))


def _module_preloader(names: tuple[str, ...]) -> Callable[[], None]:
    """Return a function that imports the next of the modules `names` at each call."""
    remaining_names = list(names)

    def preload() -> None:
        if remaining_names:
            import_module(remaining_names.pop(0))

    return preload


def _error_of(write: Callable[[], object]) -> bytes:
    """Return the error of `write` in one line; empty without one."""
    try:
        write()
    except MemdiagError as error:
        return " ".join(str(error).split()).encode(errors="replace")
    return b""


class _RecordingParts:
    """The parts of a recording between requests.

    Args:
        recorder: the recorder.

    Attributes:
        request: the request that has ended the recording, `END_REQUEST` or `END_WITH_REPORTS`;
            empty if there was none.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.request = b""
        self._recorder = recorder
        self._first_session = 0
        self._first_peak = 0
        self._peak_rss_bytes = 0
        self._peak_sessions: tuple[int, ...] = ()
        self._previous: MemoryReading | None = None

    def has_input_ended(self) -> bool:
        """Answer a request on standard input, and return whether standard input has ended."""
        if not select.select([sys.stdin], [], [], 0)[0]:
            return False
        request = os.read(sys.stdin.fileno(), 1)
        if request in (END_REQUEST, END_WITH_REPORTS):
            self.request = request
        elif request:
            with suppress(BrokenPipeError):
                os.write(sys.stdout.fileno(), msgspec.json.encode(self._finished_part()) + b"\n")
        return bool(self.request) or not request

    def add_step(self, recorder: Recorder) -> None:
        """Add the last sample of `recorder` to the part, unless it is older."""
        last_sample = recorder.total_rss.last
        if last_sample is None or last_sample is self._previous:
            return
        if last_sample.rss_bytes > self._peak_rss_bytes:
            self._peak_rss_bytes = last_sample.rss_bytes
            self._peak_sessions = self._active_sessions()

    def _active_sessions(self) -> tuple[int, ...]:
        live_processes = self._recorder.live.values()
        return tuple(
            sorted(session.number for process in live_processes for session in process.active)
        )

    def _finished_part(self) -> RecordingPart:
        """Return the part until now, and start the next part."""
        from memdiag.programs.assemble import callers_of, created_at, library_of

        rss_bytes = self._rss_bytes()
        sessions = self._recorder.sessions
        part = RecordingPart(
            sessions=tuple(
                PartSession(
                    number=session.number,
                    pid=session.process.pid,
                    model=session.description.model.path,
                    model_bytes=session.description.model.bytes,
                    library=library_of(callers[0].file) if callers else None,
                    created_at=created_at(session),
                    callers=callers,
                )
                for session in sessions[self._first_session :]
                if session.error is None
                for callers in [callers_of(session)]
            ),
            peak_rss_bytes=max(self._peak_rss_bytes, rss_bytes),
            peak_sessions=self._peak_sessions,
            peak_run=max(
                self._recorder.peaks[self._first_peak :],
                key=lambda run: run.peak_rss_bytes,
                default=None,
            ),
        )
        self._first_session = len(sessions)
        self._first_peak = len(self._recorder.peaks)
        self._peak_rss_bytes = rss_bytes
        self._peak_sessions = self._active_sessions()
        self._previous = self._recorder.total_rss.last
        return part

    def _rss_bytes(self) -> int:
        """Return the sum of the resident sets now."""
        total_rss_bytes = 0
        for process in self._recorder.processes:
            if process.ended_s is None:
                with suppress(ProcessGone):
                    total_rss_bytes += process.sample(self._recorder.now_s())
        return total_rss_bytes
