import pytest

from memdiag.budgets.figures import FIGURES_BY_NAME
from memdiag.budgets.parsing import merged_budgets, parse_budget, parse_sizes, parse_tolerance
from memdiag.errors import UsageError
from memdiag.records.budget import Budget


def test_sizes_counts_and_a_tolerance_are_read() -> None:
    values = {"peak": "1.2 GB", "steady": 800, "copies": 1, "tolerance": "2%"}
    budget = parse_budget(values, where="here")
    assert budget.limits == {"peak": 1_200_000_000, "steady": 800, "copies": 1}
    assert budget.tolerance == 0.02


def test_an_unknown_figure_names_all_that_there_are() -> None:
    with pytest.raises(UsageError, match=r"^here: unknown figure 'peek'") as caught:
        parse_budget({"peek": "1GB"}, where="here", other_names=("runs",))
    assert all(name in str(caught.value) for name in (*FIGURES_BY_NAME, "tolerance", "runs"))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("peak", "800", "has no unit. Write 800MB"),
        ("peak", "1.5", "has no unit. Write 1.5MB"),
        ("peak", "much", "'much' is not a size"),
        ("peak", 1.5, "must be a size such as 800MB, not 1.5"),
        ("peak", True, "must be a size such as 800MB, not True"),
        ("peak", -1, "must be a size such as 800MB, not -1"),
        ("copies", "1MB", "copies must be a whole number, not '1MB'"),
        ("copies", 1.5, "copies must be a whole number"),
        ("copies", True, "copies must be a whole number"),
    ],
)
def test_a_value_that_is_no_limit_is_refused(name: str, value: object, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_budget({name: value}, where="here")


@pytest.mark.parametrize(("value", "share"), [("2%", 0.02), ("0.5 %", 0.005), (0.1, 0.1), (0, 0)])
def test_a_tolerance_is_a_share(value: object, share: float) -> None:
    assert parse_tolerance(value, where="here") == pytest.approx(share)


@pytest.mark.parametrize("value", ["2", 2, "-1%", "100%", "x%", "nan", True, None])
def test_what_is_no_share_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match=r"is not a tolerance\. Write it like 2%"):
        parse_tolerance(value, where="here")


def test_of_two_budgets_the_second_comes_first_where_it_says_something() -> None:
    usual = Budget(limits={"peak": 1, "steady": 2}, tolerance=0.1)
    assert merged_budgets(usual, Budget(limits={"peak": 3})) == Budget(
        limits={"peak": 3, "steady": 2}, tolerance=0.1
    )
    assert merged_budgets(usual, Budget(tolerance=0.0)).tolerance == 0.0


def test_sizes_by_other_names_are_checked_against_those() -> None:
    assert parse_sizes({"anonymous": "1kB"}, ("peak", "anonymous"), where="here") == {
        "anonymous": 1000
    }
    with pytest.raises(UsageError, match=r"unknown figure 'copies'\. Use one of peak, anonymous"):
        parse_sizes({"copies": "1kB"}, ("peak", "anonymous"), where="here")
