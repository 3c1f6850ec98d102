"""``memdiag leak``: which observation its options ask for, and its exit codes."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from memdiag.api import leak as leak_api
from memdiag.api import leak_program as program_api
from memdiag.cli.app import command_module, command_parser, parse_command_line, parse_options
from memdiag.cli.commands import leak as command
from memdiag.cli.output import print_wait
from memdiag.errors import UsageError
from memdiag.growth.model_observation import GrowthProgress
from memdiag.records.growth import Growth
from tests.reports import growths

Run = Callable[..., int]


class FakeApi:
    """Stands for `leak` and the functions of `leak_program`: records calls, returns `growth`."""

    def __init__(self) -> None:
        self.growth: Growth = growths.flat()
        self.exit_code = 0
        self.calls: list[tuple[str, Any, dict[str, Any]]] = []

    def leak(self, model: Path, **settings: Any) -> Growth:
        settings.pop("on_progress")(GrowthProgress(5, 40, 1 << 20))
        self.calls.append(("model", model, settings))
        return self.growth

    def leak_process(self, pid: int, **settings: Any) -> Growth:
        settings.pop("on_progress")(GrowthProgress(5, 0, 1 << 20))
        self.calls.append(("process", pid, settings))
        return self.growth

    def leak_program(self, program: list[str], **settings: Any) -> program_api.ProgramGrowth:
        self.calls.append(("program", program, settings))
        return program_api.ProgramGrowth(self.growth, self.exit_code)


@pytest.fixture
def fake(records_only: None, monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    stand_in = FakeApi()
    monkeypatch.setattr(leak_api, "leak", stand_in.leak)
    monkeypatch.setattr(program_api, "leak_process", stand_in.leak_process)
    monkeypatch.setattr(program_api, "leak_program", stand_in.leak_program)
    return stand_in


@pytest.fixture
def run(fake: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A function that runs the command with some words, and returns the exit code."""
    monkeypatch.chdir(tmp_path)
    parser = command_parser("leak", command_module("leak"))
    return lambda *words: command.run(parse_options(parser, list(words)))


def test_a_model_is_run_with_the_options_of_a_profile(fake: FakeApi, run: Run) -> None:
    words = (
        "m.onnx --runs 50 --for 10m --vary content,shape --dim batch=1..8,t=4 --dim n=2..3"
        " --reload --session-option a.b=1"
        " --provider P --provider-option P:k=v --run-option r=w --python p/python"
    )
    assert run(*words.split()) == 0
    ((kind, model, settings),) = fake.calls
    assert (kind, model) == ("model", Path("m.onnx"))
    assert settings == {
        "runs": 50,
        "duration_s": 600.0,
        "vary": ("content", "shape"),
        "reload": True,
        "dims": {"batch": (1, 8), "t": 4, "n": (2, 3)},
        "inputs": {},
        "session_options": {"a.b": "1"},
        "providers": ("P",),
        "provider_options": {"P": {"k": "v"}},
        "run_options": {"r": "w"},
        "python": Path("p/python"),
    }
    assert Path("reports/m/growth.json").is_file()


def test_the_defaults_are_those_of_the_python_api(fake: FakeApi, run: Run) -> None:
    run("m.onnx", "--out", "here")
    ((_, _, settings),) = fake.calls
    assert (settings["runs"], settings["duration_s"]) == (None, None)
    assert settings["vary"] == ("content",)
    assert Path("here/growth.json").is_file()


PROCESS = {"duration_s": None, "pause": False}
PROGRAM = {"duration_s": None, "runs": None, "on_wait": print_wait}
ONCE = {"duration_s": 40.0, "runs": 100, "on_wait": print_wait}


