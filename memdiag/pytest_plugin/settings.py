"""The plugin's settings: flags, which default to None, before ini options of the same names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

DEFAULT_BASELINES = "memory_baselines"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What was asked for; relative paths and patterns are from `root`, pytest's rootdir.

    `processes` is how many processes confirm a breach, None for the usual number; `tolerance` what
    a budget without one of its own has.
    """

    root: Path
    models: tuple[str, ...]
    baselines: Path
    update: bool
    python: Path | None
    processes: int | None
    tolerance: str | None
    parallel: bool


SETTINGS = pytest.StashKey[Settings]()

# Flag, ini type (None: a flag only), help, and what argparse needs.
_OPTIONS: tuple[tuple[str, str | None, str, dict[str, Any]], ...] = (
    (
        "models",
        "args",
        "hold every model that matches to [tool.memdiag.budgets] and its baseline, each as a test",
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
        "measure under another interpreter, which has another onnxruntime",
        {"metavar": "PYTHON"},
    ),
    (
        "processes",
        "string",
        "number of processes to run when a budget is exceeded or a baseline is written; medians are"
        " used (default: 3)",
        {"metavar": "N"},
    ),
    (
        "tolerance",
        "string",
        "the share by which figures may be above limits and baselines where a budget has none of"
        " its own (default: 0%% for limits, 2%% for baselines)",
        {"metavar": "SHARE"},
    ),
    (
        "parallel",
        "bool",
        "let models be measured at the same time by several workers",
        {"action": "store_const", "const": True},
    ),
)


def add_options(parser: pytest.Parser) -> None:
    """Add the flags and ini options to `parser`."""
    group = parser.getgroup("memdiag", "memory budgets of ONNX models (memdiag)")
    for name, kind, help, flag in _OPTIONS:
        group.addoption(f"--memdiag-{name}", default=None, help=help, **flag)
        if kind is not None:
            # The type is one of pytest's literals, which a table of texts does not show.
            add: Callable[..., None] = parser.addini
            default = False if kind == "bool" else [] if kind == "args" else ""
            add(_ini(name), help.replace("%%", "%"), type=kind, default=default)


def read_settings(config: pytest.Config) -> Settings:
    """Return what flags and ini options say.

    Raises:
        pytest.UsageError: a value means nothing.
    """

    def value(name: str) -> Any:
        given = config.getoption(f"--memdiag-{name}")
        return config.getini(_ini(name)) if given is None else given

    root = config.rootpath
    processes = value("processes")
    if processes and not (processes.isdecimal() and int(processes) > 0):
        raise pytest.UsageError(f"--memdiag-processes: {processes!r} is not a whole number from 1")
    python = value("python")
    return Settings(
        root=root,
        models=tuple(value("models")),
        baselines=root / (value("baselines") or DEFAULT_BASELINES),
        update=bool(config.getoption("--memdiag-update-baseline")),
        python=root / Path(python).expanduser() if python else None,
        processes=int(processes) if processes else None,
        tolerance=value("tolerance") or None,
        parallel=bool(value("parallel")),
    )


def _ini(name: str) -> str:
    return f"memdiag_{name.replace('-', '_')}"
