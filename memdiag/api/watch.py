"""Watch a running process: record the memory of the process and its descendants, from outside."""

import os
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any, Final

import memdiag
import memdiag.programs.xrays.xray_task  # now, so that the first X-ray need not wait for it
from memdiag.attribution.address_space import access_denied, no_such_process
from memdiag.errors import UsageError, XrayError
from memdiag.model.model_file import open_model
from memdiag.programs.assemble import assemble_run, early_saver
from memdiag.programs.recorder import Recorder
from memdiag.programs.wait_notice import NOTICE_S, OnWait
from memdiag.programs.xrays.xray_requests import control_file
from memdiag.records.run import ProgramRun
from memdiag.system.open_files import max_open_files
from memdiag.units import counted

WATCH_PERIOD_S: Final = 0.1
MIN_WATCH_PERIOD_S: Final = 0.001


_NO_SEARCH_NOTE = (
    "No waste was searched for: that needs an X-ray of a process that runs for weights and free"
    " memory, and memdiag run for sessions."
)


def watch(
    pid: int,
    *,
    duration_s: float | None = None,
    period_s: float = WATCH_PERIOD_S,
    xray: bool = True,
    models: Sequence[str | os.PathLike[str]] | None = None,
    request_folder: str | os.PathLike[str] | None = None,
    on_progress: Callable[[Recorder], None] | None = None,
    on_wait: OnWait = lambda text: None,
    on_near_limit: Callable[[ProgramRun], None] | None = None,
) -> ProgramRun:
    """Record the memory of process `pid` and its descendants, in any language, and return it.

    The processes are only read. The recording ends with process `pid`, after `duration_s`, or at
    SIGINT (Ctrl-C), SIGTERM or SIGHUP. A signal after that ends X-rays that are being taken.

    Args:
        pid: a process of this user that is not this one.
        duration_s: the length of the recording in seconds; None for no limit.
        period_s: the seconds between samples.
        xray: identify the owners of the memory of each process that uses onnxruntime, at the end
            and at peaks that last.
        models: the ONNX files whose weights are searched for; by default those that a process maps,
            has open or was started with.
        request_folder: the folder that ``memdiag xray FOLDER`` must name to take X-rays during it;
            None for no requests. No report is written there.
        on_progress: called several times a second with the recorder.
        on_wait: called with a sentence at the start if there is no limit, and if X-rays take longer
            than a second at the end.
        on_near_limit: called with the recording until then when the control group of the process
            comes near its memory limit: the kernel may kill this process with it.

    Raises:
        UsageError: `pid` is this process or process 1, a time is out of bounds, or the folder
            cannot be written.
        ModelError: one of `models` cannot be read.
        XrayError: there is no such process, or it cannot be read.
    """
    _check_times(duration_s, period_s)
    command = _command_of(pid)
    paths = None if models is None else [Path(model) for model in models]
    for path in paths or ():
        open_model(path).close()

    save_early = early_saver(on_near_limit, command, memdiag_version=memdiag.__version__)
    recorder = Recorder(takes_xray=xray, period_s=period_s, models=paths, on_near_limit=save_early)
    with ExitStack() as stack:
        stack.callback(recorder.close)
        stack.enter_context(max_open_files())
        if request_folder is not None:
            stack.enter_context(control_file(Path(request_folder), recorder.address))
        signals = stack.enter_context(_SignalCounter())

        def has_ended() -> bool:
            is_over = duration_s is not None and recorder.now_s() >= duration_s
            return is_over or signals.count > 0

        if duration_s is None:
            on_wait(f"recording process {pid} until it ends. Ctrl-C ends it before.")
        recorder.watch(pid, has_ended, on_progress)
        if xray:
            recorder.start_xrays("end")
        earlier_signals, began_s = signals.count, recorder.now_s()
        has_notified = False

        def has_new_signal() -> bool:
            nonlocal has_notified
            if not has_notified and recorder.now_s() >= began_s + NOTICE_S:
                has_notified = True
                xrays = counted(recorder.pending_xrays, "X-ray")
                on_wait(f"waiting for {xrays}. Ctrl-C skips what is not there yet.")
            return signals.count > earlier_signals

        recorder.wait_for_xrays(has_new_signal, on_progress)
        if not recorder.peak_rss_bytes:
            raise XrayError(f"process {pid} has ended, or is a thread of the kernel.")
        if not recorder.xrays and any(process.runtime_version for process in recorder.processes):
            recorder.notes.append(_NO_SEARCH_NOTE)
        return assemble_run(recorder, command, None, memdiag_version=memdiag.__version__)


def _check_times(duration_s: float | None, period_s: float) -> None:
    """Raise UsageError if a time is out of bounds."""
    if duration_s is not None and not duration_s > 0:
        raise UsageError(f"a recording cannot last {duration_s} s. Give a time above 0.")
    if not period_s >= MIN_WATCH_PERIOD_S:
        raise UsageError(f"samples cannot be {period_s} s apart. Give a time from 1 ms.")


def _command_of(pid: int) -> tuple[str, ...]:
    """Return the command line of process `pid`.

    Raises:
        UsageError: the process is process 1 or memdiag itself.
        XrayError: there is no such process, or it cannot be read.
    """
    if pid == 1:
        raise UsageError(
            "process 1 is the ancestor of all processes. Give the id of the process of a program."
        )
    if pid == os.getpid():
        raise UsageError(f"process {pid} is memdiag itself. Give the id of another process.")
    try:
        Path(f"/proc/{pid}/maps").read_bytes()
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except PermissionError as error:
        raise access_denied(pid) from error
    except OSError as error:
        raise no_such_process(pid) from error
    return tuple(os.fsdecode(word) for word in words[:-1])


class _SignalCounter:  # a context manager
    """Counts the signals that ask for an end, which then raise nothing.

    Only the main thread can handle signals.

    Attributes:
        count: the number of signals until now.
    """

    def __init__(self) -> None:
        self.count = 0
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> "_SignalCounter":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                self._handlers[number] = signal.signal(number, self._count_signal)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _count_signal(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
