"""Every option of a profile reaches every place that has to know it."""

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import memdiag
from memdiag.api.options import (
    CompareOptions,
    EstimateOptions,
    FixOptions,
    ProfileOptions,
    options_of,
    options_with_defaults,
)
from memdiag.api.profile_config import ProfileConfig
from memdiag.budgets.baselines import baseline_entry, condition_differences
from memdiag.cli.app import command_parser
from memdiag.cli.commands import profile as command
from memdiag.errors import MemdiagError
from memdiag.records.profile import Session
from memdiag.runner.job import Job, SessionConfig
from tests.reports import profiles

# For each option a value other than the default: from Python, and on the command line.
OPTIONS: dict[str, tuple[Any, list[str]]] = {
    "runs": (3, ["--runs", "3"]),
    "run": (False, ["--no-run"]),
    "dims": ({"batch": 2}, ["--dim", "batch=2"]),
    "inputs": ({"x": "x.npy"}, ["--input", "x=x.npy"]),
    "feed": (("a.*=b.*",), ["--feed", "a.*=b.*"]),
    "steps": (4, ["--steps", "4"]),
    "prefill": (8, ["--prefill", "8"]),
    "session_options": ({"a.b": "1"}, ["--session-option", "a.b=1"]),
    "disabled_optimizers": (("Folding",), ["--disable-optimizer", "Folding"]),
    "providers": (("MyProvider",), ["--provider", "MyProvider"]),
    "provider_options": (
        {"MyProvider": {"key": "a=b:c"}},
        ["--provider-option", "MyProvider:key=a=b:c"],
    ),
    "run_options": ({"a.b": "cpu:0"}, ["--run-option", "a.b=cpu:0"]),
    "environment": ({"NAME": "value"}, ["--env", "NAME=value"]),
    "load_from": ("bytes", ["--load-from", "bytes"]),
    "python": (Path("python3"), ["--python", "python3"]),
    "xray": ("phases", ["--xray", "phases"]),
    "run_peak": (True, ["--run-peak"]),
    "timeout_s": (7.0, ["--timeout", "7"]),
    "memory_limit_bytes": (1_000_000_000, ["--memory-limit", "1GB"]),
}
BESIDE: dict[str, tuple[dict[str, Any], list[str]]] = {
    "provider_options": ({"providers": ("MyProvider",)}, ["--provider", "MyProvider"])
}
"""What an option needs next to it."""

TUNED_ONLY = {"shared_arena", "sessions", "shared_weights"}
NOTED = {"telemetry", "python"}
"""In a note of the profile and in its environment."""

CHANGED_SESSION: dict[str, Any] = {
    "options": {"a.b": "1"},
    "environment": {"NAME": "value"},
    "providers": ("MyProvider",),
    "disabled_optimizers": ("Folding",),
    "load_from": "bytes",
    "runs": 3,
    "provider_options": {"MyProvider": {"key": "value"}},
    "run_options": {"a.b": "1"},
}


def of_function(monkeypatch: pytest.MonkeyPatch, **options: Any) -> ProfileConfig:
    """Return the configuration that `memdiag.profile` makes of `options`."""
    configs: list[ProfileConfig] = []
    monkeypatch.setattr(
        "memdiag.api.profile.profile_model",
        lambda model, config, on_progress: configs.append(config),
    )
    memdiag.profile("m.onnx", **options)
    return configs[0]


def of_command(*words: str) -> ProfileConfig:
    """Return the configuration that `memdiag profile` makes of the `words`."""
    options = command_parser("profile", command).parse_args(["m.onnx", *words])
    return command._chosen_profile_config(options, pinned=False)


def groups(config: ProfileConfig) -> tuple[object, ...]:
    return config.session, config.inputs, config.limits, config.xray, config.run_peak


def test_each_option_is_tested() -> None:
    assert OPTIONS.keys() == options_of(ProfileOptions).keys()


def test_the_signature_and_the_docstring_list_each_option() -> None:
    parameters = inspect.signature(memdiag.profile).parameters
    for name, (_, option) in options_of(ProfileOptions).items():
        assert parameters[name].default == option.default
        assert f"        {name}: {option.help[:20]}" in str(memdiag.profile.__doc__)


def test_an_option_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError, match="there is no argument 'dim'"):
        memdiag.profile("m.onnx", dim={"batch": 2})  # type: ignore[call-arg] # wrong


class Read(dict[str, Any]):
    """Options that know which of them were read."""

    def __init__(self, *values: Any) -> None:
        super().__init__(*values)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return super().__getitem__(name)


@pytest.mark.parametrize(
    ("module", "group"),
    [
        ("compare", CompareOptions),
        ("estimate", EstimateOptions),
        ("fix", FixOptions),
        ("profile_config", ProfileOptions),
    ],
)
def test_a_function_reads_each_of_its_options(
    module: str, group: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Read] = []

    def recorded(group: type, options: dict[str, Any]) -> Read:
        read.append(Read(options_with_defaults(group, options)))
        return read[-1]

    monkeypatch.setattr(f"memdiag.api.{module}.options_with_defaults", recorded)
    function = getattr(memdiag, module.removesuffix("_config"))
    with pytest.raises(MemdiagError):
        function(*["missing.onnx"] * (2 if module == "compare" else 1))
    assert read[0].names == options_of(group).keys()


@pytest.mark.parametrize("name", OPTIONS)
def test_function_and_command_make_the_same_configuration(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.ones(1))
    value, words = OPTIONS[name]
    others, other_words = BESIDE.get(name, ({}, []))
    changed = of_function(monkeypatch, **others, **{name: value})
    assert groups(changed) != groups(of_function(monkeypatch, **others)), (
        f"api/profile_config.py does not pass {name} on"
    )
    assert groups(changed) == groups(of_command(*other_words, *words)), (
        f"cli/commands/profile.py does not pass {words[0]} on"
    )


def test_without_options_function_and_command_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    assert groups(of_function(monkeypatch)) == groups(of_command())


def test_figures_only_leave_out_the_peak_of_a_run() -> None:
    assert not of_command("--run-peak").figures_only().run_peak


def test_the_script_receives_each_field_of_the_session() -> None:
    names = {each.name for each in fields(SessionConfig)}
    assert names <= Job(model=Path("m.onnx")).message().keys()


def test_each_setting_of_the_session_is_recorded() -> None:
    names = {each.name for each in fields(SessionConfig)} - TUNED_ONLY - NOTED
    missing = names - set(Session.__struct_fields__)
    assert not missing, f"records/profile.py: Session has no field for {missing}"


@pytest.mark.parametrize("name", Session.__struct_fields__)
def test_each_recorded_setting_is_compared_with_the_baseline(name: str) -> None:
    assert name in CHANGED_SESSION, f"add {name} to CHANGED_SESSION above"
    profile = profiles.tied_if()
    session = msgspec.structs.replace(profile.session, **{name: CHANGED_SESSION[name]})
    changed = msgspec.structs.replace(profile, session=session)
    assert condition_differences(baseline_entry([profile]), changed), (
        f"budgets/baselines.py does not compare {name}"
    )
    assert name == "runs" or session.settings != profile.session.settings, (
        f"Session.settings does not name {name}"
    )
