"""Record a program: run its command, and record every onnxruntime session in it."""

import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import memdiag
import memdiag.programs.xrays.xray_task  # now: a process waits at its end for the first X-ray
from memdiag.api.arguments import program_advice
from memdiag.errors import UsageError
from memdiag.programs.assemble import assemble_run, early_saver
from memdiag.programs.interrupt import ProgramInterrupt
from memdiag.programs.recorder import Recorder
from memdiag.programs.run_pause import RunPause
from memdiag.programs.wait_notice import OnWait, WaitNotice
from memdiag.programs.xrays.xray_requests import control_file
from memdiag.records.run import ProgramRun
from memdiag.system.open_files import max_open_files

STDOUT_FILE: Final = "stdout.txt"
STDERR_FILE: Final = "stderr.txt"


def run(
    command: Sequence[str | os.PathLike[str]],
    *,
    xray: bool = True,
    request_folder: str | os.PathLike[str] | None = None,
    program_output_folder: str | os.PathLike[str] | None = None,
    on_progress: Callable[[Recorder], None] | None = None,
    on_wait: OnWait = lambda text: None,
) -> ProgramRun:
    """Run the program `command` and return its recording.

    >>> run = memdiag.run(["python", "app.py"])
    >>> run.write_reports("out")

    The program has the standard input, output and error, the working directory and the environment
    of this process. However it ends, the recording up to then is returned.

    Args:
        command: the program and its arguments.
        xray: identify the owners of the memory of each process with sessions at its end, and at
            peaks that last.
        request_folder: the folder that ``memdiag xray FOLDER`` must name to take X-rays while the
            program runs; None for no requests. No report is written there.
        program_output_folder: write what the program prints to the files `STDOUT_FILE` and
            `STDERR_FILE` there; its standard input is then the null device. None to let it print.
        on_progress: called many times a second with the recorder; the program may wait for it to
            return.
        on_wait: called with a sentence if the program has waited at its end for memdiag for a
            second.

    Raises:
        UsageError: `command` is empty, the program cannot be started, or a folder cannot be
            written.
    """
    return run_program(
        command,
        takes_xray=xray,
        request_folder=request_folder,
        program_output_folder=program_output_folder,
        on_progress=on_progress,
        on_wait=on_wait,
    )


def run_program(
    command: Sequence[str | os.PathLike[str]],
    *,
    takes_xray: bool,
    request_folder: str | os.PathLike[str] | None = None,
    program_output_folder: str | os.PathLike[str] | None = None,
    on_progress: Callable[[Recorder], None] | None = None,
    on_wait: OnWait = lambda text: None,
    run_pause: RunPause | None = None,
    is_complete: Callable[[Recorder], bool] = lambda recorder: False,
    until_saved: ExitStack | None = None,
    on_near_limit: Callable[[ProgramRun], None] | None = None,
) -> ProgramRun:
    """Run the program `command` as `run` does; `run_pause` reads its memory between runs.

    Once `is_complete` returns True, the program is ended as Ctrl-C ends it; `on_wait` receives a
    sentence if it goes on. Signals do not end this process before `until_saved` is closed, so that
    the recording can be saved. `on_near_limit` is called with the recording until then when the
    control group of the program comes near its memory limit.

    Raises:
        UsageError: as in `run`.
    """
    words = [os.fspath(word) for word in command]
    if not words or not words[0]:
        raise UsageError("no command was given. Name the program to run, such as python app.py.")

    save_early = early_saver(on_near_limit, words, memdiag_version=memdiag.__version__)
    recorder = Recorder(takes_xray=takes_xray, run_pause=run_pause, on_near_limit=save_early)
    with ExitStack() as stack:
        stack.callback(recorder.close)
        if request_folder is not None:
            stack.enter_context(control_file(Path(request_folder), recorder.address))
        streams = stack.enter_context(_program_streams(program_output_folder))
        try:
            process = subprocess.Popen(words, env=recorder.environment(), **streams)
        except OSError as error:
            raise UsageError(
                f"{words[0]}: cannot be started ({error.strerror}). {program_advice(words[0])}"
            ) from error
        interrupt = ProgramInterrupt(process.pid, on_wait)
        notice = WaitNotice(on_wait)

        def update(recorder: Recorder) -> None:
            notice.update(recorder)
            if on_progress is not None:
                on_progress(recorder)

        signals = (until_saved or stack).enter_context(_SignalPassing(process, recorder))
        stack.enter_context(max_open_files())

        def has_ended() -> bool:
            if signals.has_process_ended():
                return True
            if is_complete(recorder):
                interrupt.update(recorder.now_s())
            return False

        recorder.run(process.pid, has_ended, update)
        return assemble_run(
            recorder, words, process.returncode, memdiag_version=memdiag.__version__
        )


