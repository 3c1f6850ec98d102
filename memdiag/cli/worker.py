"""A forked worker that runs a command, so that a crash of native code is one error sentence.

A damaged model can crash the native shape inference of onnx, and a file on a network drive can
vanish while it is mapped. The process that the user started only waits for the worker: it passes
signals on, and reports a worker that was killed by a signal.
"""

import atexit
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from memdiag.cli import EXIT_ERROR
from memdiag.process_end import crash_text, signal_name

_PASSED_ON_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
_SIGNAL_REASONS = {
    "SIGKILL": "it was killed (SIGKILL). Possible reasons: memory is short, or a limit of CPU time"
    " was reached. Allow it more, or examine a smaller model",
    "SIGXCPU": "the limit of CPU time was reached (SIGXCPU). Raise it (ulimit -t)",
    "SIGBUS": "a file became shorter while it was read (SIGBUS). Try again when it is complete",
}


def continue_in_worker() -> None:
    """Fork a worker, and return only in the worker. This process ends with the worker's exit code.

    Call it before any thread is started, and after `open_standard_streams` and `end_at_signals`.
    If a limit of processes prevents the fork, it returns in this process.
    """
    parent = os.getpid()
    try:
        worker = os.fork()
    except OSError:
        return
    # A group of its own: signals of the terminal reach the worker once, through this process.
    os.setpgid(worker, worker or 0)
    if worker == 0:
        # Imported here because help starts no worker.
        from memdiag.runner.temporary import end_with

        end_with(parent)
        return

    def pass_on(number: int, frame: FrameType | None) -> None:
        os.killpg(worker, number)

    def suspend(number: int, frame: FrameType | None) -> None:
        os.killpg(worker, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        os.killpg(worker, signal.SIGCONT)

    for number in (getattr(signal, name) for name in _PASSED_ON_SIGNALS):
        if signal.getsignal(number) is end_now:
            signal.signal(number, pass_on)
    signal.signal(signal.SIGTSTP, suspend)
    code = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    if code < 0:
        name = signal_name(code)
        if name in _PASSED_ON_SIGNALS:
            end_now(-code, None)
        reason = _SIGNAL_REASONS.get(name, crash_text(code))
        arguments = ascii(" ".join(sys.argv[1:]))[1:-1]
        with suppress(OSError):  # standard error is full or closed
            print(f"memdiag: {arguments}: {reason}.", file=sys.stderr)
        code = EXIT_ERROR
    # This process has nothing to clean up, and has buffered none of the worker's output.
    os._exit(code)


@contextmanager
def signals_for_main_thread() -> Iterator[None]:
    """Block signals in threads that start in the block, such as numpy's threads at its import.

    Otherwise a signal of the process may arrive in any thread, not only in the one that waits.
    """
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


def run_here(command: Callable[[], int]) -> NoReturn:
    """Run `command`, and end this process with its exit code, without finalizing the interpreter.

    A signal that interrupts the import of a native module leaves the module half initialized.
    Python 3.11 has aborted when it finalized such a module.
    """
    try:
        code = command()
    except KeyboardInterrupt:  # between two handlers
        end_now(signal.SIGINT, None)
    for name in _PASSED_ON_SIGNALS:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # the reader of a pipe has ended
            stream.flush()
    os._exit(code)


def open_standard_streams() -> None:
    """Open the null device for each standard stream that is closed (`memdiag … >&-`)."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # It gets the lowest free number, which is this stream's.
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def end_at_signals() -> None:
    """Install `end_now` as the handler of SIGINT, SIGTERM and SIGHUP, unless nohup is used."""
    for name in _PASSED_ON_SIGNALS:
        number = getattr(signal, name)
        if name != "SIGHUP" or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, end_now)


def end_now(number: int, frame: FrameType | None) -> NoReturn:
    """End the process at a signal. No command is running, so nothing has to be saved."""
    with suppress(OSError):  # standard error is full or closed
        os.write(2, b"memdiag: interrupted.\n")
    os._exit(EXIT_ERROR)
