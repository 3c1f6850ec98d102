import io
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import pytest
from rich.console import Console

from memdiag.budgets.evaluation import judge_budget
from memdiag.detail import Detail
from memdiag.records.budget import Budget
from memdiag.records.dimension import Dimension
from memdiag.reports import report_of
from memdiag.reports.budget import judgement_result_line
from memdiag.reports.text import dim_hint, sizes_clause
from tests.reports import comparisons, profiles


def dimension(
    name: str, size: int, role: str, source: Literal["chosen", "given"] = "chosen"
) -> Dimension:
    return Dimension(name=name, size=size, role=role, source=source, reason="")


IMAGE = (("n", "batch"), ("c", "channels"), ("w", "width"), ("h", "height"))
TOKENS = (dimension("batch_size", 1, "batch"), dimension("seq", 128, "sequence"))


@pytest.mark.parametrize(
    ("dimensions", "expected"),
    [
        ((), ""),
        (TOKENS, "at batch_size 1 × seq 128"),
        (TOKENS[::-1], "at batch_size 1 × seq 128"),
        (TOKENS[:1], "at batch_size 1"),
        ((dimension("n", 7, "sequence", "given"),), "at n 7"),
        ((TOKENS[0], dimension("m", 128, "size")), "at batch_size 1 × m 128"),
        (
            (dimension("x:2", 224, "height"), dimension("x:3", 224, "width")),
            "at height 224 × width 224",
        ),
        (
            (dimension("x:2", 224, "height"), dimension("y:2", 224, "height")),
            "at x:2 224 × y:2 224",
        ),
        ((dimension("s77", 1, "batch"), dimension("batch", 2, "size")), "at s77 1 × batch 2"),
        ((dimension("DynamicDimension.1", 1, "size"),), "at DynamicDimension.1 1"),
        (
            [dimension(name, 9, role) for name, role in IMAGE],
            "at n 9 × c 9 × w 9 × h 9",
        ),
        (
            (
                dimension("n", 1, "batch"),
                dimension("h", 9, "height", "given"),
                dimension("w", 9, "width", "given"),
            ),
            "at n 1 × h 9 × w 9",
        ),
        (
            (dimension("a", 9, "sequence"), dimension("b", 9, "sequence")),
            "at a 9 × b 9",
        ),
        (
            (dimension("a", 9, "sequence"), dimension("b", 8, "sequence")),
            "at a 9 × b 8",
        ),
        (
            (*TOKENS, dimension("past", 128, "past"), dimension("past + seq", 256, "sum")),
            "at batch_size 1 × seq 128 × past 128",
        ),
        (
            (dimension("batch", 128, "sequence"), dimension("n", 1, "batch")),
            "at n 1 × batch 128",
        ),
        (
            [dimension(name, 1, "size") for name in "abcdef"],
            "at a 1 × b 1 × c 1 × d 1 and 2 more",
        ),
        ((dimension("a\x1b[31m", 5, "size"),), "at a\\x1b[31m 5"),
    ],
)
def test_sizes_in_words(dimensions: Sequence[Dimension], expected: str) -> None:
    assert sizes_clause(dimensions) == expected


@pytest.mark.parametrize(
    ("dimensions", "option"),
    [
        ((), ""),
        ((dimension("n", 7, "sequence", "given"),), ""),
        (TOKENS, "seq=N,batch_size=N"),
        ((TOKENS[0], dimension("m", 128, "size")), "m=N,batch_size=N"),
        ([dimension(name, 1, "size") for name in "abc"], "a=N,b=N,c=N"),
        ([dimension(name, 1, "size") for name in "abcde"], "a=N,b=N,c=N and 2 more"),
        ((dimension("x:2", 224, "height"), dimension("x:3", 224, "width")), "height=N,width=N"),
        ((dimension("batch", 128, "sequence"), dimension("n", 1, "batch")), "batch=N,n=N"),
        ((dimension("a", 9, "sequence"), dimension("b", 9, "sequence")), "a=N,b=N"),
        ((dimension("a\x1b[31m", 5, "size"),), "a\\x1b[31m=N"),
    ],
)
def test_the_option_for_other_sizes(dimensions: Sequence[Dimension], option: str) -> None:
    assert dim_hint(dimensions) == (option and f"other sizes: --dim {option}")


def test_sizes_that_follow_in_the_same_process_are_named() -> None:
    given = [dimension("batch", 1, "batch", source="given")]
    assert sizes_clause(TOKENS, ["batch_size 1 × seq 1", "batch_size 1 × seq 4"]) == (
        "after runs at batch_size 1 × seq 128, batch_size 1 × seq 1 and batch_size 1 × seq 4"
    )
    assert sizes_clause(given, ["size 4"]) == "after runs at batch 1 and size 4"
    assert sizes_clause((), ["size 4"]) == ""


def printed(record: Any) -> list[str]:
    stream = io.StringIO()
    report_of(record).print_summary(record, Console(file=stream, width=300), detail=Detail.ALL)
    return stream.getvalue().splitlines()


@pytest.mark.parametrize(
    "record",
    [
        profiles.tied_if(),
        comparisons.versions(),
    ],
    ids=["profile", "comparison"],
)
def test_the_first_line_has_the_sizes_and_the_flag(record: Any) -> None:
    sizes = "at batch_size 1 × seq 128"
    assert sizes not in printed(record)[0]
    assert sizes in printed(msgspec.structs.replace(record, dimensions=TOKENS))[0]


def test_a_profile_that_failed_states_the_sizes_too() -> None:
    record = msgspec.structs.replace(profiles.failed(), dimensions=TOKENS)
    assert "at batch_size 1 × seq 128" in printed(record)[1]


def test_reports_and_judgements_have_the_sizes() -> None:
    record = msgspec.structs.replace(profiles.tied_if(), dimensions=TOKENS)
    report = report_of(record).markdown(record)
    assert "at batch\\_size 1 × seq 128" in report.splitlines()[2]
    judgement = judge_budget([record], Budget(limits={"peak": 1}))
    assert judgement_result_line(judgement).endswith(" (in first_run), at batch_size 1 × seq 128")
