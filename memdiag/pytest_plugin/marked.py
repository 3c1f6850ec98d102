"""Tests with the marker ``memory_budget``: what it asks for, and whether that holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from memdiag.api.baselines import baseline_path, configuration_name
from memdiag.api.budget import DEFAULT_PROCESSES, Held, hold
from memdiag.api.configuration import read_configuration
from memdiag.budgets.parsing import merged, parse_budget, parse_tolerance
from memdiag.errors import MemdiagError, UsageError
from memdiag.pytest_plugin import MARK
from memdiag.pytest_plugin.measuring import Once, how_it_ended, shown_path
from memdiag.pytest_plugin.rows import add_remark, record
from memdiag.pytest_plugin.settings import SETTINGS, Settings
from memdiag.records.budget import Budget
from memdiag.reports.views.judgement import lines

PROFILE_OPTIONS = (
    "runs",
    "run",
    "dims",
    "inputs",
    "session_options",
    "optimization_level",
    "disabled_optimizers",
    "threads",
    "providers",
    "environment",
    "load_from",
    "python",
    "timeout_s",
    "memory_limit_bytes",
)
_OWN_OPTIONS = ("baseline", "processes", "pinned")
_CONFIGURATIONS = pytest.StashKey[dict[Path, str]]()


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one marker asked for, what became of it, and its row of the summary."""

    request: Request
    held: Held
    row: dict[str, str]


_MEASURED = pytest.StashKey[list[Measured]]()


@dataclass(frozen=True, kw_only=True)
class Request:
    """One marker, read: the model as the rootdir sees it, its budget, and how to measure."""

    model: Path
    budget: Budget
    baseline: Path
    processes: int
    pinned: bool
    options: dict[str, Any]

    @classmethod
    def of(cls, mark: pytest.Mark, settings: Settings) -> Request:
        """Return what `mark` asks for, on top of ``[tool.memdiag.budgets]``.

        Raises:
            UsageError: an argument means nothing.
        """
        if len(mark.args) != 1 or not isinstance(mark.args[0], str | Path):
            raise UsageError(f'{MARK} needs the path of one model, as {MARK}("model.onnx", …).')
        model = Path(mark.args[0])
        others = (*_OWN_OPTIONS, *PROFILE_OPTIONS)
        given = {name: value for name, value in mark.kwargs.items() if name not in others}
        budget = merged(_usual(model, settings), parse_budget(given, where=MARK, others=others))
        name = mark.kwargs.get("baseline")
        options = {name: mark.kwargs[name] for name in PROFILE_OPTIONS if name in mark.kwargs}
        pinned = bool(mark.kwargs.get("pinned", True))
        return cls(
            model=model,
            budget=budget,
            baseline=settings.baselines / f"{name}.json"
            if name
            else baseline_path(
                settings.baselines, model, settings.root, {**options, "pinned": pinned}
            ),
            processes=int(mark.kwargs.get("processes", settings.processes or DEFAULT_PROCESSES)),
            pinned=pinned,
            options=options,
        )


def measure_marked(item: pytest.Item) -> None:
    """Measure the models that the markers of `item` name; its setup fails where that fails.

    A test whose only measure is a baseline of another class of machine is skipped.
    """
    settings = item.config.stash[SETTINGS]
    measured = item.stash.setdefault(_MEASURED, [])
    try:
        for mark in item.iter_markers(MARK):
            measured.append(_measure(item, Request.of(mark, settings), settings))
    except MemdiagError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    held = [each.held for each in measured]
    unsound = [one for one in held if one.incomparable]
    if unsound and not any(one.judgement and one.judgement.budget.limits for one in held):
        pytest.skip(f"{unsound[0].profile.model.path}: {unsound[0].incomparable}")


def judge_marked(item: pytest.Item) -> None:
    """Fail `item` where what was measured is above its budget or its baseline."""
    judgements = [each.held.judgement for each in item.stash.get(_MEASURED, [])]
    texts = ["\n".join(lines(one)) for one in judgements if one and not one.holds]
    if texts:
        pytest.fail("\n".join(texts), pytrace=False)


def update_baselines(item: pytest.Item) -> None:
    """Write the baselines that `item`, which passed, was to update."""
    for each in item.stash.get(_MEASURED, []):
        if each.held.update_baseline is not None:
            try:
                status = each.held.update_baseline()
            except MemdiagError as error:
                raise pytest.fail.Exception(str(error), pytrace=False) from None
            shown = shown_path(item.config, each.request.baseline)
            add_remark(each.row, f"{shown} {status}")


def _measure(item: pytest.Item, request: Request, settings: Settings) -> Measured:
    config = item.config
    _refuse_shared(config, request)
    held = hold(
        Once(config, request.model, request.options, pinned=request.pinned),
        request.budget,
        model=str(shown_path(config, request.model)),
        baseline=request.baseline,
        update=settings.update,
        update_option="pytest --memdiag-update-baseline",
        processes=request.processes,
    )
    if held.judgement is None:
        pytest.fail(how_it_ended(held.profile), pytrace=False)
    row = record(item, held.judgement, remark=held.incomparable)
    return Measured(request=request, held=held, row=row)


def _refuse_shared(config: pytest.Config, request: Request) -> None:
    """Refuse a baseline that another test has for another model, or with other options.

    Raises:
        UsageError: there is such a test.
    """
    known = config.stash.setdefault(_CONFIGURATIONS, {})
    path = config.stash[SETTINGS].root / request.model
    now = f"{path} {configuration_name({**request.options, 'pinned': request.pinned})}"
    if known.setdefault(request.baseline, now) != now:
        raise UsageError(
            f"{shown_path(config, request.baseline)}: another test has this baseline with other"
            f" options or for another model. Give one of them a name of its own: {MARK}(…,"
            ' baseline="NAME").'
        )


def _usual(model: Path, settings: Settings) -> Budget:
    """Return what the settings say of all models, and the configuration of this one."""
    usual = Budget()
    if settings.tolerance is not None:
        share = parse_tolerance(settings.tolerance, where="--memdiag-tolerance")
        usual = Budget(tolerance=share)
    path = settings.root / model
    inside = path.is_relative_to(settings.root)
    seen = path.relative_to(settings.root) if inside else path
    return merged(usual, read_configuration(settings.root).budget_for(seen.as_posix()))
