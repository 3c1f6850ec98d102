"""Options that several commands share: their declarations, and the values they are read as."""

from __future__ import annotations

import argparse
import re
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from memdiag.defaults import (
    DEFAULT_PREFILL_TOKENS,
    DEFAULT_PROVIDERS,
    DEFAULT_RUNS,
    DEFAULT_STEPS,
    DEFAULT_TIMEOUT_S,
)
from memdiag.detail import Detail
from memdiag.errors import UsageError

if TYPE_CHECKING:
    from memdiag.api.inputs import ArrayOrFile

_WHOLE_NUMBER = re.compile(r"[0-9]+")
_RANGE = re.compile(r"([0-9]+)(?:\.\.([0-9]+))?")

Group = argparse._ActionsContainer
"""A parser, or a group of its options."""


def add_model(parser: Group, *, genai: bool = False, ort_format: bool = True) -> None:
    """Add the argument of commands for one model; with `genai`, also of onnxruntime-genai."""
    formats = "ONNX or ORT format" if ort_format else "ONNX format"
    other = ", or a genai_config.json of onnxruntime-genai or its folder" if genai else ""
    parser.add_argument(
        "model", metavar="MODEL", type=Path, help=f"The model, in {formats}{other}."
    )


def add_dims(group: Group, *, ranges: bool = False, lists: bool = False) -> None:
    """Add ``--dim``; with `ranges` and `lists`, its help names ranges and lists of sizes."""
    end = ", or a range of sizes such as batch=1..8" if ranges else ""
    end += ", or a list such as batch=1,4,16" if lists else ""
    add_list(
        group,
        "--dim",
        metavar="NAME=N,…",
        help="Size of a free dimension, by its name, INPUT:AXIS, or its role (such as batch) if"
        f" no other dimension has the same role (see memdiag check){end}.",
    )


def add_inputs(group: Group, *, ranges: bool = False) -> None:
    """Add the options for the inputs of a model; with `ranges`, also of sizes."""
    add_dims(group, ranges=ranges)
    add_list(group, "--input", metavar="NAME=FILE.npy", help="Data of one input; can be repeated.")
    group.add_argument(
        "--inputs", metavar="FILE.npz", type=Path, help="Data of several inputs, by name."
    )


def add_runs(group: Group, default: int = DEFAULT_RUNS) -> None:
    """Add ``--runs``."""
    group.add_argument(
        "--runs",
        metavar="N",
        type=int,
        default=default,
        help="Number of runs after the first run, in each process.",
    )


def add_generation(group: Group) -> None:
    """Add ``--feed``, ``--steps`` and ``--prefill``."""
    add_list(
        group,
        "--feed",
        metavar="OUTPUT=INPUT",
        help="Run a decoder as a program generates a text: outputs that are fed to inputs of the"
        " next call, as a pair of patterns such as present.*=past_key_values.*; can be repeated."
        " Found by the names of exporters with --steps or --prefill alone.",
    )
    group.add_argument(
        "--steps",
        metavar="N",
        type=whole_number(1),
        help=f"Calls of one token after the prompt, in place of --runs (default:"
        f" {DEFAULT_STEPS} with --feed or --prefill).",
    )
    group.add_argument(
        "--prefill",
        metavar="N",
        type=whole_number(1),
        help="Tokens of the prompt, which is one call with an empty past (default:"
        f" {DEFAULT_PREFILL_TOKENS} with --feed or --steps).",
    )


def add_session_option(group: Group) -> None:
    """Add ``--session-option``."""
    add_list(
        group,
        "--session-option",
        metavar="KEY=VALUE",
        help="A SessionOptions attribute or config entry; can be repeated.",
    )


def add_session_options(group: Group) -> None:
    """Add ``--session-option`` and ``--threads``."""
    add_session_option(group)
    group.add_argument(
        "--threads", metavar="N", type=whole_number(0), help="Number of intra-op threads."
    )


def add_optimizers(group: Group) -> None:
    """Add ``--disable-optimizer``."""
    add_list(
        group,
        "--disable-optimizer",
        metavar="NAME",
        help="A graph transformer to disable; can be repeated.",
    )


