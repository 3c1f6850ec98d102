"""Putting the commands together, and turning errors into one sentence and an exit code."""

import errno
import functools
import inspect
import io
import os
import signal
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from types import FrameType
from typing import Any, NoReturn

import typer

import memdiag
from memdiag.cli import commands
from memdiag.cli.exit_codes import ERROR
from memdiag.cli.worker import end_now
from memdiag.errors import MemdiagError

_LONGEST_REASON = 500
_OUTPUT_ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG)

app = typer.Typer(
    name="memdiag",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run() -> NoReturn:
    """Run the command line with the process's arguments and end with its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # File names need not be text, nor does every terminal know every letter.
        sys.stdout.reconfigure(errors="backslashreplace")
    add_commands(app)
    app()
    raise SystemExit(0)


def add_commands(target: typer.Typer) -> None:
    """Add the command of each module in `commands` to `target`."""
    for module in iter_modules(commands.__path__):
        home = import_module(f"{commands.__name__}.{module.name}")
        name = module.name.replace("_", "-")
        target.command(name=name, help=_help(home.command))(_guarded(home.command))


def _help(command: Callable[..., int]) -> str:
    """Return the help of `command`: a line for each paragraph, with brackets that are no markup."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(each.split()) for each in paragraphs).replace("[", r"\[")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"memdiag {memdiag.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False,
        "--version",
        help="Print the version and exit.",
        callback=_show_version,
        is_eager=True,
    ),
) -> None:
    """The memory profiler and diagnostician for ONNX models under ONNX Runtime."""


def _raise_at_signals() -> None:
    """Make signals that ask for an end raise KeyboardInterrupt from now on, as Ctrl-C does.

    Only in the command line's own process: in another program the handlers belong to the program.
    """
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is end_now:
            signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _guarded(command: Callable[..., int]) -> Callable[..., None]:
    """Return `command` with its result as the exit code and its errors as one sentence."""

    @functools.wraps(command)
    def guarded(*args: Any, **options: Any) -> None:
        try:
            _raise_at_signals()
            code = command(*args, **options)
            sys.stdout.flush()
        except MemdiagError as error:
            code = _fail(str(error))
        except KeyboardInterrupt as interrupt:
            code = _fail(f"interrupted. {interrupt}".strip())
        except BrokenPipeError:
            # The reader has ended (`memdiag … | head`): nobody is left to tell.
            code = _discard_output()
        except OSError as error:
            if error.filename is not None or error.errno not in _OUTPUT_ERRORS:
                code = _fail(_defect(error))
            else:
                _discard_output()
                code = _fail(
                    f"standard output: cannot be written ({error.strerror}). Free space, or"
                    " write to another file."
                )
        except MemoryError:
            code = _fail("out of memory. Allow this process more, or examine a smaller model.")
        except Exception as error:  # Python would end with 1, which means findings
            code = _fail(_defect(error))
        raise typer.Exit(code)

    return guarded


def _discard_output() -> int:
    """Send what is left of the output nowhere, so that its end does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ERROR


def _defect(error: Exception) -> str:
    """Return what is said of an error that no command foresees: its kind, text and place."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"unexpected {type(error).__name__} ({str(error)[:_LONGEST_REASON]}) in"
        f" {os.path.basename(place.filename)}, line {place.lineno}. Please report it."
    )


def _fail(message: str) -> int:
    from memdiag.reports.views.text import plain

    print(f"memdiag: {plain(message)}", file=sys.stderr)
    return ERROR
