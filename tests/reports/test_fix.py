"""What a fix prints: the answer, why, what to do, the main points, and the program last."""

from collections.abc import Callable
from typing import Any

import pytest

from memdiag.detail import Detail
from memdiag.records.dimension import Dimension
from memdiag.records.fix import REWRITE, Fix, Point
from memdiag.reports.fix.sentences import (
    fix_answer,
    next_step_sentence,
    offered_point_sentences,
    result_conditions,
    saving_reason,
    untried_changes_sentence,
)
from memdiag.units import MIB
from tests.reports import fix_records
from tests.reports.fix_records import CHOSEN, DEFAULTS, POINTS, fix, latency, point, remedy
from tests.reports.rendering import assert_sentences_approved, markdown, printed, replaced, section


def kept(*others: Point, **changes: Any) -> Fix:
    """Return a fix that keeps the defaults, with other points."""
    return fix(DEFAULTS, (DEFAULTS, *others), latencies=(), **changes)


def offered(*names: str, at: tuple[int, int] = (150, 75)) -> Point:
    """Return a point that takes less memory, and whose latency was not compared."""
    return replaced(point(*names, at=at), offered=True)


def chosen(**changes: Any) -> Fix:
    """Return a fix whose chosen point has `changes`, with its ratio as its latency."""
    changed = replaced(CHOSEN, **changes)
    latencies = (latency("size 4", changed.ratio or 0.0, 1.04, 1.2),)
    return fix(changed, (DEFAULTS, changed), latencies=latencies)


def near_budget(*, fits: bool, **changes: Any) -> Fix:
    near = point("arena-off", at=(150, 75), ratio=1.0, fits=fits)
    return fix(near, (DEFAULTS, near), budget={"peak": 160 * MIB}, **changes)


def over_budget(*points: Point, **changes: Any) -> Fix:
    """Return a fix of which no point that was compared fits the budget."""
    over = replaced(DEFAULTS, fits=False)
    budget = {"peak": 120 * MIB}
    return fix(over, (over, *points), budget=budget, latencies=(), **changes)


def unusable(*problems: str) -> tuple[Point, ...]:
    return tuple(
        replaced(point(f"option-{n}", at=(200, 150)), problem=problem)
        for n, problem in enumerate(problems)
    )


SLOW = point("one-thread", at=(150, 75), ratio=2.5, fits=False)
ARENA_SLOW = point("arena-off", at=(150, 75), ratio=2.5, fits=False)
ARENA_1_3 = point("arena-off", at=(199, 149), ratio=1.3)
FAILING = replaced(point("arena-off", at=(150, 75), ratio=1.5), problem="it ends", undecided=True)
NO_SPACE = "no space. Free some."
FEW_PAIRS = replaced(latency("size 4", 0.9, 0.3, 1.9), pairs=4)
OUT_OF_TIME = kept(
    offered("arena-off"),
    point("patterns-off", at=(200, 150)),
    untried=("one-thread",),
    command=("memdiag", "fix", "m.onnx", "--time-limit", "60"),
    ended_by="time_limit",
)
HEIGHT = Dimension(name="h", size=640, role="height", source="chosen", reason="usual")
COMBINATIONS = [offered(name, at=(50, 40)) for name in ("optimization-off", "arena-shrinkage")]
FIXES = {
    "options": fix(),
    "rewritten, with a program": fix_records.verified(program="x"),
    "not written": fix(write_problem=NO_SPACE, program=""),
    "no program": fix(program=""),
    "measured once": fix(measured_once=True),
    "largest of two ratios": fix(
        latencies=(latency("size 1", 1.01, 0.97, 2.07), latency("size 4", 1.02, 0.97, 1.07))
    ),
    "undecided": fix(
        replaced(CHOSEN, undecided=True), (DEFAULTS, replaced(CHOSEN, undecided=True))
    ),
    "slower, by the same kernels": chosen(ratio=1.12, same_kernels=True),
    "slower, but unnoticed": chosen(ratio=1.12, unnoticed=True),
    "as slow as allowed": chosen(ratio=1.05, same_kernels=True),
    "few pairs at one of the sizes": fix(latencies=(FEW_PAIRS,), further_sizes=("size 1",)),
    "many pairs": fix(latencies=(latency("size 4", 0.9, 0.3, 1.9),)),
    "two of three sizes": fix_records.verified(further_sizes=("size 1",)),
    "one smaller point not compared": fix(points=(*POINTS, COMBINATIONS[0])),
    "two smaller points not compared": fix(points=(*POINTS, *COMBINATIONS)),
    "fits the budget": near_budget(fits=True),
    "nearest to the budget": near_budget(fits=False),
    "nearest to the budget, not written": near_budget(fits=False, write_problem=NO_SPACE),
    "over the budget, one not compared": over_budget(
        offered("arena-off", at=(100, 75)), SLOW, ended_by="interrupt"
    ),
    "over the budget": over_budget(SLOW),
    "defaults, too slow": kept(ARENA_SLOW),
    "defaults, rewrite rejected": fix_records.nothing_helps(),
    "defaults, nothing to try": kept(),
    "defaults, saved too little": kept(ARENA_1_3, max_slowdown=1.5),
    "defaults, saved little and slower than allowed": kept(ARENA_1_3, max_slowdown=1.05),
    "defaults, one failed": kept(FAILING, point("one-thread", at=(150, 75), ratio=1.0)),
    "defaults, combination with a slow one": kept(
        ARENA_SLOW,
        point("arena-off", "patterns-off", at=(140, 70), fits=False),
        point("patterns-off", at=(199, 149)),
    ),
    "defaults, most failed": kept(*unusable("it ends", "outputs differ", "it ends")),
    "nothing measured": fix_records.unmeasured(),
    "nothing measured, large inputs": replaced(fix_records.unmeasured(), dimensions=(HEIGHT,)),
    "nothing verified in time": OUT_OF_TIME,
    "nothing verified, sufficient time known": replaced(OUT_OF_TIME, sufficient_time_limit_s=101.0),
    "nothing verified, interrupted": replaced(OUT_OF_TIME, ended_by="interrupt"),
    "a chosen point that is not listed": fix(chosen=("another",)),
}