def add_session(group: Group) -> None:
    """Add the options for how a child creates and runs its session."""
    add_session_options(group)
    add_list(
        group,
        "--provider",
        metavar="NAME",
        help="An execution provider; can be repeated, the preferred one first.",
    )
    add_list(
        group,
        "--provider-option",
        metavar="PROVIDER:KEY=VALUE",
        help="An option of an execution provider; can be repeated.",
    )
    add_list(
        group,
        "--run-option",
        metavar="KEY=VALUE",
        help="A RunOptions config entry of each run; can be repeated.",
    )


SESSION_OPTIONS = ("session_option", "threads", "provider", "provider_option", "run_option")
"""The names of the options that `add_session` adds."""


class SessionArguments(TypedDict):
    """The arguments of `memdiag.profile` and others that `add_session` adds."""

    session_options: dict[str, str]
    threads: int | None
    providers: Sequence[str]
    provider_options: dict[str, dict[str, str]]
    run_options: dict[str, str]


def read_session(options: Namespace) -> SessionArguments:
    """Return the options of `add_session`.

    Raises:
        UsageError: as in `pairs` and `read_provider_options`.
    """
    return {
        "session_options": pairs("--session-option", options.session_option),
        "threads": options.threads,
        "providers": options.provider or DEFAULT_PROVIDERS,
        "provider_options": read_provider_options(options.provider_option),
        "run_options": pairs("--run-option", options.run_option),
    }


def refuse_options(
    options: Namespace,
    configure: Callable[[ArgumentParser], None],
    names: Sequence[str],
    reason: str,
) -> None:
    """Raise UsageError if one of the options `names` is given, which have no effect.

    Args:
        options: the options of the command.
        configure: adds the options to a parser.
        names: their names, such as ``session_option``.
        reason: what the sentence says after the option, such as "is for models".
    """
    defaults = ArgumentParser()
    configure(defaults)
    for name in names:
        if getattr(options, name) != defaults.get_default(name):
            raise UsageError(f"--{name.replace('_', '-')} {reason} Leave it out.")


def add_load_from(group: Group) -> None:
    """Add ``--load-from``."""
    group.add_argument(
        "--load-from",
        choices=("path", "bytes"),
        default="path",
        help="Create the session from the model's path, or from its bytes.",
    )


def add_limits(group: Group) -> None:
    """Add the limits of a child process."""
    group.add_argument(
        "--timeout",
        metavar="TIME",
        type=duration,
        default=DEFAULT_TIMEOUT_S,
        help="Stop a child process after this time.",
    )
    group.add_argument(
        "--memory-limit",
        metavar="SIZE",
        help="Stop a child process whose memory exceeds this size, e.g. 2GB.",
    )


def add_reports_folder(group: Group, *, default: str = "") -> None:
    """Add ``--out``."""
    end = f" (default: {default})" if default else ""
    group.add_argument(
        "--out",
        metavar="DIR",
        type=folder,
        help=f"Write the record and its reports to this folder{end}.",
    )


def add_format(
    group: Group,
    choices: Sequence[str] = ("console", "json"),
    help: str = "What to print: a summary, or the JSON record.",
) -> None:
    """Add ``--format``; the first choice is the default."""
    group.add_argument("--format", choices=choices, default=choices[0], help=help)


def add_output_record(group: Group) -> None:
    """Add ``--output`` for the JSON record."""
    group.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="Also save the JSON record to this file.",
    )


def add_detail(group: Group, *, has_more: bool = True) -> None:
    """Add ``--quiet``, and ``--verbose`` if the summary `has_more` than it prints usually."""
    group.set_defaults(detail=Detail.USUAL)
    group.add_argument(
        "-q",
        "--quiet",
        dest="detail",
        action="store_const",
        const=Detail.ANSWER,
        help="Print only the answer, why, and what to do.",
    )
    if has_more:
        group.add_argument(
            "-v",
            "--verbose",
            dest="detail",
            action="store_const",
            const=Detail.ALL,
            help="Print all that is known, without a limit of lines.",
        )


