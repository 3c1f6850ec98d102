import pytest

from memdiag.cli.arguments import pairs, whole_numbers
from memdiag.errors import UsageError


def test_pairs_split_at_the_first_equals_sign() -> None:
    assert pairs("--env", ["A=1", "B=x=y", "C="]) == {"A": "1", "B": "x=y", "C": ""}


@pytest.mark.parametrize(
    ("values", "words"),
    [(["A"], "takes NAME=VALUE"), (["=1"], "takes NAME=VALUE"), (["A=1", "A=2"], "A twice")],
)
def test_what_is_no_pair_is_refused(values: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        pairs("--env", values)


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "x", "", "²"])
def test_what_is_no_size_of_a_dimension_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match="whole number from 1"):
        whole_numbers("--dim", [f"batch={value}"])


def test_whole_numbers_are_read() -> None:
    assert whole_numbers("--dim", ["batch=4", "input:1=16"]) == {"batch": 4, "input:1": 16}
