"""The settings of the plugin: command-line flags, which override ini options of the same names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from memdiag.defaults import BUDGET_REPEATS

DEFAULT_BASELINES = "memory_baselines"


@dataclass(frozen=True, kw_only=True)
class PluginSettings:
    """The settings of one test run.

    Attributes:
        root: pytest's rootdir, to which paths and patterns are relative.
        models: patterns of the models to test.
        baselines: the folder of the baselines.
        update: write baselines instead of comparing with them.
        python: the interpreter to measure with; this one if None.
        repeats: number of fresh processes to aggregate; the default if None.
        tolerance: the tolerance of budgets that have none; the default if None.
        parallel: let several workers measure at the same time.
        sessions: record the test run and list its onnxruntime sessions.
    """

    root: Path
    models: tuple[str, ...]
    baselines: Path
    update: bool
    python: Path | None
    repeats: int | None
    tolerance: str | None
    parallel: bool
    sessions: bool


SETTINGS_STASH_KEY = pytest.StashKey[PluginSettings]()

# Flag, ini type (None: a flag only), help, and what argparse needs.
_PLUGIN_OPTIONS: tuple[tuple[str, str | None, str, dict[str, Any]], ...] = (
    (
        "models",
        "args",
        "check every model that matches against [tool.memdiag.budgets] and its baseline, each as a"
        " test",
        {"metavar": "GLOB", "action": "append"},
    ),
    (
        "baselines",
        "string",
        f"folder of the baselines, one file a model (default: {DEFAULT_BASELINES})",
        {"metavar": "DIR"},
    ),
    (
        "update-baseline",
        None,
        "write the baselines of the models that are measured, instead of comparing with them",
        {"action": "store_const", "const": True},
    ),
    (
        "python",
        "string",
        "measure with another Python interpreter, which has another onnxruntime",
        {"metavar": "PYTHON"},
    ),
    (
        "repeats",
        "string",
        "number of processes to run when a budget is exceeded or a baseline is written; medians are"
        f" used (default: {BUDGET_REPEATS})",
        {"metavar": "N"},
    ),
    (
        "tolerance",
        "string",
        "share by which figures may exceed limits and baselines of budgets without a tolerance"
        " (default: 0%% for limits, 2%% for baselines)",
        {"metavar": "SHARE"},
    ),
    (
        "parallel",
        "bool",
        "let models be measured at the same time by several workers",
        {"action": "store_const", "const": True},
    ),
    (
        "sessions",
        "bool",
        "record the test run, and list every onnxruntime session that its tests create",
        {"action": "store_const", "const": True},
    ),
)


def add_plugin_options(parser: pytest.Parser) -> None:
    """Add the flags and ini options to `parser`."""
    group = parser.getgroup("memdiag", "memory budgets of ONNX models (memdiag)")
    for name, kind, help, flag in _PLUGIN_OPTIONS:
        group.addoption(f"--memdiag-{name}", default=None, help=help, **flag)
        if kind is not None:
            # Typed loosely: addini accepts only literals for the type.
            add: Callable[..., None] = parser.addini
            default = False if kind == "bool" else [] if kind == "args" else ""
            add(_ini_name(name), help.replace("%%", "%"), type=kind, default=default)


def read_settings(config: pytest.Config) -> PluginSettings:
    """Return the values of flags and ini options.

    Raises:
        pytest.UsageError: a value is not valid.
    """

    def value(name: str) -> Any:
        flag_value = config.getoption(f"--memdiag-{name}")
        return config.getini(_ini_name(name)) if flag_value is None else flag_value

    root = config.rootpath
    repeats = value("repeats")
    if repeats and not (repeats.isdecimal() and int(repeats) > 0):
        raise pytest.UsageError(f"--memdiag-repeats: {repeats!r} is not a whole number from 1")
    python = value("python")
    return PluginSettings(
        root=root,
        models=tuple(value("models")),
        baselines=root / (value("baselines") or DEFAULT_BASELINES),
        update=bool(config.getoption("--memdiag-update-baseline")),
        python=root / Path(python).expanduser() if python else None,
        repeats=int(repeats) if repeats else None,
        tolerance=value("tolerance") or None,
        parallel=bool(value("parallel")),
        sessions=bool(value("sessions")),
    )


def _ini_name(name: str) -> str:
    return f"memdiag_{name.replace('-', '_')}"