def add_list(group: Group, name: str, *, metavar: str, help: str, type: Any = str) -> None:
    """Add an option that can be repeated, with a list of values."""
    group.add_argument(name, metavar=metavar, action="append", default=[], type=type, help=help)


def add_switch(parser: Group, group: Group, name: str, *, default: bool, help: str) -> None:
    """Add the options ``--NAME`` and ``--no-NAME``."""
    group.add_argument(name, action=argparse.BooleanOptionalAction, help=help)
    # Not as an argument: Python 3.11 would add the default to the help.
    parser.set_defaults(**{name.removeprefix("--"): default})


def whole_number(minimum: int) -> Callable[[str], int]:
    """Return a function that reads a whole number of at least `minimum`."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = minimum - 1
        if number < minimum:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {minimum}")
        return number

    return read


def folder(text: str) -> Path:
    """Return the path of a folder; an empty text, as of a variable that is not set, is none."""
    if not text:
        raise argparse.ArgumentTypeError("an empty text is no folder")
    return Path(text)


def duration(text: str) -> float:
    """Return the seconds that an option such as ``--for 2h`` means."""
    from memdiag.units import parse_duration

    try:
        return parse_duration(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def pairs(option: str, values: Sequence[str]) -> dict[str, str]:
    """Return the ``NAME=VALUE`` texts given to `option` as a mapping.

    Raises:
        UsageError: a text has no ``=`` or no name, or a name is given twice.
    """
    found: dict[str, str] = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{option}: {text!r} is not NAME=VALUE.")
        if name in found:
            raise UsageError(f"{option}: {name} is given twice. Give it once.")
        found[name] = value
    return found


def read_provider_options(values: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the options given to ``--provider-option`` by name, by the name of the provider.

    Raises:
        UsageError: a text is not PROVIDER:KEY=VALUE, or an option of a provider is given twice.
    """
    found: dict[str, dict[str, str]] = {}
    for text in values:
        provider, colon, option = text.partition(":")
        name, equals, value = option.partition("=")
        if not (provider and colon and name and equals):
            raise UsageError(f"--provider-option: {text!r} is not PROVIDER:KEY=VALUE.")
        options = found.setdefault(provider, {})
        if name in options:
            raise UsageError(f"--provider-option: {provider}:{name} is given twice. Give it once.")
        options[name] = value
    return found


def comma_pairs(option: str, text: str) -> dict[str, str]:
    """Return the ``NAME=VALUE,NAME=VALUE`` text given to `option` as a mapping.

    Raises:
        UsageError: as in `pairs`.
    """
    return pairs(option, comma_list(text))


