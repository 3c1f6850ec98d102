"""Every option of every command reaches the function that does the work, or changes the output."""

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import msgspec
import numpy as np
import pytest

from memdiag.api.budget import BudgetResult
from memdiag.api.sweep import SweepOutcome
from memdiag.cli.app import command_module, command_parser, parse_options
from memdiag.cli.commands import COMMAND_NAMES
from memdiag.errors import UsageError
from memdiag.records.budget import Budget, Judgement
from tests.reports import (
    attributions,
    checks,
    comparisons,
    device_estimates,
    estimates,
    fix_records,
    growths,
    limits,
    profiles,
    runs,
    sweeps,
)


@dataclass(frozen=True)
class UseCase:
    """What a command calls.

    Attributes:
        words: the least that the command needs.
        results: by the path of each function that it may call, what that returns.
    """

    words: str
    results: dict[str, Any]


def outcome() -> SweepOutcome:
    return SweepOutcome(store=Path("sweep"), completed=1)


USE_CASES = {
    "check": UseCase("m.onnx", {"api.check.check_models": checks.check(*[checks.finding()] * 9)}),
    "compare": UseCase("a.onnx b.onnx", {"api.compare.compare": comparisons.versions()}),
    "estimate": UseCase(
        "m.onnx",
        {
            "api.estimate.estimate": estimates.grid(),
            "api.estimate_device.estimate_device": device_estimates.with_limit(),
        },
    ),
    "fix": UseCase("m.onnx", {"api.fix.fix": fix_records.fix()}),
    "leak": UseCase(
        "m.onnx", {"api.leak.leak": growths.leak(), "api.leak_program.leak_process": growths.leak()}
    ),
    "limit": UseCase(
        "m.onnx",
        {"api.limit.limit": limits.limit(), "api.limit_program.limit_program": limits.program()},
    ),
    "profile": UseCase("m.onnx", {"api.profile.profile_model": profiles.tied_if()}),
    "report": UseCase("saved/profile.json", {}),
    "run": UseCase("-- python app.py", {"api.run.run_program": runs.server()}),
    "sweep": UseCase(
        "zoo",
        {
            "api.sweep.run_sweep": outcome(),
            "api.sweep.sweep_answers": sweeps.over_budget(sweeps.sweep()),
        },
    ),
    "watch": UseCase("1", {"api.watch.watch": runs.watched()}),
    "xray": UseCase(
        "1", {"api.xray.xray": attributions.attribution(attributions.copy("dense", 9))}
    ),
}

VALUES = {
    "--against": "other",
    "--at": "1GiB",
    "--baseline": "baseline.json",
    "--bisect": "peak",
    "--budget": "peak=1GB",
    "--dim": "batch=2",
    "--disable-optimizer": "ConstantFolding",
    "--env": "A=b",
    "--feed": "a.*=b.*",
    "--fit": "1GiB",
    "--for": "7s",
    "--gpu-context": "1GiB",
    "--for-onnxruntime": "1.24.4",
    "--ignore": "embedded-weights",
    "--input": "x=x.npy",
    "--load-from": "bytes",
    "--max-difference": "0.1",
    "--max-slowdown": "1.5",
    "--memory": "1GiB",
    "--memory-limit": "1GiB",
    "--model": "m.onnx",
    "--on": "local-cluster",
    "--only": "options",
    "--onnxruntime": "1.24.4",
    "--optimizers": "onnxslim",
    "--out": "here",
    "--output": "here.json",
    "--place": "4x8GiB",
    "--provider": "MyProvider",
    "--provider-option": "P:key=value",
    "--python": "python3",
    "--run-option": "a.b=1",
    "--select": "embedded-weights",
    "--session-option": "a.b=1",
    "--sizes": "1,2",
    "--time-limit": "5min",
    "--timeout": "7s",
    "--vary": "shape",
}
"""A value of each option with one, other than the default; numbers are 47, switches are switched,
and of choices each other one is tried."""

NEEDED_WITH = {
    ("leak", "--pause"): "",
    **{("estimate", name): "--provider P" for name in ("--provider-option", "--gpu-context")},
    ("profile", "--update-baseline"): "--baseline baseline.json",
    ("profile", "--provider-option"): "--provider P",
    ("limit", "--for"): "",
}
"""Other options that an option needs."""

WORDS = {("leak", "--pause"): "1", ("limit", "--for"): "-- python app.py"}
"""The least that the command needs with this option, if it is for something else."""


