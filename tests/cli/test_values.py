import sys

import pytest

from memdiag.cli.commands.profile import read_budget
from memdiag.cli.options import (
    command_line_words,
    read_dim_sizes,
    read_dims,
    read_pairs,
    read_provider_options,
    read_sizes,
    sizes_by_name,
)
from memdiag.errors import UsageError


def test_pairs_split_at_the_first_equals_sign() -> None:
    assert read_pairs("--env", ["A=1", "B=x=y", "C="]) == {"A": "1", "B": "x=y", "C": ""}


def test_what_sweeps_several_values_of_a_session_option_is_named() -> None:
    with pytest.raises(UsageError, match="Give it once, or several values to memdiag sweep"):
        read_pairs("--session-option", ["A=1", "A=2"])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["A"], "'A' is not NAME=VALUE"),
        (["=1"], "'=1' is not NAME=VALUE"),
        (["A=1", "A=2"], "A is given twice. Give it once.$"),
    ],
)
def test_what_is_no_pair_is_refused(values: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_pairs("--env", values)


def test_options_of_providers_are_read_by_provider() -> None:
    words = ["P:k=v:w=x", "Q:k=", "P:l=1"]
    assert read_provider_options(words) == {"P": {"k": "v:w=x", "l": "1"}, "Q": {"k": ""}}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["P=1"], "'P=1' is not PROVIDER:KEY=VALUE"),
        (["P:k"], "'P:k' is not PROVIDER:KEY=VALUE"),
        ([":k=1"], "':k=1' is not PROVIDER:KEY=VALUE"),
        (["P:=1"], "'P:=1' is not PROVIDER:KEY=VALUE"),
        (["P:k=1", "P:k=2"], "P:k is given twice"),
    ],
)
def test_what_is_no_option_of_a_provider_is_refused(values: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_provider_options(values)


@pytest.mark.parametrize("value", ["-1", "1.5", "x", "", "²"])
def test_what_is_no_size_of_a_dimension_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match="is not a whole number"):
        read_dims([f"batch={value}"])


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
    assert read_dims(values) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["batch=1..256", "seq=16"], {"batch": (1, 256), "seq": 16}),
        (["batch=1,4,16,seq=3"], {"batch": [1, 4, 16], "seq": 3}),
        (["max(a,b)=3, 4", "c=5,6"], {"max(a,b)": [3, 4], "c": [5, 6]}),
        (["a=1..2,b=3..4"], {"a": (1, 2), "b": (3, 4)}),
        (["a=1", "b=2"], {"a": 1, "b": 2}),
        ([], {}),
    ],
)
def test_ranges_and_lists_of_sizes_are_read(values: list[str], expected: dict[str, object]) -> None:
    assert read_dim_sizes(values) == expected


@pytest.mark.parametrize("value", ["1..", "..4", "1..2,3", "x,1", "-1", ""])
def test_what_is_no_list_of_sizes_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match="neither a whole number nor a range or list"):
        read_dim_sizes([f"batch={value}"])


def test_sizes_are_sorted() -> None:
    assert read_sizes("16,1") == (1, 16)
    for text in ("0", "", "1.5", "x"):
        with pytest.raises(UsageError, match="--sizes must be whole numbers from 1"):
            read_sizes(text)


def test_the_command_is_text_whatever_the_names_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/memdiag", "fix", "m\udcff.onnx", "--out", "ü"])
    assert command_line_words() == ("memdiag", "fix", "m\\udcff.onnx", "--out", "ü")


def test_a_budget_is_read_from_one_text() -> None:
    found = read_budget("peak=1.2GB, copies=1,tolerance=2%")
    assert found is not None
    assert found.limits == {"peak": 1_200_000_000, "copies": 1}
    assert found.tolerance == 0.02
    assert read_budget(None) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "--budget: no figure was given"),
        ("tolerance=2%", "--budget: no figure was given"),
        ("peak", "--budget: 'peak' is not NAME=VALUE"),
        ("peak=1GB,peak=2GB", "--budget: peak is given twice"),
        ("peek=1GB", "--budget: unknown figure 'peek'"),
        ("peak=1", "--budget: peak=1 has no unit"),
    ],
)
def test_what_is_no_budget_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_budget(text)


def test_sizes_have_the_names_that_are_allowed() -> None:
    assert sizes_by_name("--budget", "anonymous=1kB", ["anonymous"]) == {"anonymous": 1000}
    assert sizes_by_name("--budget", None, ["anonymous"]) == {}
    with pytest.raises(UsageError, match=r"unknown figure 'peak'\. Use one of anonymous"):
        sizes_by_name("--budget", "peak=1kB", ["anonymous"])