def comma_list(text: str | None) -> tuple[str, ...]:
    """Return the parts of a comma-separated text, without empty ones."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def read_dims(values: Sequence[str]) -> dict[str, int]:
    """Return the sizes given to ``--dim`` by name; one text may contain several, after commas.

    Raises:
        UsageError: as in `pairs`, or a value is not a whole number.
    """
    sizes: dict[str, int] = {}
    for name, value in _dim_pairs(values).items():
        if not _WHOLE_NUMBER.fullmatch(value):
            raise UsageError(f"--dim {name}: {value!r} is not a whole number. Use NAME=N.")
        sizes[name] = int(value)
    return sizes


def read_dim_ranges(values: Sequence[str]) -> dict[str, int | tuple[int, int]]:
    """Return the sizes, and the ranges (low, high) of sizes, given to ``--dim`` by name.

    Raises:
        UsageError: as in `pairs`, or a value is neither a whole number nor a range.
    """
    sizes: dict[str, int | tuple[int, int]] = {}
    for name, value in _dim_pairs(values).items():
        match = _RANGE.fullmatch(value)
        if match is None:
            raise UsageError(
                f"--dim {name}: {value!r} is neither a whole number nor a range. Use NAME=N or"
                " NAME=LOW..HIGH."
            )
        sizes[name] = int(value) if match[2] is None else (int(match[1]), int(match[2]))
    return sizes


def read_dim_sizes(values: Sequence[str]) -> dict[str, int | tuple[int, int] | list[int]]:
    """Return the sizes, ranges (low, high) and lists of sizes given to ``--dim`` by name.

    Raises:
        UsageError: as in `pairs`, or a value is no whole number, range or list of whole numbers.
    """
    sizes: dict[str, int | tuple[int, int] | list[int]] = {}
    for name, value in pairs("--dim", _joined_lists(_dim_texts(values))).items():
        numbers = value.split(",")
        match = _RANGE.fullmatch(value)
        if match is not None:
            sizes[name] = int(value) if match[2] is None else (int(match[1]), int(match[2]))
        elif all(_WHOLE_NUMBER.fullmatch(number) for number in numbers):
            sizes[name] = [int(number) for number in numbers]
        else:
            raise UsageError(
                f"--dim {name}: {value!r} is neither a whole number nor a range or list. Use"
                " NAME=N, NAME=LOW..HIGH or NAME=N,N."
            )
    return sizes


def _joined_lists(texts: Sequence[str]) -> list[str]:
    """Join a bare number to the text before it: ``["n=1", "2"]`` becomes ``["n=1,2"]``."""
    joined: list[str] = []
    for text in texts:
        if joined and _WHOLE_NUMBER.fullmatch(text):
            joined[-1] += f",{text}"
        else:
            joined.append(text)
    return joined


def _dim_pairs(values: Sequence[str]) -> dict[str, str]:
    return pairs("--dim", _dim_texts(values))


def _dim_texts(values: Sequence[str]) -> list[str]:
    # A name may contain commas itself, so a comma separates only after a number.
    return [part.strip() for text in values for part in re.split(r"(?<=\d),", text.rstrip(","))]


def read_inputs(options: Namespace) -> dict[str, ArrayOrFile]:
    """Return the data given by ``--input NAME=FILE.npy`` and ``--inputs FILE.npz``, by input name.

    Raises:
        UsageError: as in `pairs`, the archive cannot be read, or both have an input.
    """
    files: dict[str, ArrayOrFile] = dict(pairs("--input", options.input))
    if options.inputs is None:
        return files
    from memdiag.stored_arrays import read_archive

    arrays = read_archive(options.inputs)
    twice = sorted(files.keys() & arrays.keys())
    if twice:
        raise UsageError(f"input {twice[0]} is given by both --input and --inputs. Give it once.")
    return files | arrays


def read_memory_limit(options: Namespace) -> int | None:
    """Return the bytes given to ``--memory-limit``; None without it.

    Raises:
        UsageError: it is not a size.
    """
    from memdiag.units import parse_size

    size = options.memory_limit
    return parse_size(size) if size else None


def read_sizes(text: str) -> tuple[int, ...]:
    """Return the numbers given to ``--sizes``, in order.

    Raises:
        UsageError: one is not a whole number from 1, or there is none.
    """
    parts = comma_list(text)
    if not parts or not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise UsageError(f"--sizes must be whole numbers from 1, such as 1,16, not {text!r}.")
    return tuple(sorted({int(part) for part in parts}))


def sizes_by_name(option: str, text: str | None, names: Collection[str]) -> dict[str, int]:
    """Return the sizes in bytes by name in ``NAME=SIZE,NAME=SIZE``, which was given to `option`.

    Raises:
        UsageError: as in `pairs`, a name is not among `names`, or a value is not a size.
    """
    from memdiag.budgets.parsing import parse_sizes

    if text and "=" not in text:
        example = f"{next(iter(names))}=1.2GB"
        raise UsageError(f"{option}: {text!r} is not NAME=VALUE. Write for example {example}.")
    return parse_sizes(comma_pairs(option, text or ""), names, where=option)


def remaining_s(time_limit_s: float | None, started: float) -> float | None:
    """Return the rest of ``--time-limit`` for a command that started at `started`."""
    if time_limit_s is None:
        return None
    return max(time_limit_s - (time.monotonic() - started), 1e-3)


def command_line() -> tuple[str, ...]:
    """Return the words of the command line, with bytes that are not text escaped."""
    words = (word.encode(errors="backslashreplace").decode() for word in sys.argv[1:])
    return ("memdiag", *words)
