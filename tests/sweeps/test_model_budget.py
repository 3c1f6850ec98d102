"""Budgets of a sweep: multiples of the weights, and figures that do not exist."""

import msgspec
import pytest

from memdiag.errors import UsageError
from memdiag.records.profile import Profile
from memdiag.sweeps.model_budget import MIN_BUDGET_WEIGHT_BYTES, breach_sentence, parse_model_budget
from tests.reports import profiles


def with_weights(size: int) -> Profile:
    profile = profiles.tied_if()
    return msgspec.structs.replace(
        profile, model=msgspec.structs.replace(profile.model, weight_bytes=size)
    )


def test_a_multiple_limits_models_with_weights_of_a_mebibyte() -> None:
    budget = parse_model_budget({"peak": "0.001x"})
    (breach,) = budget.breaches(with_weights(MIN_BUDGET_WEIGHT_BYTES))
    assert breach.limit == round(0.001 * MIN_BUDGET_WEIGHT_BYTES)
    assert breach_sentence(breach).startswith("peak ")
    assert budget.breaches(with_weights(MIN_BUDGET_WEIGHT_BYTES - 1)) == ()
    # A limit in bytes is the same for all.
    assert parse_model_budget({"peak": "1KB"}).breaches(with_weights(0))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("stedy", "--budget: unknown figure 'stedy'. Use one of peak"),
        ("copies", "copies cannot be a multiple of the weights"),
    ],
)
def test_a_figure_that_has_no_multiple_is_refused(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_model_budget({name: "2x"})
