"""``memdiag limit``: what its options ask for, what it prints, and its exit codes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from memdiag.api import limit as limit_api
from memdiag.api import limit_program as program_api
from memdiag.cli.app import command_module, command_parser, parse_options
from memdiag.cli.commands import limit as command
from memdiag.errors import UsageError
from memdiag.records.limit import MemoryLimit
from memdiag.units import GIB, MIB
from tests.reports import limits

Run = Callable[..., int]


class FakeApi:
    """Stands for both functions: records calls, returns `result`."""

    def __init__(self) -> None:
        self.result: MemoryLimit = limits.limit()
        self.calls: list[tuple[Any, dict[str, Any]]] = []

    def limit(self, what: Any, **settings: Any) -> MemoryLimit:
        settings.pop("on_progress")("trial 1")
        self.calls.append((what, settings))
        return self.result


@pytest.fixture
def fake(records_only: None, monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    stand_in = FakeApi()
    monkeypatch.setattr(limit_api, "limit", stand_in.limit)
    monkeypatch.setattr(program_api, "limit_program", stand_in.limit)
    return stand_in


@pytest.fixture
def run(fake: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A function that runs the command with some words, and returns the exit code."""
    monkeypatch.chdir(tmp_path)
    parser = command_parser("limit", command_module("limit"))
    return lambda *words: command.run(parse_options(parser, list(words)))


def test_a_model_has_the_options_of_a_profile(fake: FakeApi, run: Run, tmp_path: Path) -> None:
    words = (
        "m.onnx --runs 5 --at 512MiB,1GiB --time-limit 60 --dim batch=4"
        " --session-option a.b=1 --session-option c=2"
        " --provider P --provider-option P:k=v --run-option r=w"
    )
    assert run(*words.split()) == 0
    ((model, settings),) = fake.calls
    assert model == Path("m.onnx")
    assert settings["at_bytes"] == (512 * MIB, GIB)
    expected = {
        "runs": 5, "time_limit_s": 60.0, "dims": {"batch": 4},
        "session_options": {"a.b": "1", "c": "2"}, "providers": ("P",),
        "provider_options": {"P": {"k": "v"}}, "run_options": {"r": "w"},
    }  # fmt: skip
    assert {name: settings[name] for name in expected} == expected
    assert (tmp_path / "reports" / "m" / "limit.json").exists()


def test_a_program_keeps_its_own_options(fake: FakeApi, run: Run, tmp_path: Path) -> None:
    fake.result = limits.program()
    assert run("--for", "30s", "--out", "out", "--", "python", "app.py", "--runs", "3") == 0
    ((program, settings),) = fake.calls
    assert program == ["python", "app.py", "--runs", "3"]
    assert settings["duration_s"] == 30.0
    assert (tmp_path / "out" / "limit.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give either a model, or -- and a program"),
        (("m.onnx", "--", "true"), "give either a model, or -- and a program"),
        (("m.onnx", "--for", "3s"), "--for is for programs"),
        (("--provider", "P", "--", "true"), "--provider is for models"),
        (("--run-option", "a=b", "--", "true"), "--run-option is for models"),
        (("m.onnx", "--at", "much"), "'much' is not a size"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    run: Run, fake: FakeApi, words: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        run(*words)
    assert not fake.calls


@pytest.mark.parametrize(("name", "key"), [("k8s", "resources"), ("compose", "services")])
def test_yaml_is_printed_alone(
    run: Run, capfdbinary: pytest.CaptureFixture[bytes], name: str, key: str
) -> None:
    assert run("m.onnx", "--format", name) == 0
    assert list(yaml.safe_load(capfdbinary.readouterr().out)) == [key]


def test_a_search_that_ended_early_prints_its_result_and_exits_with_2(
    fake: FakeApi, run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    fake.result = limits.limit(message="interrupted")
    assert run("m.onnx") == 2
    out = capfd.readouterr()
    assert "240 MiB" in out.out
    assert "Ended early: interrupted" in out.out
    assert run("m.onnx", "--format", "json") == 2
    assert "memdiag: ended early: interrupted" in capfd.readouterr().err
