"""The argument ``estimated=True`` of the marker: compares a budget with an estimate."""

from __future__ import annotations

import pytest

from memdiag.api.arguments import check_dims
from memdiag.api.estimate import estimate
from memdiag.api.options import ConfigOptions, GraphOptions, options_of
from memdiag.budgets.estimates import ESTIMATED_FIGURES, judge_estimate
from memdiag.budgets.parsing import merged_budgets, parse_budget
from memdiag.errors import UsageError
from memdiag.pytest_plugin import BUDGET_MARKER
from memdiag.pytest_plugin.profiling import marked_model, path_from_here
from memdiag.pytest_plugin.settings import SETTINGS_STASH_KEY
from memdiag.pytest_plugin.summary import record_judgement
from memdiag.records.budget import Budget, Judgement
from memdiag.reports.budget import judgement_lines

ESTIMATED_ARGUMENT = "estimated"
ESTIMATE_OPTIONS = (
    *("dims", "for_onnxruntime", "runs", "upper"),
    *options_of(ConfigOptions),
    *options_of(GraphOptions),
)
"""Arguments of `memdiag.estimate` that a marker with ``estimated=True`` accepts."""

_ESTIMATE_JUDGEMENTS = pytest.StashKey[list[Judgement]]()


def is_estimated(mark: pytest.Mark) -> bool:
    """Return whether `mark` asks for an estimate.

    Raises:
        UsageError: the argument is neither True nor False.
    """
    value = mark.kwargs.get(ESTIMATED_ARGUMENT, False)
    if not isinstance(value, bool):
        raise UsageError(f"{BUDGET_MARKER}: {ESTIMATED_ARGUMENT} is True or False, not {value!r}.")
    return value


def estimate_marked(item: pytest.Item, mark: pytest.Mark, defaults: Budget) -> None:
    """Estimate the model of `mark`; `judge_estimated` judges the result.

    Args:
        item: the test.
        mark: its marker.
        defaults: the project's budget of the model. Limits that cannot be estimated are ignored.

    Raises:
        UsageError: an argument is not valid.
        MemdiagError: as `memdiag.estimate`.
    """
    model = marked_model(mark)
    option_names = (ESTIMATED_ARGUMENT, *ESTIMATE_OPTIONS)
    limits = {name: value for name, value in mark.kwargs.items() if name not in option_names}
    estimated_limits = {
        name: limit for name, limit in defaults.limits.items() if name in ESTIMATED_FIGURES
    }
    budget = merged_budgets(
        Budget(limits=estimated_limits, tolerance=defaults.tolerance),
        parse_budget(limits, where=BUDGET_MARKER, other_names=option_names),
    )
    if not budget.limits:
        raise UsageError(
            f'{BUDGET_MARKER}: {ESTIMATED_ARGUMENT}=True needs a limit, such as peak="1.2 GB".'
        )
    options = {name: mark.kwargs[name] for name in ESTIMATE_OPTIONS if name in mark.kwargs}
    check_dims(options.get("dims"))
    if (
        item.config.stash[SETTINGS_STASH_KEY].python is not None
        and "for_onnxruntime" not in options
    ):
        raise UsageError(
            f"{BUDGET_MARKER}: {ESTIMATED_ARGUMENT}=True does not start the interpreter of"
            ' --memdiag-python. Name its release: for_onnxruntime="1.24.4".'
        )
    model = path_from_here(item.config, model)
    judgement = judge_estimate(estimate(model, details=False, **options), budget)
    record_judgement(item, judgement, remark="estimated")
    item.stash.setdefault(_ESTIMATE_JUDGEMENTS, []).append(judgement)


def judge_estimated(item: pytest.Item) -> None:
    """Fail `item` if the estimate of a model exceeds its budget."""
    texts = [
        "\n".join(judgement_lines(judgement))
        for judgement in item.stash.get(_ESTIMATE_JUDGEMENTS, [])
        if not judgement.is_met
    ]
    if texts:
        pytest.fail("\n".join(texts), pytrace=False)
