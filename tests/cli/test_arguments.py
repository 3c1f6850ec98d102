import sys

import pytest

from memdiag.cli.arguments import command_line, dimension_sizes, pairs, trial_arguments
from memdiag.errors import UsageError


def test_pairs_split_at_the_first_equals_sign() -> None:
    assert pairs("--env", ["A=1", "B=x=y", "C="]) == {"A": "1", "B": "x=y", "C": ""}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["A"], "'A' is not NAME=VALUE"),
        (["=1"], "'=1' is not NAME=VALUE"),
        (["A=1", "A=2"], "A is given twice"),
    ],
)
def test_what_is_no_pair_is_refused(values: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        pairs("--env", values)


@pytest.mark.parametrize("value", ["-1", "1.5", "x", "", "²"])
def test_what_is_no_size_of_a_dimension_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match="is not a whole number"):
        dimension_sizes("--dim", [f"batch={value}"])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["batch=4", "input:1=16"], {"batch": 4, "input:1": 16}),
        (["a=1,b=2"], {"a": 1, "b": 2}),
        (["a=1, b=2", "past=0"], {"a": 1, "b": 2, "past": 0}),
        (["max(a,b)=3,c=4"], {"max(a,b)": 3, "c": 4}),
        (["a=1,"], {"a": 1}),
        ([], {}),
    ],
)
def test_dimension_sizes_are_read(values: list[str], expected: dict[str, int]) -> None:
    assert dimension_sizes("--dim", values) == expected


def test_the_inputs_of_trials_are_read_together() -> None:
    assert trial_arguments(["batch=4"], ["x=x.npy"], None, "16,1") == {
        "dims": {"batch": 4},
        "inputs": {"x": "x.npy"},
        "sizes": (1, 16),
    }
    with pytest.raises(UsageError, match="--sizes must be whole numbers from 1"):
        trial_arguments(None, None, None, "0")


def test_the_command_is_text_whatever_the_names_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/memdiag", "fix", "m\udcff.onnx", "--out", "ü"])
    assert command_line() == ("memdiag", "fix", "m\\udcff.onnx", "--out", "ü")
