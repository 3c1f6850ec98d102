"""Sizes of inputs in words, and the option for others."""

from collections.abc import Sequence
from typing import Literal

import pytest

from memdiag.budgets.evaluation import judge_budget
from memdiag.records.budget import Budget
from memdiag.records.dimension import Dimension
from memdiag.records.schemas import ReportedRecord
from memdiag.reports.budget import judgement_result_line
from memdiag.reports.text import dim_hint, sizes_clause
from tests.reports import comparisons, profiles
from tests.reports.rendering import markdown, printed, replaced


def dimension(
    name: str, size: int, role: str, source: Literal["chosen", "given"] = "chosen"
) -> Dimension:
    return Dimension(name=name, size=size, role=role, source=source, reason="")


def free(names: str) -> list[Dimension]:
    """Return dimensions of 1 without a role, called by one letter each."""
    return [dimension(name, 1, "size") for name in names]


TOKENS = (dimension("batch_size", 1, "batch"), dimension("seq", 128, "sequence"))
TOKENS_TEXT = "at batch_size 1 × seq 128"
GIVEN = (dimension("n", 7, "sequence", "given"),)
UNNAMED = (dimension("x:2", 224, "height"), dimension("x:3", 224, "width"))
TWO_HEIGHTS = (UNNAMED[0], dimension("y:2", 224, "height"))
PAST = (dimension("past", 128, "past"), dimension("past + seq", 256, "sum"))
IMAGE = [
    dimension(name, 9, role)
    for name, role in (("n", "batch"), ("c", "channels"), ("w", "width"), ("h", "height"))
]
MISNAMED = (dimension("batch", 128, "sequence"), dimension("n", 1, "batch"))
SEQUENCES = (dimension("a", 9, "sequence"), dimension("b", 9, "sequence"))
EVIL = (dimension("a\x1b[31m", 5, "size"),)


@pytest.mark.parametrize(
    ("dimensions", "expected"),
    [
        ((), ""),
        (TOKENS, TOKENS_TEXT),
        (TOKENS[::-1], TOKENS_TEXT),
        (TOKENS[:1], "at batch_size 1"),
        (GIVEN, "at n 7"),
        ((TOKENS[0], dimension("m", 128, "size")), "at batch_size 1 × m 128"),
        (UNNAMED, "at height 224 × width 224"),
        (TWO_HEIGHTS, "at x:2 224 × y:2 224"),
        ((dimension("s77", 1, "batch"), dimension("batch", 2, "size")), "at s77 1 × batch 2"),
        ((dimension("DynamicDimension.1", 1, "size"),), "at DynamicDimension.1 1"),
        (IMAGE, "at n 9 × c 9 × w 9 × h 9"),
        (SEQUENCES, "at a 9 × b 9"),
        ((*TOKENS, *PAST), f"{TOKENS_TEXT} × past 128"),
        (MISNAMED, "at n 1 × batch 128"),
        (free("abcdef"), "at a 1 × b 1 × c 1 × d 1 and 2 more"),
        (EVIL, "at a\\x1b[31m 5"),
    ],
)
def test_sizes_in_words(dimensions: Sequence[Dimension], expected: str) -> None:
    assert sizes_clause(dimensions) == expected


@pytest.mark.parametrize(
    ("dimensions", "option"),
    [
        ((), ""),
        (GIVEN, ""),
        (TOKENS, "seq=N,batch_size=N"),
        ((TOKENS[0], dimension("m", 128, "size")), "m=N,batch_size=N"),
        (free("abc"), "a=N,b=N,c=N"),
        (free("abcde"), "a=N,b=N,c=N and 2 more"),
        (UNNAMED, "height=N,width=N"),
        (MISNAMED, "batch=N,n=N"),
        (SEQUENCES, "a=N,b=N"),
        (EVIL, "a\\x1b[31m=N"),
    ],
)
def test_the_option_for_other_sizes(dimensions: Sequence[Dimension], option: str) -> None:
    assert dim_hint(dimensions) == (option and f"other sizes: --dim {option}")


@pytest.mark.parametrize(
    ("dimensions", "later", "expected"),
    [
        (
            *(TOKENS, ["batch_size 1 × seq 1", "batch_size 1 × seq 4"]),
            "after runs at batch_size 1 × seq 128, batch_size 1 × seq 1 and batch_size 1 × seq 4",
        ),
        (GIVEN, ["size 4"], "after runs at n 7 and size 4"),
        ((), ["size 4"], ""),
    ],
)
def test_sizes_that_follow_in_the_same_process_are_named(
    dimensions: Sequence[Dimension], later: list[str], expected: str
) -> None:
    assert sizes_clause(dimensions, later) == expected


@pytest.mark.parametrize(
    ("record", "line"),
    [(profiles.tied_if(), 0), (comparisons.versions(), 0), (profiles.failed(), 1)],
    ids=["profile", "comparison", "failed profile"],
)
def test_the_answer_has_the_sizes(record: ReportedRecord, line: int) -> None:
    assert TOKENS_TEXT not in printed(record, width=300)
    sized = printed(replaced(record, dimensions=TOKENS), width=300)
    assert TOKENS_TEXT in sized.splitlines()[line]


def test_reports_and_judgements_have_the_sizes() -> None:
    record = replaced(profiles.tied_if(), dimensions=TOKENS)
    assert "at batch\\_size 1 × seq 128" in markdown(record).splitlines()[2]
    judgement = judge_budget([record], Budget(limits={"peak": 1}))
    assert judgement_result_line(judgement).endswith(f" (in first_run), {TOKENS_TEXT}")
