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
from memdiag.pytest_plugin import BUDGET_MARKER
from memdiag.pytest_plugin.calls import require_whole_number
from memdiag.pytest_plugin.profiling import path_from_here
from memdiag.pytest_plugin.settings import SETTINGS_STASH_KEY
from memdiag.records.growth import Growth

GROWTH_ARGUMENT = "growth"
LEAK_OPTIONS = tuple(
    name for name in inspect.signature(leak).parameters if name not in ("model", "on_progress")
)
"""Arguments of `memdiag.leak` that a marker with ``growth="none"`` accepts."""

_GROWTHS_STASH_KEY = pytest.StashKey[list[Growth]]()


def measure_growth(item: pytest.Item, mark: pytest.Mark) -> None:
    """Run the model of `mark` many times; `judge_growth` judges the result.

    Raises:
        UsageError: an argument is not valid.
        MemdiagError: as `memdiag.leak`.
    """
    if mark.kwargs[GROWTH_ARGUMENT] != "none":
        raise UsageError(
            f'{BUDGET_MARKER}: {GROWTH_ARGUMENT} can only be "none", not '
            f"{mark.kwargs[GROWTH_ARGUMENT]!r}. For a limit in bytes, use growth_per_run."
        )
    options = {name: mark.kwargs[name] for name in LEAK_OPTIONS if name in mark.kwargs}
    for name in {"runs", "callers"} & options.keys():
        require_whole_number(name, options[name])
    settings = item.config.stash[SETTINGS_STASH_KEY]
    model = path_from_here(item.config, Path(mark.args[0]))
    arguments: dict[str, Any] = {"python": settings.python, **options}
    with nullcontext() if settings.parallel else measurement_lock():
        growth = leak(model, **arguments)
    item.user_properties.append((f"memdiag.{mark.args[0]}.verdict", growth.verdict))
    item.stash.setdefault(_GROWTHS_STASH_KEY, []).append(growth)


def judge_growth(item: pytest.Item) -> None:
    """Fail `item` if a model leaks, or if it was not observed to the end."""
    texts = [
        f"memory growth: {growth.subject}: {growth.message or growth.sentence}"
        for growth in item.stash.get(_GROWTHS_STASH_KEY, [])
        if growth.message or growth.is_leak_or_kept
    ]
    if texts:
        pytest.fail("\n".join(texts), pytrace=False)


def limits_growth_only(mark: pytest.Mark) -> bool:
    """Return whether `mark` limits the growth alone, so that no profile is needed."""
    return GROWTH_ARGUMENT in mark.kwargs and set(mark.kwargs) <= {GROWTH_ARGUMENT, *LEAK_OPTIONS}
