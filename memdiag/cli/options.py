"""Options that several commands share: their declarations, and how their values are read."""

from __future__ import annotations

import argparse
import re
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from memdiag.api.options import CommandOptions, SharedOption, options_of
from memdiag.detail import Detail
from memdiag.errors import UsageError

if TYPE_CHECKING:
    from memdiag.api.inputs import ArrayOrFile

_WHOLE_NUMBER = re.compile(r"[0-9]+")
_SIZE_RANGE = re.compile(r"([0-9]+)(?:\.\.([0-9]+))?")

OptionGroup = argparse._ActionsContainer
"""A parser, or a group of its options."""


def add_model(parser: OptionGroup, *, genai: bool = False) -> None:
    """Add the argument of commands for one model; with `genai`, also of onnxruntime-genai."""
    genai_text = ", or a genai_config.json of onnxruntime-genai or its folder" if genai else ""
    parser.add_argument(
        "model", metavar="MODEL", type=Path, help=f"The model, in ONNX or ORT format{genai_text}."
    )


def add_dims(group: OptionGroup, *, ranges: bool = False, lists: bool = False) -> None:
    """Add ``--dim``; with `ranges` and `lists`, its help names ranges and lists of sizes."""
    help_end = ", or a range of sizes such as batch=1..8" if ranges else ""
    help_end += ", or a list such as batch=1,4,16" if lists else ""
    add_option(group, "dims", end=help_end)


def add_options(group: OptionGroup, *options: type) -> None:
    """Add the options of groups of `memdiag.api.options`."""
    for group_of_options in options:
        for name, (kind, option) in options_of(group_of_options).items():
            _add_option(group, name, kind, option)


def add_option(group: OptionGroup, name: str, *, end: str = "", **changes: Any) -> None:
    """Add an option of `CommandOptions` with changed fields; `end` ends its help sentence."""
    kind, option = options_of(CommandOptions)[name]
    option = option._replace(**changes)
    _add_option(group, name, kind, option._replace(help=f"{option.help[:-1]}{end}."))


def _add_option(group: OptionGroup, name: str, kind: Any, option: SharedOption) -> None:
    settings: dict[str, Any] = {"dest": name, "help": option.help, "default": option.default}
    if kind is bool and option.default:
        group.add_argument(option.flag, action=argparse.BooleanOptionalAction, **settings)
    elif kind is bool:
        group.add_argument(option.flag, action="store_true", **settings)
    elif get_origin(kind) is Literal:
        group.add_argument(option.flag, choices=get_args(kind), **settings)
    elif option.metavar in _READER_BY_METAVAR:
        settings |= {"help": f"{option.help[:-1]}; can be repeated.", "default": []}
        group.add_argument(option.flag, metavar=option.metavar, action="append", **settings)
    else:
        read_value = _TYPE_BY_METAVAR[option.metavar]
        group.add_argument(option.flag, metavar=option.metavar, type=read_value, **settings)


def read_options(options: Namespace, group: type) -> Any:
    """Return the values of the options of `group` by name.

    Raises:
        UsageError: as in `read_pairs`, `read_provider_options`, `read_dims` and `read_inputs`.
    """
    return {
        name: _option_value(getattr(options, name), option)
        for name, (_, option) in options_of(group).items()
    }


def _option_value(value: Any, option: SharedOption) -> Any:
    """Return the value of an option. `value` is a list of texts if the option can be repeated."""
    read_texts = _READER_BY_METAVAR.get(option.metavar)
    return value if read_texts is None else read_texts(option.flag, value) or option.default


def flag_of(argument: str) -> str:
    """Return the option of commands for an argument of functions, such as ``run=False``."""
    name = argument.removesuffix("=False")
    kind_and_option = options_of(CommandOptions).get(name)
    if kind_and_option:
        flag = kind_and_option[1].flag
    else:
        flag = f"--{name.removesuffix('_bytes').replace('_', '-')}"
    return flag if name == argument else flag.replace("--", "--no-")


def refuse_options(
    options: Namespace,
    configure: Callable[[ArgumentParser], None],
    names: Collection[str],
    reason: str,
) -> None:
    """Raise UsageError if the user passed one of the options `names`, which have no effect.

    Args:
        options: the options of the command.
        configure: adds the options to a parser.
        names: the names of the options in `options`.
        reason: the sentence after the name of the option, such as "is for models.".
    """
    defaults = ArgumentParser()
    configure(defaults)
    for action in defaults._actions:
        if action.dest in names and getattr(options, action.dest) != action.default:
            raise UsageError(f"{action.option_strings[0]} {reason} Leave it out.")


