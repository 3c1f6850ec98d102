"""Parse the command line, run a command, and turn its errors into an exit code."""

import argparse
import errno
import io
import os
import signal
import sys
import textwrap
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from types import FrameType, ModuleType
from typing import Any, NamedTuple, NoReturn

import memdiag
from memdiag.cli import EXIT_CLEAN, EXIT_ERROR
from memdiag.cli.commands import COMMAND_NAMES
from memdiag.cli.worker import end_now
from memdiag.errors import MAX_REASON_LENGTH, ArgumentError, MemdiagError

MAX_HELP_WIDTH = 100
INTERRUPT_AGAIN_S = 0.05
"""Seconds after which an interrupt that Python ignored is raised again."""

_OUTPUT_ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG)
_SHORTAGE_TEXTS = ("failed to map segment", "can't start new thread", "cannot allocate memory")
"""Texts of errors that mean too little memory or too few processes."""


class Invocation(NamedTuple):
    """A command with the values of its options and arguments.

    Attributes:
        module: the module of the command.
        options: the values.
    """

    module: ModuleType
    options: argparse.Namespace

    @property
    def runs_in_worker(self) -> bool:
        """Whether the command runs in a worker, by `IN_WORKER` of its module."""
        rule: bool | Callable[[argparse.Namespace], bool]
        rule = getattr(self.module, "IN_WORKER", True)
        return rule(self.options) if callable(rule) else rule


def parse_command_line() -> Invocation:
    """Return the command that the arguments of this process name.

    Help, the version and errors in the arguments are printed, and end the process.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # File names may contain bytes that are not text, and terminals may lack characters.
        sys.stdout.reconfigure(errors="backslashreplace")
    if not os.environ.get("COLUMNS", "0").strip("0"):
        # The terminal does not know its width. rich would print nothing.
        os.environ.pop("COLUMNS", None)
    name, *words = sys.argv[1:] or [""]
    if name in COMMAND_NAMES:
        module = command_module(name)
        return Invocation(module, parse_options(command_parser(name, module), words))
    parser = main_parser()
    if not name:
        raise SystemExit(print_help(parser) or EXIT_ERROR)
    if name in ("-h", "--help"):
        raise SystemExit(print_help(parser))
    if name == "--version":
        raise SystemExit(print_text(f"memdiag {memdiag.__version__}\n"))
    if not name.startswith("-"):
        parser.error(f"unknown command {name!r}.{_suggestion_text(name, COMMAND_NAMES)}")
    parser.parse_args([name])
    raise SystemExit(0)


def parse_options(parser: argparse.ArgumentParser, words: list[str]) -> argparse.Namespace:
    """Return the values of options and arguments. Help and errors end the process."""
    if "--" in words and parser.get_default("program") is not None:
        # The words after it are a program and its arguments, not options of memdiag.
        separator = words.index("--")
        options = parse_options(parser, words[:separator])
        options.program = words[separator + 1 :]
        return options
    # Also without --, all words from the first one that is not an option are the program's.
    if "--" in words or parser.get_default("command") is not None:
        return parser.parse_args(words)
    if "-h" in words or "--help" in words:
        raise SystemExit(print_help(parser))
    # Intermixed: `memdiag check a.onnx --quiet b.onnx` checks two models.
    return parser.parse_intermixed_args(words)


def print_help(parser: argparse.ArgumentParser) -> int:
    """Print the help, and return the exit code."""
    # Not `parser.print_help`, which ignores errors of standard output.
    return print_text(parser.format_help())


def print_text(text: str) -> int:
    """Print `text` on standard output, and return the exit code."""

    def command() -> int:
        print(text, end="")
        return EXIT_CLEAN

    return run_guarded(command)


def command_module(name: str) -> ModuleType:
    """Return the module of a command, which has `configure`, `run` and `ARGUMENTS`."""
    return import_module(f"memdiag.cli.commands.{name}")


def command_parser(name: str, module: ModuleType) -> argparse.ArgumentParser:
    """Return the parser of one command."""
    parser = _CommandParser(
        prog=f"memdiag {name}",
        usage=f"memdiag {name} [OPTIONS] {module.ARGUMENTS}".rstrip(),
        description=module.run.__doc__,
    )
    module.configure(parser)
    return parser


def main_parser() -> argparse.ArgumentParser:
    """Return the parser for ``memdiag --help`` and ``memdiag --version``."""
    parser = _CommandParser(
        prog="memdiag",
        usage="memdiag [OPTIONS] COMMAND [ARGUMENTS]",
        description="The memory profiler and diagnostician for ONNX models under ONNX Runtime.",
        epilog="memdiag COMMAND --help describes the options of a command.",
    )
    parser.add_argument(
        "--version",
        action="store_true",  # for the help: `parse_command_line` prints it
        help="Print the version and exit.",
    )
    group = parser.add_argument_group("Commands")
    for name in COMMAND_NAMES:
        summary, _, _ = str(command_module(name).run.__doc__).partition("\n\n")
        group.add_argument(name, nargs="?", help=summary)
    return parser


class _CommandParser(argparse.ArgumentParser):
    """Argument parser that prints errors as one sentence on standard error."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            formatter_class=_HelpFormatter, allow_abbrev=False, add_help=False, **settings
        )
        self._positionals.title, self._optionals.title = "Arguments", "Options"
        self.add_argument("-h", "--help", action="help", help="Print this help and exit.")

    def error(self, message: str) -> NoReturn:
        """Print `message` and end with the exit code for errors."""
        unknown_words = message.removeprefix("unrecognized arguments: ")
        if unknown_words != message:
            options = [option for action in self._actions for option in action.option_strings]
            suggestion = _suggestion_text(unknown_words, options)
            if unknown_words.isdecimal() and "--runs" in options:
                suggestion = f" Did you mean --runs {unknown_words}?"
            message = f"unknown argument {unknown_words}.{suggestion}"
        period = "" if message.endswith((".", "?")) else "."
        subject = self.prog.removeprefix("memdiag").strip()
        prefix = f"{subject}: " if subject else ""
        _print_error(f"{prefix}{message}{period} See {self.prog} --help.")
        raise SystemExit(EXIT_ERROR)