def forms(command: str) -> Iterator[tuple[str, str]]:
    """Yield the name of each option of `command`, with each way to give it."""
    for action in command_parser(command, command_module(command))._actions:
        names = action.option_strings
        if not names or action.dest == "help":
            continue
        name = next(each for each in names if each.startswith("--"))
        if isinstance(action, argparse.BooleanOptionalAction):
            yield name, names[-1]
        elif action.nargs == 0:
            yield name, name
        elif action.choices:
            for choice in action.choices:
                if choice != action.default and name != "--bisect":
                    yield name, f"{name}={choice}"
            if name == "--bisect":
                yield name, f"{name}={VALUES[name]}"
        elif command == "report" and name == "--format":
            yield from ((name, f"{name}={each}") for each in ("issue", "json", "markdown"))
        else:
            yield name, f"{name}={VALUES.get(name, '47')}"


CASES = [
    (command, *form) for command in COMMAND_NAMES if command != "explain" for form in forms(command)
]


@pytest.fixture
def effect(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """A function that runs a command in a folder of its own, and returns all that it does."""
    monkeypatch.setattr("memdiag.reports.report._DEFAULT_FORMATS", ("json",))
    monkeypatch.setattr(sys, "argv", ["memdiag"])  # the words in a record are no effect
    calls: list[Any] = []

    def recorder(name: str, result: Any) -> Callable[..., Any]:
        def use_case(*words: Any, **options: Any) -> Any:
            calls.append((name, words, options))
            return result

        return use_case

    def check_budget(run_profile: Callable[[bool], Any], *words: Any, **options: Any) -> Any:
        calls.append(("budget", words, options))
        judgement = Judgement(
            model="m.onnx", onnxruntime=None, figures={}, processes=1, budget=Budget()
        )
        return BudgetResult(profile=msgspec.structs.replace(run_profile(True), judgement=judgement))

    def run(command: str, words: list[str]) -> str:
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        (folder / "saved").mkdir(parents=True)
        monkeypatch.chdir(folder)
        np.save("x.npy", np.ones(1))
        np.savez("all.npz", x=np.ones(1))
        for baseline in ("baseline.json", "second.json"):
            Path(baseline).write_text("{}")
        profiles.tied_if().save(Path("saved/profile.json"))
        for function, result in USE_CASES[command].results.items():
            monkeypatch.setattr(f"memdiag.{function}", recorder(function, result))
        if command == "profile":
            monkeypatch.setattr("memdiag.api.budget.check_budget", check_budget)
        if command == "sweep":
            monkeypatch.setattr("memdiag.sweeps.store.check_version", lambda folder: None)
        calls.clear()
        module = command_module(command)
        try:
            code = module.run(parse_options(command_parser(command, module), words))
        except UsageError as error:
            if "--live" not in words:  # which needs a terminal
                raise
            code = str(error)
        printed = capfd.readouterr()
        files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
        text = f"{code}\n{calls_text(calls)}\n{printed.out}\n{printed.err}\n{files}"
        return text.replace(str(folder), "")

    return run


def calls_text(value: Any) -> str:
    """Return calls as text, without the functions that report progress."""
    if isinstance(value, dict):
        return str({key: calls_text(each) for key, each in value.items()})
    if isinstance(value, list | tuple):
        return str([calls_text(each) for each in value])
    is_function = isinstance(value, FunctionType) or callable(value)
    return "function" if is_function and not isinstance(value, type) else repr(value)


@pytest.mark.parametrize(("command", "name", "form"), CASES, ids=lambda value: value.strip("-"))
def test_an_option_changes_what_is_done(
    effect: Callable[..., str], command: str, name: str, form: str
) -> None:
    words = WORDS.get((command, name), USE_CASES[command].words).split()
    others = NEEDED_WITH.get((command, name), "").split()
    without = effect(command, [*others, *words])
    given = effect(command, [*others, form, *words])
    assert given != without, f"memdiag {command} ignores {form}"


@pytest.mark.parametrize(
    ("command", "form", "words"),
    [
        ("limit", "--at=1GiB", "-- python app.py"),
        ("limit", "--time-limit=5min", "-- python app.py"),
        ("leak", "--for=7s", "1"),
    ],
)
def test_an_option_arrives_for_programs_as_well(
    effect: Callable[..., str], command: str, form: str, words: str
) -> None:
    given = effect(command, [form, *words.split()])
    assert given != effect(command, words.split()), f"memdiag {command} {words} ignores {form}"


@pytest.mark.parametrize(
    ("command", "words", "others"),
    [
        *((command, "m.onnx", "n.onnx") for command in ("check", "estimate", "fix")),
        ("profile", "--baseline=baseline.json m.onnx", "--baseline=second.json m.onnx"),
    ],
)
def test_another_file_has_another_effect(
    effect: Callable[..., str], command: str, words: str, others: str
) -> None:
    assert effect(command, words.split()) != effect(command, others.split())


def test_each_option_has_a_value() -> None:
    assert {name for _, name, form in CASES if "=" in form} >= VALUES.keys()
