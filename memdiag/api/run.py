"""Record a program: run its command, and record every onnxruntime session in it."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import memdiag
from memdiag.errors import UsageError
from memdiag.programs.assemble import assemble_run
from memdiag.programs.control import control_file
from memdiag.programs.interrupt import Interrupt
from memdiag.programs.open_files import most_open_files
from memdiag.programs.recorder import Recorder, RunPause
from memdiag.records.run import ProgramRun

STDOUT_FILE: Final = "stdout.txt"
STDERR_FILE: Final = "stderr.txt"


def run(
    command: Sequence[str | os.PathLike[str]],
    *,
    xray: bool = True,
    request_folder: str | os.PathLike[str] | None = None,
    program_output_folder: str | os.PathLike[str] | None = None,
    on_progress: Callable[[Recorder], None] | None = None,
) -> ProgramRun:
    """Run the program `command` and return what was recorded of it.

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

    Raises:
        UsageError: `command` is empty, the program cannot be started, or a folder cannot be
            written.
    """
    return run_program(
        command,
        xray=xray,
        request_folder=request_folder,
        program_output_folder=program_output_folder,
        on_progress=on_progress,
    )


def run_program(
    command: Sequence[str | os.PathLike[str]],
    *,
    xray: bool,
    request_folder: str | os.PathLike[str] | None = None,
    program_output_folder: str | os.PathLike[str] | None = None,
    on_progress: Callable[[Recorder], None] | None = None,
    run_pause: RunPause | None = None,
    is_complete: Callable[[Recorder], bool] = lambda recorder: False,
) -> ProgramRun:
    """Run the program `command` as `run` does; `run_pause` reads its memory between runs.

    Once `is_complete` returns True, the program is ended as Ctrl-C ends it.

    Raises:
        UsageError: as in `run`.
    """
    words = [os.fspath(word) for word in command]
    if not words:
        raise UsageError("no command was given. Name the program to run, such as python app.py.")
    recorder = Recorder(xray=xray, run_pause=run_pause)
    with ExitStack() as stack:
        stack.callback(recorder.close)
        if request_folder is not None:
            stack.enter_context(control_file(Path(request_folder), recorder.address))
        streams = stack.enter_context(_streams(program_output_folder))
        try:
            process = subprocess.Popen(words, env=recorder.environment(), **streams)
        except OSError as error:
            raise UsageError(f"{words[0]}: cannot be started ({error.strerror}).") from error
        interrupt = Interrupt(process.pid)

        def has_ended() -> bool:
            if process.poll() is not None:
                return True
            if is_complete(recorder):
                interrupt.update(recorder.now_s())
            return False

        with _passing_signals_on(process, recorder), most_open_files():
            recorder.run(process.pid, has_ended, on_progress)
        return assemble_run(
            recorder, words, process.returncode, memdiag_version=memdiag.__version__
        )


@contextmanager
def _streams(name: str | os.PathLike[str] | None) -> Iterator[dict[str, Any]]:
    """Yield the standard streams of a program: files in the folder `name`, or ours without it.

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


class _passing_signals_on:  # a context manager
    """Has signals that end a program reach `process`; this process waits for its end.

    Ctrl-C reaches the process without help: it is in the same group.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", recorder: Recorder) -> None:
        self._process = process
        self._recorder = recorder
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> None:
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name)
            self._handlers[number] = signal.signal(number, self._pass_on)
        self._handlers[signal.SIGINT] = signal.signal(signal.SIGINT, lambda number, frame: None)

    def _pass_on(self, number: int, frame: object) -> None:
        self._recorder.program_is_stopping()
        self._process.send_signal(number)

    def __exit__(self, *error: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