class _HelpFormatter(argparse.HelpFormatter):
    """Formatter of help: separate paragraphs, and the default of each option that has a value."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30)
        self._width = min(self._width, MAX_HELP_WIDTH)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.split("\n\n")
        return "\n\n".join(
            super(_HelpFormatter, self)._fill_text(paragraph, width, indent)
            for paragraph in paragraphs
        )

    def _split_lines(self, text: str, width: int) -> list[str]:
        # Names of options and folders are not broken at their hyphens.
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        is_value = isinstance(action.default, str | int | float) and not isinstance(
            action.default, bool
        )
        if not action.option_strings or action.nargs == 0 or not is_value or action.default == "":
            return action.help
        return f"{action.help} (default: %(default)s)"


def _suggestion_text(word: str, valid_words: Sequence[str]) -> str:
    import re
    from difflib import get_close_matches

    name = re.split("[= ]", word, maxsplit=1)[0]
    similar = get_close_matches(name, valid_words, n=1)
    if not similar and re.fullmatch("-[a-z]", name):  # no option has this short form
        options = (option for option in valid_words if option.startswith(f"-{name}"))
        similar = sorted(options, key=len)
    return f" Did you mean {similar[0]}?" if similar else ""


def run_guarded(command: Callable[..., int], *arguments: Any) -> int:
    """Return the exit code of `command`; its errors become one sentence on standard error."""
    received_signals: set[int] = set()
    try:
        _raise_at_signals(received_signals)
        code = command(*arguments)
        sys.stdout.flush()
    except ArgumentError as error:
        from memdiag.cli.options import flag_of

        return _print_error(error.with_arguments(flag_of), error)
    except MemdiagError as error:
        return _print_error(str(error), error)
    except KeyboardInterrupt as interrupt:
        return _print_error(f"interrupted. {interrupt}".strip(), interrupt)
    except (BrokenPipeError, SystemExit):
        # The reader of the output has ended (`memdiag … | head`). rich would end with 1.
        return _discard_output()
    except Exception as error:  # Python would end with 1, which means findings
        if isinstance(error, OSError) and error.filename is None and error.errno in _OUTPUT_ERRORS:
            _discard_output()
        # An interrupted import of a native module can become another error.
        message = "interrupted." if received_signals else _unforeseen_error_message(error)
        return _print_error(message, error)
    return code


def _raise_at_signals(received: set[int]) -> None:
    """Raise KeyboardInterrupt at signals that end a program, as Ctrl-C does.

    Handlers are installed only in the process of the command line. In another program they belong
    to that program.

    Args:
        received: the set to which the numbers of received signals are added.
    """

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        received.add(number)
        raise KeyboardInterrupt

    def interrupt_again(unraisable: "sys.UnraisableHookArgs") -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, INTERRUPT_AGAIN_S)
        else:
            sys.__unraisablehook__(unraisable)

    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name)
        if signal.getsignal(number) is end_now:
            signal.signal(number, interrupt)
            # Python ignores an exception while it calls `__del__` or releases an import lock.
            signal.signal(signal.SIGALRM, interrupt)
            sys.unraisablehook = interrupt_again


def _discard_output() -> int:
    """Redirect the rest of the output to the null device, so that closing it does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_ERROR


def _unforeseen_error_message(error: Exception) -> str:
    text = str(error)[:MAX_REASON_LENGTH]
    is_shortage = isinstance(error, OSError) and error.errno in (errno.ENOMEM, errno.EAGAIN)
    if (
        is_shortage
        or isinstance(error, MemoryError)
        or any(shortage_text in str(error) for shortage_text in _SHORTAGE_TEXTS)
    ):
        return (
            "out of memory or processes. Allow this process more (ulimit -v, ulimit -u), or"
            " examine a smaller model."
        )
    if not isinstance(error, OSError):
        return _defect_message(error)
    reason = error.strerror or text
    if error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {reason}."
    if error.errno in _OUTPUT_ERRORS:
        return (
            f"standard output: cannot be written ({reason}). Free space, or write to another file."
        )
    try:
        os.getcwd()
    except OSError:
        return "the working folder does not exist any more. Change to another folder."
    return f"{reason}." if reason else _defect_message(error)


def _defect_message(error: Exception) -> str:
    """Return the message for a defect of memdiag: type, text and position of the error."""
    import traceback

    position = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"unexpected {type(error).__name__} ({str(error)[:MAX_REASON_LENGTH]}) in"
        f" {os.path.basename(position.filename)}, line {position.lineno}. Please report it."
    )


def _print_error(message: str, error: BaseException | None = None) -> int:
    """Print `message`, and the notes that were added to `error`, on standard error."""
    text = " ".join([message, *getattr(error, "__notes__", ())])
    try:
        from memdiag.reports.text import plain

        text = plain(text)
    except Exception:  # out of memory
        text = ascii(text)[1:-1]
    with suppress(OSError):  # standard error is full or closed
        print(f"memdiag: {text}", file=sys.stderr)
    return EXIT_ERROR
