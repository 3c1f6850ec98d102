"""Every command's options: one name has one meaning and one type, and the help is whole."""

import argparse
import re
import sys
from collections import defaultdict
from pathlib import Path
from pkgutil import iter_modules
from typing import Annotated, NamedTuple, TypedDict

import pytest

import memdiag
from memdiag.api import options
from memdiag.cli import commands
from memdiag.cli.app import (
    command_module,
    command_parser,
    main_parser,
    parse_command_line,
    parse_options,
)
from memdiag.cli.commands import COMMAND_NAMES
from memdiag.cli.options import add_options
from memdiag.detail import Detail
from memdiag.records.profile import Profile
from memdiag.reports import report_for


class Option(NamedTuple):
    """One option of one command: its names, the kind of its value, and its help."""

    names: tuple[str, ...]
    kind: str
    help: str


def parser_of(name: str) -> argparse.ArgumentParser:
    return command_parser(name, command_module(name))


def all_options() -> dict[str, list[Option]]:
    """Return the options of all commands by their first long name."""
    found = defaultdict(list)
    for command in COMMAND_NAMES:
        for action in parser_of(command)._actions:
            if action.option_strings and action.dest != "help":
                names = tuple(sorted(action.option_strings, key=len, reverse=True))
                first = next(name for name in action.option_strings if name.startswith("--"))
                found[first].append(Option(names, kind_of(action), action.help or ""))
    return found


def kind_of(action: argparse.Action) -> str:
    if action.nargs == 0:
        return "flag"
    # Formats of reports are collected from modules, so they are not listed as choices.
    if action.choices or action.metavar == "FORMAT":
        return "choice"
    if action.metavar == "N":
        return "number"
    return str(action.metavar or "text")


def test_the_table_names_every_command() -> None:
    assert [module.name for module in iter_modules(commands.__path__)] == list(COMMAND_NAMES)
    text = main_parser().format_help()
    assert [name for name in COMMAND_NAMES if not re.search(rf"^  {name} ", text, re.M)] == []


def test_every_option_has_one_kind_of_value_and_a_help() -> None:
    found = all_options()
    kinds = {name: {option.kind for option in found[name]} for name in found}
    several = {name: each for name, each in kinds.items() if len(each) > 1}
    # A profile has several moments for X-rays, a recording has none or all.
    assert several == {"--xray": {"choice", "flag"}}
    assert {"--dim", "--out", "--format", "--budget"} <= found.keys()
    assert [name for name in found if not all(option.help for option in found[name])] == []


def test_short_names_are_those_of_one_option() -> None:
    shorts = {
        name: {short for option in declarations for short in option.names if len(short) == 2}
        for name, declarations in all_options().items()
    }
    assert {name: found for name, found in shorts.items() if found} == {
        "--output": {"-o"},
        "--quiet": {"-q"},
        "--verbose": {"-v"},
    }
    for name in ("--output", "--quiet"):
        assert all(len(option.names) == 2 for option in all_options()[name])


@pytest.mark.parametrize("name", COMMAND_NAMES)
def test_the_help_has_every_sentence_of_its_source(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    parser = parser_of(name)
    text = " ".join(parser.format_help().split())
    sources = [parser.description or "", *(action.help or "" for action in parser._actions)]
    assert [each for each in sources if " ".join(each.split()) not in text] == []


def test_check_and_profile_name_the_table_of_the_configuration() -> None:
    for name in ("check", "profile"):
        assert "[tool.memdiag]" in parser_of(name).format_help()


def test_the_help_of_report_names_every_format() -> None:
    text = parser_of("report").format_help()
    assert [name for name in report_for(Profile).formats() if name not in text] == []


def test_the_version_is_the_packages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["memdiag", "--version"])
    with pytest.raises(SystemExit):
        parse_command_line()
    assert capsys.readouterr().out == f"memdiag {memdiag.__version__}\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["profile"], "profile: the following arguments are required: MODEL."),
        (["profile", "m", "--xra", "none"], "profile: unknown argument --xra none"),
        (
            ["leak", "m", "--reload", "10"],
            "leak: unknown argument 10. Did you mean --runs 10? See memdiag leak --help.",
        ),
        (["leak", "m", "m2"], "leak: unknown argument m2. See memdiag leak --help."),
        (["profile", "m", "--time-out"], "Did you mean --timeout?"),
        (["profile", "m", "-o", "out"], "unknown argument -o out. Did you mean --out?"),
        (["run", "-o", "out", "--", "x"], "unknown argument -o. Did you mean --out? See"),
        (["profile", "m", "-z"], "unknown argument -z. See memdiag profile --help."),
        (["profile", "m", "--steps=-1"], "'-1' is not a whole number from 0"),
        (["profile", "m", "--xray", "all"], "argument --xray: invalid choice: 'all'"),
        (["profil"], "unknown command 'profil'. Did you mean profile? See memdiag --help."),
        (["--nope"], "unknown argument --nope. See memdiag --help."),
    ],
)
def test_a_wrong_argument_is_one_sentence(
    words: list[str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["memdiag", *words])
    with pytest.raises(SystemExit) as ended:
        parse_command_line()
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("memdiag: ")
    assert sentence in line


@pytest.mark.parametrize(
    ("words", "models", "detail"),
    [
        (["a.onnx", "--quiet", "b.onnx"], ["a.onnx", "b.onnx"], Detail.ANSWER),
        (["a.onnx", "--", "-b.onnx"], ["a.onnx", "-b.onnx"], Detail.USUAL),
    ],
)
def test_options_may_stand_between_arguments(
    words: list[str], models: list[str], detail: Detail
) -> None:
    found = parse_options(parser_of("check"), words)
    assert [str(path) for path in found.models] == models
    assert found.detail is detail


@pytest.mark.parametrize(
    ("words", "out", "command"),
    [
        ("python app.py", None, "python app.py"),
        ("-- python app.py", None, "python app.py"),
        ("--out o python -c 1 --out p -h", "o", "python -c 1 --out p -h"),
        ("--quiet --out o -- python --help", "o", "python --help"),
        ("", None, ""),
        ("--", None, ""),
    ],
)
def test_a_program_begins_at_the_first_word_that_is_no_option(
    words: str, out: str | None, command: str
) -> None:
    options = parse_options(command_parser("run", command_module("run")), words.split())
    assert options.out == (out and Path(out))
    found = [*options.command]
    assert " ".join(found[1:] if found[:1] == ["--"] else found) == command


def test_an_option_whose_value_nothing_reads_cannot_be_added() -> None:
    class Unread(TypedDict):
        size: Annotated[int, options.SharedOption("--size", "NUMBER", "A size.")]

    with pytest.raises(KeyError, match="NUMBER"):
        add_options(argparse.ArgumentParser(), Unread)
