"""Budgets for models of any size: limits in bytes, or as multiples of the weights of each model."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from memdiag.budgets.evaluation import judge_budget
from memdiag.budgets.figures import FIGURES_BY_NAME
from memdiag.budgets.parsing import parse_budget
from memdiag.errors import UsageError
from memdiag.records.budget import Breach, Budget
from memdiag.records.profile import Profile
from memdiag.units import MIB

MIN_BUDGET_WEIGHT_BYTES = MIB
"""Multiples apply to models with at least these bytes of weights: for smaller models the session
itself takes more than any multiple."""

_WEIGHT_FACTOR = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)x")


@dataclass(frozen=True, kw_only=True)
class ModelBudget:
    """Limits of the figures of each model.

    Attributes:
        budget: limits that are the same for all models.
        factors: limits as multiples of the bytes of the model's weights, by figure. They count for
            models with at least `MIN_BUDGET_WEIGHT_BYTES` of weights.
    """

    budget: Budget
    factors: Mapping[str, float] = field(default_factory=dict)

    def breaches(self, profile: Profile) -> tuple[Breach, ...]:
        """Return the limits that a completed `profile` exceeds.

        Raises:
            UsageError: the profile lacks the figure of a limit.
        """
        weight_bytes = profile.model.weight_bytes or 0
        factors = self.factors if weight_bytes >= MIN_BUDGET_WEIGHT_BYTES else {}
        multiples = {name: round(factor * weight_bytes) for name, factor in factors.items()}
        budget = Budget(limits={**self.budget.limits, **multiples}, tolerance=self.budget.tolerance)
        return judge_budget([profile], budget).breaches


def breach_sentence(breach: Breach) -> str:
    """Return a breach in words: ``steady 12 MiB exceeds 10 MiB by 2.0 MiB``."""
    figure_text = FIGURES_BY_NAME[breach.figure].show
    return (
        f"{breach.figure} {figure_text(breach.measured)} exceeds {figure_text(breach.limit)} by"
        f" {figure_text(breach.over)}"
    )


def parse_model_budget(values: Mapping[str, str]) -> ModelBudget:
    """Return the budget with the limits `values` by figure: ``800MB``, or ``2x`` the weights.

    Raises:
        UsageError: a name or a value is not valid, or there is none.
    """
    matches = {name: _WEIGHT_FACTOR.fullmatch(text) for name, text in values.items()}
    factors = {name: float(match[1]) for name, match in matches.items() if match is not None}
    for name in factors:
        if name in FIGURES_BY_NAME and FIGURES_BY_NAME[name].unit != "bytes":
            raise UsageError(f"--budget: {name} cannot be a multiple of the weights.")
    limit_texts = {
        name: text
        for name, text in values.items()
        if name not in factors or name not in FIGURES_BY_NAME
    }
    budget = parse_budget(limit_texts, where="--budget")
    if not factors and not budget.limits:
        raise UsageError(
            "--budget: no figure was given. Write it like peak=1.2GB, or steady=2x for twice the"
            " weights."
        )
    return ModelBudget(budget=budget, factors=factors)
