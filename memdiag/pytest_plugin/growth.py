"""The argument ``growth="none"`` of the marker: a test fails if a model leaks."""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from memdiag.api.leak import leak
from memdiag.api.measurement_lock import measurement_lock
from memdiag.errors import UsageError
from memdiag.pytest_plugin import MARK
from memdiag.pytest_plugin.calls import checked_count
from memdiag.pytest_plugin.profiling import path_from_here
from memdiag.pytest_plugin.settings import SETTINGS
from memdiag.records.growth import Growth

ARGUMENT = "growth"
LEAK_OPTIONS = tuple(
    name for name in inspect.signature(leak).parameters if name not in ("model", "on_progress")
)
"""Arguments of `memdiag.leak` that a marker with ``growth="none"`` accepts."""

_GROWTHS = pytest.StashKey[list[Growth]]()


def measure_growth(item: pytest.Item, mark: pytest.Mark) -> None:
    """Run the model of `mark` many times; `judge_growth` judges the result.

    Raises:
        UsageError: an argument is not valid.
        MemdiagError: as `memdiag.leak`.
    """
    if mark.kwargs[ARGUMENT] != "none":
        raise UsageError(
            f'{MARK}: {ARGUMENT} can only be "none", not {mark.kwargs[ARGUMENT]!r}. For a limit in'
            " bytes, use growth_per_run."
        )
    options = {name: mark.kwargs[name] for name in LEAK_OPTIONS if name in mark.kwargs}
    for name in {"runs", "callers"} & options.keys():
        checked_count(name, options[name])
    settings = item.config.stash[SETTINGS]
    model = path_from_here(item.config, Path(mark.args[0]))
    arguments: dict[str, Any] = {"python": settings.python, **options}
    with nullcontext() if settings.parallel else measurement_lock():
        growth = leak(model, **arguments)
    item.user_properties.append((f"memdiag.{mark.args[0]}.verdict", growth.verdict))
    item.stash.setdefault(_GROWTHS, []).append(growth)


def judge_growth(item: pytest.Item) -> None:
    """Fail `item` if a model leaks, or if it was not observed to the end."""
    texts = [
        f"memory growth: {growth.subject}: {growth.message or growth.sentence}"
        for growth in item.stash.get(_GROWTHS, [])
        if growth.message or growth.is_leak_or_kept
    ]
    if texts:
        pytest.fail("\n".join(texts), pytrace=False)


def limits_growth_only(mark: pytest.Mark) -> bool:
    """Return whether `mark` limits the growth alone, so that no profile is needed."""
    return ARGUMENT in mark.kwargs and set(mark.kwargs) <= {ARGUMENT, *LEAK_OPTIONS}