def test_a_fix_is_told_by_its_answer_the_reason_and_the_next_step() -> None:
    sentences = {
        case: (
            fix_answer(record),
            f"Why: {saving_reason(record)}",
            f"Do: {next_step_sentence(record)}",
            *offered_point_sentences(record),
        )
        for case, record in FIXES.items()
    }
    assert_sentences_approved("fix_sentences", sentences)


def test_a_model_that_was_not_written_is_told_however_little_is_printed() -> None:
    lines = printed(FIXES["not written"], detail=Detail.ANSWER, width=200).splitlines()
    assert "the new model was not written; with it peak 200 MiB" in lines[0]
    assert lines[-1].endswith(f"where the new model can be written: {NO_SPACE}")


def test_memory_of_one_process_is_called_that_and_has_no_spread() -> None:
    once = FIXES["measured once"]
    assert dict(result_conditions(once))["Memory"].startswith("Measured in one process")
    assert "Memory" not in dict(result_conditions(fix()))
    spread = replaced(fix(), before__peak_spread_bytes=9 * MIB)
    assert "±" in markdown(spread)
    assert "±" not in markdown(replaced(spread, measured_once=True))


@pytest.mark.parametrize(("size", "is_told"), [(30 * MIB, True), (15 * MIB, False)])
def test_freed_memory_that_malloc_keeps_can_be_returned_with_the_defaults(
    size: int, is_told: bool
) -> None:
    record = replaced(kept(ARENA_SLOW), before__retained_bytes=size, after=None)
    told = "malloc_trim(0) after the first runs returns" in next_step_sentence(record)
    assert told == is_told


def test_what_is_suggested_has_the_options_of_the_command_that_was_run() -> None:
    limits = "--only arena-off,one-thread --budget steady=80MB --out r --time-limit=60"
    command = tuple(f"memdiag fix m.onnx {limits}".split())
    (first, *_) = offered_point_sentences(kept(offered("arena-off"), command=command))
    assert first.endswith("run memdiag fix m.onnx --budget steady=80MB --only arena-off")
    given = Dimension(name="n", size=4, role="batch", source="given", reason="")
    (first, *_) = offered_point_sentences(kept(offered(REWRITE, "arena-off"), dimensions=(given,)))
    assert first.endswith("run memdiag fix dir/m.onnx --dim n=4 --only rewrites,arena-off")


@pytest.mark.parametrize(
    ("changes", "start"),
    [
        ({"untried": ("arena-off", "onnxslim")}, "2 changes not tried: "),
        (
            {"points": (*POINTS, offered("a")), "remedies": (remedy("b", "w", status="untried"),)},
            "1 combination not compared and 1 change not tried: run it again",
        ),
    ],
)
def test_what_there_was_no_time_for_is_counted_with_how_to_go_on(
    changes: dict[str, Any], start: str
) -> None:
    record = fix(ended_by="time_limit", sufficient_time_limit_s=240.0, **changes)
    assert untried_changes_sentence(record).startswith(start)
    assert "240" in untried_changes_sentence(record)
    assert untried_changes_sentence(fix()) == ""