@pytest.mark.parametrize(
    ("words", "call"),
    [
        ("123 --for 2h --pause", ("process", 123, {"duration_s": 7200.0, "pause": True})),
        ("124", ("process", 124, PROCESS)),
        ("-- ./app --runs -- x", ("program", ["./app", "--runs", "--", "x"], PROGRAM)),
        ("--for 40s --runs 100 -- server", ("program", ["server"], ONCE)),
    ],
)
def test_a_number_is_a_process_and_words_after_two_dashes_are_a_program(
    fake: FakeApi, run: Run, capsys: pytest.CaptureFixture[str], words: str, call: Any
) -> None:
    assert run(*words.split()) == 0
    assert fake.calls == [call]
    assert list(Path().glob("memdiag-leak-*/growth.json"))
    printed = capsys.readouterr()
    # The standard output of a program is its own.
    out, err = ("encoder.onnx: no growth", "") if call[0] == "process" else ("", "encoder.onnx: no")
    assert printed.out.startswith(out)
    assert printed.err.startswith(err)
    assert bool(printed.out) == bool(out)


@pytest.mark.parametrize(
    ("verdict", "code"),
    [("flat", 0), ("plateau", 0), ("high_water", 0), ("retained", 0), ("kept", 1), ("leak", 1)],
)
def test_exit_codes(fake: FakeApi, run: Run, verdict: str, code: int) -> None:
    fake.growth = growths.VERDICTS[verdict]()
    assert run("m.onnx") == code


@pytest.mark.parametrize(
    ("exit_code", "failure"),
    [(0, ""), (-2, ""), (143, ""), (3, "ended with exit code 3"), (-11, "was ended by SIGSEGV")],
)
def test_a_program_that_failed_is_an_error_unless_it_leaks(
    fake: FakeApi, run: Run, exit_code: int, failure: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.exit_code = exit_code
    assert run("--", "server") == (2 if failure else 0)
    sentence = f"the program {failure}."
    assert (sentence in capsys.readouterr().err) == bool(failure)
    fake.growth = growths.kept()
    assert run("--", "server") == 1


def test_outputs_that_a_calibration_keeps_are_no_leak(fake: FakeApi, run: Run) -> None:
    fake.growth = msgspec.structs.replace(growths.kept(), is_of_calibration=True)
    assert run("--", "calibrate") == 0


def test_runs_that_ended_early_are_an_error_and_are_saved(
    fake: FakeApi, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.growth = growths.undecided()
    assert run("m.onnx", "--out", "o", "--quiet") == 2
    printed = capsys.readouterr()
    assert printed.out.startswith("encoder.onnx: undecided")
    assert "memdiag: ended early: models/encoder.onnx: a run failed" in printed.err
    assert Path("o/growth.json").is_file()


def test_formats(
    fake: FakeApi, run: Run, capfdbinary: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    assert run("m.onnx", "--format", "json") == 0
    sys.stdout.flush()
    assert b'"memdiag.growth/1"' in capfdbinary.readouterr().out
    assert run("m.onnx", "--format", "github") == 0
    sys.stdout.flush()
    assert capfdbinary.readouterr().out.startswith(b"::notice file=models/encoder.onnx")
    assert Path("summary.md").read_text().startswith("## Growth of memory: `encoder.onnx`")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "there is nothing to observe"),
        ("m.onnx --pause", "--pause is for running processes"),
        ("--pause -- app", "--pause is for running processes"),
        ("12 --runs 50", "--runs does not apply to a running process"),
        ("12 --dim a=1", "--dim is for models that memdiag runs"),
        ("--reload -- app", "--reload is for models that memdiag runs"),
        ("--vary shape -- app", "--vary is for models that memdiag runs"),
        ("--format json -- app", "--format json does not apply to a program"),
        ("m.onnx -- app", "m.onnx and a program after -- cannot both be observed"),
        ("m.onnx --dim a=1..", "'1..' is neither a whole number nor a range"),
        ("m.onnx --dim a=x", "'x' is neither a whole number nor a range"),
    ],
)
def test_options_that_do_not_fit_are_one_sentence(
    fake: FakeApi, run: Run, words: str, sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        run(*words.split())
    assert fake.calls == []


@pytest.mark.parametrize(("words", "in_worker"), [("leak m", True), ("leak -- app", False)])
def test_a_program_keeps_the_terminal(
    words: str, in_worker: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["memdiag", *words.split()])
    assert parse_command_line().runs_in_worker is in_worker
