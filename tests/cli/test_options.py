"""Every command's options: one name has one meaning and one type, and the help is whole."""

import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from enum import StrEnum
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, NamedTuple, get_args, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from memdiag.cli import commands
from memdiag.cli.app import add_commands

COMMANDS = [module.name for module in iter_modules(commands.__path__)]

# The kind of value of each option, and a word that its help has in every command.
KINDS: dict[str, tuple[str, str]] = {
    "--all": ("flag", "every combination"),
    "--baseline": ("FILE", "Baseline"),
    "--bisect": ("choice", "version"),
    "--budget": ("FIGURE=SIZE,…", "Limits"),
    "--check-with": ("PYTHON", "interpreter"),
    "--dim": ("NAME=N,…", "Size of a free dimension"),
    "--disable-optimizer": ("NAME", "graph transformer"),
    "--dry-run": ("flag", "Only list"),
    "--env": ("KEY=VALUE", "environment variable"),
    "--environment": ("PATH", "interpreter or environment"),
    "--figure": ("FIGURE", "figure"),
    "--file": ("FILE", "history"),
    "--fix": ("FILE", "fix.json"),
    "--for-onnxruntime": ("VERSION", "Release"),
    "--format": ("choice", "What to print"),
    "--ignore": ("RULE", "Skip"),
    "--input": ("NAME=FILE.npy", "Data of one input"),
    "--inputs": ("FILE.npz", "Data of several inputs"),
    "--label": ("text", "Label"),
    "--load-from": ("choice", "path, or from its bytes"),
    "--max-slowdown": ("RATIO", "latency"),
    "--memory-limit": ("SIZE", "Stop a child process"),
    "--min-bytes": ("SIZE", "Skip findings"),
    "--model": ("FILE", "The ONNX model"),
    "--only": ("NAME", " only "),
    "--onnxruntime": ("VERSION,…", "Versions"),
    "--optimization-level": ("LEVEL", "disable_all"),
    "--optimizers": ("NAME,…", "Optimizers"),
    "--out": ("DIR", "Write the record and its reports to this folder"),
    "--output": ("FILE", "to this file"),
    "--pause": ("flag", "Stop the process"),
    "--picture": ("FILE", "Save the chart"),
    "--pin": ("flag", "malloc"),
    "--plotly": ("choice", "plotly.js"),
    "--processes": ("number", "Number of processes"),
    "--provider": ("NAME", "execution provider"),
    "--python": ("PYTHON", "interpreter"),
    "--quiet": ("flag", "Print only the answer"),
    "--rewrite": ("flag", "Fix the model first"),
    "--run": ("flag", "Run the model"),
    "--runs": ("number", "Number of runs"),
    "--select": ("RULE", "Run only"),
    "--session-option": ("KEY=VALUE", "SessionOptions"),
    "--sessions": ("number", "Number of sessions"),
    "--sizes": ("N,N…", "sizes of free dimensions"),
    "--telemetry": ("flag", "onnxruntime's telemetry on"),
    "--threads": ("number", "intra-op threads"),
    "--time-limit": ("SECONDS", "Stop after this time"),
    "--timeout": ("SECONDS", "Stop a child process"),
    "--unsafe": ("flag", "change values"),
    "--unverified": ("flag", "cannot be run"),
    "--update-baseline": ("flag", "Write the baseline"),
    "--verify": ("choice", "Compare every byte"),
    "--xray": ("choice", "When to identify the owner of every resident byte"),
}


def made() -> typer.Typer:
    app = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]})
    add_commands(app)
    return app


class Option(NamedTuple):
    """One option of one command: its names, the kind of its value, and its help."""

    names: tuple[str, ...]
    kind: str
    help: str


def source(name: str) -> Callable[..., int]:
    command: Callable[..., int] = import_module(f"memdiag.cli.commands.{name}").command
    return command


def declared(name: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield the parameters of a command: name, type, and what typer is told of it."""
    for param, annotation in get_type_hints(source(name), include_extras=True).items():
        if param != "return":
            kind, info = get_args(annotation)
            yield param, kind, info


def options() -> dict[str, list[Option]]:
    """Return the options of all commands by their first name."""
    found = defaultdict(list)
    for command in COMMANDS:
        for param, kind, info in declared(command):
            if isinstance(info, typer.models.OptionInfo):
                # The first name of an annotation is where a default would otherwise be.
                given = (info.default, *(info.param_decls or ()))
                texts = [text for text in given if isinstance(text, str)]
                texts = texts or [f"--{param.replace('_', '-')}"]
                names = tuple(part for text in texts for part in text.split("/"))
                found[names[0]].append(Option(names, kind_of(kind, info), info.help or ""))
    return found


def kind_of(kind: Any, info: typer.models.OptionInfo) -> str:
    if kind is bool:
        return "flag"
    if info.metavar:
        # Formats of reports are collected from modules, so they are no enumeration.
        return "choice" if info.metavar == "FORMAT" else info.metavar
    kinds = get_args(kind) or (kind,)
    if any(isinstance(each, type) and issubclass(each, StrEnum) for each in kinds):
        return "choice"
    return "number" if int in kinds else "text"


def test_every_option_has_one_kind_and_one_meaning() -> None:
    found = options()
    assert found.keys() == KINDS.keys()
    for name, declarations in found.items():
        kind, meaning = KINDS[name]
        assert {one.kind for one in declarations} == {kind}, name
        assert [one.help for one in declarations if meaning not in one.help] == [], name


def test_short_names_are_those_of_one_option() -> None:
    shorts = {
        name: {short for one in declarations for short in one.names if len(short) == 2}
        for name, declarations in options().items()
    }
    assert {name: found for name, found in shorts.items() if found} == {
        "--output": {"-o"},
        "--quiet": {"-q"},
    }
    for name in ("--output", "--quiet"):
        assert all(len(one.names) == 2 for one in options()[name])


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_prints_every_bracket_of_its_source(name: str) -> None:
    result = CliRunner().invoke(made(), [name, "--help"], env={"COLUMNS": "300"}, color=False)
    assert result.exit_code == 0
    helps = [info.help or "" for _, _, info in declared(name)]
    text = " ".join([inspect.getdoc(source(name)) or "", *helps])
    for bracketed in re.findall(r"\[[^\]]+\]", text):
        assert bracketed in result.output
    assert "\\[" not in result.output


def test_check_and_profile_name_the_table_of_the_configuration() -> None:
    for name in ("check", "profile"):
        result = CliRunner().invoke(made(), [name, "--help"], env={"COLUMNS": "80"})
        assert "[tool.memdiag]" in result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_no_archaic_words(name: str) -> None:
    result = CliRunner().invoke(made(), [name, "--help"], env={"COLUMNS": "300"})
    archaic = r"\b(to be had|asked for|anew|told|tells?|be it|so many|save that|of which)\b"
    assert re.findall(archaic, result.output) == []