def add_reports_folder(group: OptionGroup, *defaults: str, remark: str = "") -> None:
    """Add ``--out``, whose default is one of `defaults` (see `reports_folder`)."""
    group.set_defaults(default_folders=defaults)
    default_text = f" (default: {', or '.join(defaults)}{remark})" if defaults else ""
    group.add_argument(
        "--out",
        metavar="DIR",
        type=read_folder,
        help=f"Write the record and its reports to this folder{default_text}.",
    )


def reports_folder(options: Namespace, placeholder: str, name: object) -> Path:
    """Return the folder of ``--out``, or the default with `placeholder` replaced by `name`."""
    default = next(folder for folder in options.default_folders if placeholder in folder)
    return options.out or Path(default.replace(placeholder, str(name)))


def add_format(
    group: OptionGroup,
    choices: Sequence[str] = ("console", "json"),
    help: str = "What to print: a summary, or the JSON record.",
) -> None:
    """Add ``--format``; the first choice is the default."""
    group.add_argument("--format", choices=choices, default=choices[0], help=help)


def add_output_record(group: OptionGroup) -> None:
    """Add ``--output`` for the JSON record."""
    group.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="Also save the JSON record to this file.",
    )


def add_detail(group: OptionGroup, *, has_more: bool = True) -> None:
    """Add ``--quiet``; and ``--verbose`` if the record `has_more` than the usual summary."""
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


def add_list(
    group: OptionGroup,
    name: str,
    *,
    metavar: str,
    help: str,
    type: Any = str,
    dest: str | None = None,
) -> None:
    """Add an option that can be repeated, with a list of values."""
    group.add_argument(
        name, metavar=metavar, action="append", default=[], type=type, help=help, dest=dest
    )


def add_switch(
    parser: OptionGroup, group: OptionGroup, name: str, *, default: bool, help: str
) -> None:
    """Add the options ``--NAME`` and ``--no-NAME``."""
    group.add_argument(name, action=argparse.BooleanOptionalAction, help=help)
    # As an argument of `add_argument`, Python 3.11 would add the default to the help.
    parser.set_defaults(**{name.removeprefix("--"): default})


