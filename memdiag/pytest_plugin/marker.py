"""The marker ``memory_budget``: tests with it, and a test for each of ``--memdiag-models``."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from memdiag.api.budget import BudgetResult, check_budget
from memdiag.api.options import ProfileOptions, options_of
from memdiag.api.project_settings import read_project_settings
from memdiag.budgets.baselines import baseline_path, configuration_name
from memdiag.budgets.parsing import merged_budgets, parse_budget, parse_tolerance
from memdiag.defaults import BUDGET_REPEATS
from memdiag.errors import MemdiagError, UsageError
from memdiag.pytest_plugin import BUDGET_MARKER, estimated, growth
from memdiag.pytest_plugin.process_budget import TEST_LIMITS, process_budget
from memdiag.pytest_plugin.profiling import (
    CachedProfileRunner,
    marked_model,
    outcome_sentence,
    path_from_here,
)
from memdiag.pytest_plugin.settings import SETTINGS_STASH_KEY, PluginSettings
from memdiag.pytest_plugin.summary import add_row_remark, record_judgement
from memdiag.records.budget import Budget
from memdiag.records.estimate import PINNED_NOTE
from memdiag.reports.budget import judgement_lines

_PROFILE_OPTIONS = options_of(ProfileOptions).keys() - {"xray", "run_peak"}
_MARKER_OPTIONS = ("baseline", "repeats", "pinned", estimated.ESTIMATED_ARGUMENT)
_BASELINE_CONFIGURATIONS = pytest.StashKey[dict[Path, str]]()


@dataclass(frozen=True, kw_only=True)
class MarkerResult:
    """The result of one marker.

    Attributes:
        request: the arguments of the marker.
        result: the profile of its model, with the judgement.
        row: the row of the summary.
    """

    request: MarkerArguments
    result: BudgetResult
    row: dict[str, Any]


_MARKER_RESULTS = pytest.StashKey[list[MarkerResult]]()


@dataclass(frozen=True, kw_only=True)
class MarkerArguments:
    """The arguments of one marker.

    Attributes:
        model: the model, relative to the rootdir.
        budget: the limits, with the project's defaults.
        baseline: the file of the baseline.
        repeats: number of fresh processes to aggregate.
        pinned: make malloc release freed memory, so that figures are reproducible.
        options: arguments of `memdiag.profile`.
    """

    model: Path
    budget: Budget
    baseline: Path
    repeats: int
    pinned: bool
    options: dict[str, Any]

    @classmethod
    def of(cls, mark: pytest.Mark, settings: PluginSettings) -> MarkerArguments:
        """Return the arguments of `mark`, with defaults from ``[tool.memdiag.budgets]``.

        Raises:
            UsageError: an argument is not valid.
        """
        model = marked_model(mark)
        for limit in TEST_LIMITS:
            if limit in mark.kwargs:
                raise UsageError(
                    f"{BUDGET_MARKER}: {limit} is a limit of the test itself, not of a model. Write"
                    f" it in a marker of its own: {BUDGET_MARKER}({limit}=…)."
                )
        option_names = (*_MARKER_OPTIONS, *_PROFILE_OPTIONS)
        if growth.GROWTH_ARGUMENT in mark.kwargs:
            option_names = (*option_names, growth.GROWTH_ARGUMENT, *growth.LEAK_OPTIONS)
        limits = {name: value for name, value in mark.kwargs.items() if name not in option_names}
        marker_budget = parse_budget(limits, where=BUDGET_MARKER, other_names=option_names)
        budget = merged_budgets(_default_budget(model, settings), marker_budget)
        baseline_name = mark.kwargs.get("baseline")
        options = {name: mark.kwargs[name] for name in _PROFILE_OPTIONS if name in mark.kwargs}
        pinned = bool(mark.kwargs.get("pinned", True))
        return cls(
            model=model,
            budget=budget,
            baseline=settings.baselines / f"{str(baseline_name).removesuffix('.json')}.json"
            if baseline_name
            else baseline_path(
                settings.baselines, model, settings.root, {**options, "pinned": pinned}
            ),
            repeats=int(mark.kwargs.get("repeats", settings.repeats or BUDGET_REPEATS)),
            pinned=pinned,
            options=options,
        )


def measure_marked(item: pytest.Item) -> None:
    """Measure the models that the markers of `item` name. An error fails its setup.

    A test is skipped if its only limit is a baseline of another class of machine.
    """
    settings = item.config.stash[SETTINGS_STASH_KEY]
    marker_results = item.stash.setdefault(_MARKER_RESULTS, [])
    try:
        budget_of_process = process_budget(item)
        for mark in item.iter_markers(BUDGET_MARKER):
            if mark.args and growth.GROWTH_ARGUMENT in mark.kwargs:
                growth.measure_growth(item, mark)
            if mark.args and estimated.is_estimated(mark):
                defaults = _default_budget(Path(mark.args[0]), settings)
                estimated.estimate_marked(item, mark, defaults)
            elif mark.args and not growth.limits_growth_only(mark):
                request = MarkerArguments.of(mark, settings)
                marker_results.append(_measure_marker(item, request, settings))
    except MemdiagError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    results = [marker_result.result for marker_result in marker_results]
    incomparable = [result for result in results if result.incomparable]
    has_limits = any(
        result.judgement is not None and result.judgement.budget.limits for result in results
    )
    if incomparable and not has_limits and budget_of_process is None:
        first_result = incomparable[0]
        pytest.skip(f"{first_result.profile.model.path}: {first_result.incomparable}")


def judge_marked(item: pytest.Item) -> None:
    """Fail `item` if a model exceeds its budget or its baseline, or leaks."""
    growth.judge_growth(item)
    estimated.judge_estimated(item)
    marker_results = item.stash.get(_MARKER_RESULTS, [])
    judgements = [marker_result.result.judgement for marker_result in marker_results]
    texts = [
        # The summary has this note once for all tests.
        "\n".join(text for text in judgement_lines(judgement) if PINNED_NOTE not in text)
        for judgement in judgements
        if judgement is not None and not judgement.is_met
    ]
    if texts:
        pytest.fail("\n".join(texts), pytrace=False)


def update_baselines(item: pytest.Item) -> None:
    """Write the baseline updates of `item`, which passed."""
    for marker_result in item.stash.get(_MARKER_RESULTS, []):
        if marker_result.result.update is not None:
            try:
                status = marker_result.result.update.write()
            except MemdiagError as error:
                raise pytest.fail.Exception(str(error), pytrace=False) from None
            path = path_from_here(item.config, marker_result.request.baseline)
            add_row_remark(marker_result.row, f"{path} {status}")


def _measure_marker(
    item: pytest.Item, request: MarkerArguments, settings: PluginSettings
) -> MarkerResult:
    config = item.config
    _refuse_shared_baseline(config, request)
    result = check_budget(
        CachedProfileRunner(config, request.model, request.options, pinned=request.pinned),
        request.budget,
        model=str(path_from_here(config, request.model)),
        baseline=request.baseline,
        update=settings.update,
        update_option="pytest --memdiag-update-baseline",
        repeats=request.repeats,
    )
    if result.judgement is None:
        pytest.fail(outcome_sentence(result.profile), pytrace=False)
    row = record_judgement(item, result.judgement, result.profile, remark=result.incomparable)
    return MarkerResult(request=request, result=result, row=row)


def _refuse_shared_baseline(config: pytest.Config, request: MarkerArguments) -> None:
    """Refuse a baseline file that another test uses for another model or with other options.

    Raises:
        UsageError: there is such a test.
    """
    configuration_by_baseline = config.stash.setdefault(_BASELINE_CONFIGURATIONS, {})
    path = config.stash[SETTINGS_STASH_KEY].root / request.model
    configuration = f"{path} {configuration_name({**request.options, 'pinned': request.pinned})}"
    if configuration_by_baseline.setdefault(request.baseline, configuration) != configuration:
        raise UsageError(
            f"{path_from_here(config, request.baseline)}: another test uses this baseline with"
            " other options or for another model. Give one of them a name of its own:"
            f' {BUDGET_MARKER}(…, baseline="NAME").'
        )


def _default_budget(model: Path, settings: PluginSettings) -> Budget:
    """Return the tolerance of the plugin's settings, and the project's budget of `model`."""
    budget = Budget()
    if settings.tolerance is not None:
        share = parse_tolerance(settings.tolerance, where="--memdiag-tolerance")
        budget = Budget(tolerance=share)
    path = settings.root / model
    if path.is_relative_to(settings.root):
        path = path.relative_to(settings.root)
    project = read_project_settings(settings.root)
    return merged_budgets(budget, project.budget_for(path.as_posix()))


class ModelCollector(pytest.File):
    """The node of a model in pytest's tree; it contains one test."""

    def collect(self) -> Iterator[pytest.Item]:
        """Yield the test of the model."""
        item: ModelItem = ModelItem.from_parent(self, name=BUDGET_MARKER)
        item.add_marker(getattr(pytest.mark, BUDGET_MARKER)(self.path))
        yield item


class ModelItem(pytest.Item):
    """Test of one model of ``--memdiag-models`` against its budget and baseline."""

    def runtest(self) -> None:
        """Do nothing: the model of the marker was measured and judged before."""

    def reportinfo(self) -> tuple[Path, None, str]:
        """Return the file of the model, for headings."""
        return self.path, None, f"{BUDGET_MARKER} of {self.path.name}"


def model_items(session: pytest.Session) -> Iterator[pytest.Item]:
    """Yield a test for each model that a pattern of ``--memdiag-models`` matches, by path.

    Raises:
        pytest.UsageError: a pattern matches nothing.
    """
    settings = session.config.stash[SETTINGS_STASH_KEY]
    paths: set[Path] = set()
    for pattern in settings.models:
        names = glob.glob(pattern, root_dir=settings.root, recursive=True)
        if not names:
            raise pytest.UsageError(
                f"--memdiag-models: no file matches {pattern!r} in {settings.root}"
            )
        paths.update(settings.root / name for name in names)
    for path in sorted(paths):
        file: ModelCollector = ModelCollector.from_parent(session, path=path)
        yield from file.collect()