@contextmanager
def _program_streams(name: str | os.PathLike[str] | None) -> Iterator[dict[str, Any]]:
    """Yield the standard streams of a program: files in the folder `name`; ours if it is None.

    Raises:
        UsageError: a file cannot be written.
    """
    if name is None:
        yield {}
        return
    folder = Path(name)
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            output = stack.enter_context(open(folder / STDOUT_FILE, "wb"))
            errors = stack.enter_context(open(folder / STDERR_FILE, "wb"))
        except OSError as error:
            raise UsageError(
                f"{folder}: the output of the program cannot be written there ({error.strerror})."
                " Choose another folder with --out."
            ) from error
        yield {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": errors}


_TERMINAL_STOP_SIGNALS: Final = frozenset({signal.SIGTTIN, signal.SIGTTOU})
_TERMINAL_SIGNALS: Final = frozenset(
    {signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH, *_TERMINAL_STOP_SIGNALS}
)
_STOPPING_SIGNALS: Final = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
_PASSED_SIGNALS: Final = _TERMINAL_SIGNALS | _STOPPING_SIGNALS | {signal.SIGUSR1, signal.SIGUSR2}
"""Signals that have a meaning for programs, such as gunicorn: stop, reload, reopen the logs."""

_GROUP_SIGNALS: Final = frozenset({signal.SIGINT, signal.SIGQUIT})
GROUP_SIGNAL_S: Final = 0.5
"""Seconds before these signals are passed on: a program that has ended by then had the signal."""

MIN_WAITED_S: Final = 0.5
REPEATED_CTRL_C_S: Final = 5.0
"""Two Ctrl-C within these seconds mean that the user does not want to wait for the program."""


def _other_threads_block(numbers: Collection[int]) -> bool:
    """Return whether all other threads block the signals `numbers`."""
    signal_mask = sum(1 << (number - 1) for number in numbers)
    try:
        threads = set(os.listdir("/proc/self/task")) - {str(threading.get_native_id())}
        for thread in threads:
            status = Path("/proc/self/task", thread, "status").read_text()
            blocked_mask = int(status.partition("SigBlk:")[2].split()[0], 16)
            if signal_mask & ~blocked_mask:
                return False
    except OSError:
        return False
    return True


class _SignalPassing:
    """Passes signals that were sent to this process on to the program, until the program ends.

    A terminal sends its signals, such as SIGINT for Ctrl-C, to all processes of the foreground, so
    the program has them already. These signals come from the kernel (`si_code`), other signals from
    a process. Only the SIGHUP of a terminal that was closed goes to the leader of its session
    alone.

    A signal that a process sends to the whole group cannot be distinguished from a signal to this
    process alone.

    Use it as a context manager: the signals are blocked in this thread within its block. If another
    thread does not block them, signals that may come from a terminal are not passed on.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", recorder: Recorder) -> None:
        self._process = process
        self._recorder = recorder
        self._handlers: dict[int, Any] = {}
        self._blocked_before: set[int] | None = None
        self._delayed_signals: list[tuple[float, int]] = []
        self._ctrl_c_s = -math.inf
        self._unhandled_ctrl_c = 0

    def __enter__(self) -> "_SignalPassing":
        for number in _PASSED_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # as `nohup` starts both
                self._handlers[number] = signal.signal(number, self._handle_signal)
        if _other_threads_block(self._handlers):
            self._blocked_before = signal.pthread_sigmask(signal.SIG_BLOCK, self._handlers)
        return self

    def has_process_ended(self) -> bool:
        """Pass on the signals that have arrived, and return whether the program has ended."""
        for number, is_from_kernel in self._arrived_signals():
            is_hangup = number == signal.SIGHUP and os.getsid(0) == os.getpid()
            if not is_from_kernel or is_hangup:
                delay_s = GROUP_SIGNAL_S if number in _GROUP_SIGNALS else 0.0
                self._delayed_signals.append((time.monotonic() + delay_s, number))
            elif number == signal.SIGINT:
                self._unhandled_ctrl_c += 1
            elif number in _TERMINAL_STOP_SIGNALS:  # this process would stop with the program
                os.kill(os.getpid(), signal.SIGSTOP)
        while self._unhandled_ctrl_c:
            self._unhandled_ctrl_c -= 1
            self._handle_ctrl_c()
        if self._process.poll() is not None:
            return True
        now_s = time.monotonic()
        for at_s, number in self._delayed_signals:
            if at_s <= now_s:
                self._pass_on(number)
        self._delayed_signals = [
            (at_s, number) for at_s, number in self._delayed_signals if at_s > now_s
        ]
        return False

    def _handle_ctrl_c(self) -> None:
        """Skip X-rays if Ctrl-C came while processes wait for them, or twice in a row."""
        now_s = time.monotonic()
        wait = self._recorder.end_wait
        # The same Ctrl-C may have been what ended the program.
        has_waited = wait is not None and wait.waited_s > MIN_WAITED_S
        if has_waited or now_s < self._ctrl_c_s + REPEATED_CTRL_C_S:
            self._recorder.skip_end_xrays()
        self._ctrl_c_s = now_s

    def _arrived_signals(self) -> Iterator[tuple[int, bool]]:
        """Yield each signal that has arrived, and whether it came from the kernel."""
        if self._blocked_before is None:
            return
        while (info := signal.sigtimedwait(self._handlers, 0)) is not None:
            yield info.si_signo, info.si_code > 0

    def _handle_signal(self, number: int, frame: object) -> None:
        if number not in _TERMINAL_SIGNALS:
            self._pass_on(number)
        elif number == signal.SIGINT:
            self._unhandled_ctrl_c += 1

    def _pass_on(self, number: int) -> None:
        if number in _STOPPING_SIGNALS:
            self._recorder.program_is_stopping()
        self._process.send_signal(number)

    def __exit__(self, *error: object) -> None:
        if self._blocked_before is not None:
            for _ in self._arrived_signals():  # the program has ended
                pass
            signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked_before)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