def read_byte_size(text: str) -> int:
    """Return the bytes that an option such as ``--memory-limit 2GB`` means."""
    from memdiag.units import parse_size

    try:
        return parse_size(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def whole_number_reader(minimum: int) -> Callable[[str], int]:
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


def read_folder(text: str) -> Path:
    """Return the path of a folder. An empty text, as from an unset variable, is refused."""
    if not text:
        raise argparse.ArgumentTypeError("an empty text is no folder")
    return Path(text)


def read_duration_s(text: str) -> float:
    """Return the seconds that an option such as ``--for 2h`` means."""
    from memdiag.units import parse_duration

    try:
        return parse_duration(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def read_pairs(option: str, values: Sequence[str]) -> dict[str, str]:
    """Return the ``NAME=VALUE`` texts given to `option` as a mapping.

    Raises:
        UsageError: a text has no ``=`` or no name, or a name is given twice.
    """
    pairs: dict[str, str] = {}
    for name, value in each_pair(option, values):
        if name in pairs:
            is_swept = option == "--session-option"
            sweep_text = ", or several values to memdiag sweep" if is_swept else ""
            raise UsageError(f"{option}: {name} is given twice. Give it once{sweep_text}.")
        pairs[name] = value
    return pairs


def each_pair(option: str, values: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each ``NAME=VALUE`` text given to `option`.

    Raises:
        UsageError: a text has no ``=`` or no name.
    """
    for text in values:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{option}: {text!r} is not NAME=VALUE.")
        yield name, value


def read_provider_options(values: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the options given to ``--provider-option`` by name, by the name of the provider.

    Raises:
        UsageError: a text is not PROVIDER:KEY=VALUE, or an option of a provider is given twice.
    """
    options_by_provider: dict[str, dict[str, str]] = {}
    for text in values:
        provider, colon, option = text.partition(":")
        name, equals, value = option.partition("=")
        if not (provider and colon and name and equals):
            raise UsageError(f"--provider-option: {text!r} is not PROVIDER:KEY=VALUE.")
        options = options_by_provider.setdefault(provider, {})
        if name in options:
            raise UsageError(f"--provider-option: {provider}:{name} is given twice. Give it once.")
        options[name] = value
    return options_by_provider


def read_comma_pairs(option: str, text: str) -> dict[str, str]:
    """Return the ``NAME=VALUE,NAME=VALUE`` text given to `option` as a mapping.

    Raises:
        UsageError: as in `read_pairs`.
    """
    return read_pairs(option, comma_separated_parts(text))


def comma_separated_parts(text: str | None) -> tuple[str, ...]:
    """Return the parts of a comma-separated text, without empty ones."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def read_dims(values: Sequence[str]) -> dict[str, int]:
    """Return the sizes given to ``--dim`` by name. A text may contain several, after commas.

    Raises:
        UsageError: as in `read_pairs`, or a value is not a whole number.
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
        UsageError: as in `read_pairs`, or a value is neither a whole number nor a range.
    """
    sizes: dict[str, int | tuple[int, int]] = {}
    for name, value in _dim_pairs(values).items():
        match = _SIZE_RANGE.fullmatch(value)
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
        UsageError: as in `read_pairs`, or a value is neither a whole number, a range nor a list of
            whole numbers.
    """
    sizes: dict[str, int | tuple[int, int] | list[int]] = {}
    for name, value in read_pairs("--dim", _joined_lists(_dim_texts(values))).items():
        numbers = value.split(",")
        match = _SIZE_RANGE.fullmatch(value)
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
    return read_pairs("--dim", _dim_texts(values))


def _dim_texts(values: Sequence[str]) -> list[str]:
    # A name may contain commas, so a comma separates only after a number.
    return [part.strip() for text in values for part in re.split(r"(?<=\d),", text.rstrip(","))]


def read_inputs(texts: Sequence[str]) -> dict[str, ArrayOrFile]:
    """Return the data given by ``--input NAME=FILE.npy`` and ``--input FILE.npz``, by input name.

    Raises:
        UsageError: as in `read_pairs`, an archive cannot be read, or an input is given twice.
    """
    archives = [text for text in texts if "=" not in text]
    inputs: dict[str, ArrayOrFile] = dict(
        read_pairs("--input", [text for text in texts if text not in archives])
    )
    for path in archives:
        from memdiag.stored_arrays import read_archive

        arrays = read_archive(Path(path))
        repeated_names = sorted(inputs.keys() & arrays.keys())
        if repeated_names:
            raise UsageError(f"--input: {repeated_names[0]} is given twice. Give it once.")
        inputs |= arrays
    return inputs


def read_sizes(text: str) -> tuple[int, ...]:
    """Return the numbers given to ``--sizes``, in order.

    Raises:
        UsageError: a number is not a whole number from 1, or there is none.
    """
    parts = comma_separated_parts(text)
    if not parts or not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise UsageError(f"--sizes must be whole numbers from 1, such as 1,16, not {text!r}.")
    return tuple(sorted({int(part) for part in parts}))


def sizes_by_name(option: str, text: str | None, names: Collection[str]) -> dict[str, int]:
    """Return the sizes in bytes by name in ``NAME=SIZE,NAME=SIZE``, which was given to `option`.

    Raises:
        UsageError: as in `read_pairs`, a name is not among `names`, or a value is not a size.
    """
    from memdiag.budgets.parsing import parse_sizes

    if text and "=" not in text:
        example = f"{next(iter(names))}=1.2GB"
        raise UsageError(f"{option}: {text!r} is not NAME=VALUE. Write for example {example}.")
    return parse_sizes(read_comma_pairs(option, text or ""), names, where=option)


def remaining_time_s(time_limit_s: float | None, started: float) -> float | None:
    """Return the seconds that ``--time-limit`` leaves a command that started at `started`."""
    if time_limit_s is None:
        return None
    return max(time_limit_s - (time.monotonic() - started), 1e-3)


def command_line_words() -> tuple[str, ...]:
    """Return the words of the command line, with bytes that are not text escaped."""
    words = (word.encode(errors="backslashreplace").decode() for word in sys.argv[1:])
    return ("memdiag", *words)


_TYPE_BY_METAVAR: dict[str, Callable[[str], Any]] = {
    "N": whole_number_reader(0),
    "TIME": read_duration_s,
    "SIZE": read_byte_size,
    "PLACE": str,
    "PYTHON": Path,
    "VERSION": str,
    "VERSION,…": comma_separated_parts,
}
"""How the value of an option is read, by its metavar. An option needs an entry to be added."""
_READER_BY_METAVAR: dict[str, Callable[[str, Sequence[str]], Any]] = {
    "NAME": lambda _, texts: tuple(texts),
    "OUTPUT=INPUT": lambda _, texts: tuple(texts),
    "KEY=VALUE": read_pairs,
    "NAME=N,…": lambda _, texts: read_dims(texts),
    "[NAME=]FILE": lambda _, texts: read_inputs(texts),
    "PROVIDER:KEY=VALUE": lambda _, texts: read_provider_options(texts),
}
"""The same for options that can be repeated: a function of the flag and all its texts."""
