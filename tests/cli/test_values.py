import sys
from collections.abc import Callable

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


def read_env(values: list[str]) -> dict[str, str]:
    return read_pairs("--env", values)


def read_session_options(values: list[str]) -> dict[str, str]:
    return read_pairs("--session-option", values)


@pytest.mark.parametrize(
    ("read", "values", "expected"),
    [
        (read_env, ["A=1", "B=x=y", "C="], {"A": "1", "B": "x=y", "C": ""}),
        (
            read_provider_options,
            ["P:k=v:w=x", "Q:k=", "P:l=1"],
            {"P": {"k": "v:w=x", "l": "1"}, "Q": {"k": ""}},
        ),
        (read_dims, ["batch=4", "input:1=16"], {"batch": 4, "input:1": 16}),
        (read_dims, ["a=1,b=2"], {"a": 1, "b": 2}),
        (read_dims, ["a=1, b=2", "past=0"], {"a": 1, "b": 2, "past": 0}),
        (read_dims, ["max(a,b)=3,c=4"], {"max(a,b)": 3, "c": 4}),
        (read_dims, ["a=1,"], {"a": 1}),
        (read_dims, [], {}),
        (read_dim_sizes, ["batch=1..256", "seq=16"], {"batch": (1, 256), "seq": 16}),
        (read_dim_sizes, ["batch=1,4,16,seq=3"], {"batch": [1, 4, 16], "seq": 3}),
        (read_dim_sizes, ["max(a,b)=3, 4", "c=5,6"], {"max(a,b)": [3, 4], "c": [5, 6]}),
        (read_dim_sizes, ["a=1..2,b=3..4"], {"a": (1, 2), "b": (3, 4)}),
        (read_dim_sizes, ["a=1", "b=2"], {"a": 1, "b": 2}),
        (read_dim_sizes, [], {}),
    ],
)
def test_values_are_read_by_name(
    read: Callable[[list[str]], object], values: list[str], expected: object
) -> None:
    assert read(values) == expected


NO_PAIR, NO_OPTION = "is not NAME=VALUE", "is not PROVIDER:KEY=VALUE"
NO_SIZE, NO_SIZES = "is not a whole number", "neither a whole number nor a range or list"


@pytest.mark.parametrize(
    ("read", "values", "words"),
    [
        (read_env, ["A"], f"'A' {NO_PAIR}"),
        (read_env, ["=1"], f"'=1' {NO_PAIR}"),
        (read_env, ["A=1", "A=2"], "A is given twice. Give it once.$"),
        (read_session_options, ["A=1", "A=2"], "Give it once, or several values to memdiag sweep"),
        (read_provider_options, ["P=1"], f"'P=1' {NO_OPTION}"),
        (read_provider_options, ["P:k"], f"'P:k' {NO_OPTION}"),
        (read_provider_options, [":k=1"], f"':k=1' {NO_OPTION}"),
        (read_provider_options, ["P:=1"], f"'P:=1' {NO_OPTION}"),
        (read_provider_options, ["P:k=1", "P:k=2"], "P:k is given twice"),
        *((read_dims, [f"b={value}"], NO_SIZE) for value in ("-1", "1.5", "x", "", "²")),
        *(
            (read_dim_sizes, [f"b={value}"], NO_SIZES)
            for value in ("1..", "..4", "1..2,3", "x,1", "-1", "")
        ),
    ],
)
def test_what_is_no_value_is_refused(
    read: Callable[[list[str]], object], values: list[str], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        read(values)


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