def test_all_that_a_point_sets_is_named() -> None:
    record = chosen(
        environment={"MALLOC_MMAP_THRESHOLD_": "131072"},
        run_options={"memory.enable_memory_arena_shrinkage": "cpu:0"},
        disabled_optimizers=("MatMulAddFusion",),
        shared_arena=True,
        saved_options={"x": "y"},
    )
    assert dict(result_conditions(record))["Settings"] == (
        "session.disable_prepacking=1, $MALLOC_MMAP_THRESHOLD_=131072 in the environment,"
        " memory.enable_memory_arena_shrinkage=cpu:0 for each run, without the graph"
        " transformer MatMulAddFusion, an arena of the environment, the optimized model, saved"
        " once."
    )


@pytest.mark.parametrize("build", fix_records.ALL, ids=lambda build: build.__name__)
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_it_has_at_most_30_lines_of_80_columns(build: Callable[[], Fix], encoding: str) -> None:
    lines = printed(build(), detail=Detail.USUAL, encoding=encoding).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 30 - 12  # a program has a dozen lines and more


def usual(record: Fix) -> list[str]:
    """Return the lines that are usually printed, with one blank between their words."""
    text = printed(record, detail=Detail.USUAL, width=200)
    return [" ".join(line.split()) for line in text.splitlines()]


def test_the_program_is_printed_whole() -> None:
    program = [f"line_{number} = 1" for number in range(40)]
    assert usual(fix(program="\n".join(program)))[-40:] == program


def test_at_most_four_points_are_in_the_table_the_main_ones_first() -> None:
    lines = usual(fix())
    start = lines.index("changes peak steady latency")
    assert lines[start + 1 : start + 6] == [
        "optimization-off 100 MiB 60 MiB 2.50 × (2.45–2.55) slower",
        "disable-prepacking + mmap-threshold 150 MiB 75 MiB 1.02 × (0.97–1.07) chosen",
        "defaults 200 MiB 150 MiB 1.00 ×",
        "disable-prepacking 150 MiB 90 MiB 1.01 × (0.96–1.06)",
        "With -v: 1 note.",
    ]


def test_points_of_the_table_are_called_what_they_are() -> None:
    compared = [
        point(name, at=(150 + 10 * n, 100), ratio=1.2, on_front=True)
        for n, name in enumerate(("one", "two", "three"))
    ]
    lines = usual(kept(*compared, offered("arena-off")))
    assert "arena-off 150 MiB 75 MiB not compared" in lines
    slow = point("arena-off", at=(100, 75), ratio=1.3, on_front=True)
    lines = usual(kept(replaced(slow, low=0.9, high=2.0)))
    assert "arena-off 100 MiB 75 MiB 1.30 × (0.90–2.00) slower" in lines
    assert any(line.endswith("chosen, undecided") for line in usual(FIXES["undecided"]))


@pytest.mark.parametrize(("status", "is_named"), [("untried", True), ("rejected", False)])
def test_a_rewrite_that_was_not_tried_is_named(status: str, is_named: bool) -> None:
    record = fix(remedies=(remedy("good-one"), remedy("other-one", status=status)))
    text = "other-one was not tried in this time: memdiag fix dir/m.onnx --only other-one"
    assert (text in " ".join(usual(record))) == is_named


def test_everything_that_was_asked_for_by_name_has_a_row() -> None:
    slow = point("one-thread", at=(150, 75), ratio=1.3)
    points = (
        slow,
        point("arena-off", at=(200, 150)),
        offered("mmap-threshold"),
        point("jemalloc", "malloc-arenas", at=(150, 75), ratio=1.3),
        point("mimalloc", at=None, problem="it ends"),
    )
    remedies = (
        remedy("good-one", "w", status="rejected"),
        remedy("no-one", status="refused"),
        remedy("other-one", "w"),
    )
    rewrites, settings = "good-one no-one a-rule tied-weights", "one-thread arena-off options"
    others = "mmap-threshold jemalloc mimalloc patterns-off onnxslim onnxsim"
    record = kept(
        *points,
        remedies=remedies,
        untried=("patterns-off", "save-prepacked"),
        notes=("onnxsim is a name that this note begins with",),
        failed_optimizers={"onnxslim": "wrote no model: why"},
        only=tuple(f"{rewrites} {settings} {others}".split()),
    )
    assert_sentences_approved("fix_asked_for", {"": section(record, "asked for", width=160)})
    assert "asked for" not in printed(kept(slow))
