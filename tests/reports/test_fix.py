"""What a fix prints: the answer, why, what to do, the main points, and the program last."""

import io
from collections.abc import Callable

import msgspec
import pytest
from rich.console import Console

from memdiag.detail import Detail
from memdiag.records.dimension import Dimension
from memdiag.records.fix import REWRITE, Fix, Point
from memdiag.reports.fix import REPORT
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
from tests.reports.fix_records import CHOSEN, DEFAULTS, POINTS, point

ANSWER = (
    "dir/m.onnx: peak 200 MiB → 150 MiB (0.75 ×), steady 150 MiB → 75 MiB (0.50 ×),"
    " latency 1.02 × (0.97–1.07)."
)


def printed(
    fix: Fix, *, detail: Detail = Detail.USUAL, width: int = 80, to: str = "utf-8"
) -> list[str]:
    out = io.TextIOWrapper(io.BytesIO(), encoding=to)
    REPORT.print_summary(fix, Console(file=out, width=width), detail=detail)
    out.seek(0)
    return out.read().splitlines()


def kept(*others: Point, **changes: object) -> Fix:
    """Return a fix that keeps the defaults, with other points."""
    return fix_records.fix(DEFAULTS, (DEFAULTS, *others), latencies=(), **changes)


def offered(*names: str, at: tuple[int, int] = (150, 75)) -> Point:
    return msgspec.structs.replace(point(*names, at=at), offered=True)


@pytest.mark.parametrize(("status", "is_named"), [("untried", True), ("rejected", False)])
def test_the_program_and_what_was_not_tried_are_on_the_terminal(
    status: str, *, is_named: bool
) -> None:
    record = fix_records.fix(
        remedies=(
            fix_records.remedy("good-one"),
            fix_records.remedy("other-one", status=status),
        ),
        program="\n".join(f"line_{number} = 1" for number in range(40)),
    )
    text = "\n".join(printed(record))
    assert "line_0 = 1\n" in text
    assert "line_39 = 1" in text
    named = "other-one was not tried in this time: memdiag fix dir/m.onnx --only other-one"
    assert (named in " ".join(text.split())) == is_named


def test_the_answer_comes_first_then_why_and_what_to_do_and_quiet_prints_no_more() -> None:
    lines = printed(fix_records.fix(), width=200)
    assert lines[:4] == [
        ANSWER,
        "",
        "Why        disable-prepacking + mmap-threshold; outputs equal, bit by bit.",
        "Do         Create the session as the program below does.",
    ]
    assert printed(fix_records.fix(), detail=Detail.ANSWER, width=200) == [lines[0], *lines[2:4]]
    assert lines[-1] == "import onnxruntime as ort"


@pytest.mark.parametrize("build", fix_records.ALL, ids=lambda build: build.__name__)
@pytest.mark.parametrize("to", ["utf-8", "ascii"])
def test_it_has_at_most_30_lines_of_80_columns(build: Callable[[], Fix], to: str) -> None:
    lines = printed(build(), to=to)
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 30 - 12  # a program has a dozen lines and more


def test_the_main_points_are_in_the_table_at_most_four() -> None:
    lines = printed(fix_records.fix(), width=100)
    start = next(i for i, line in enumerate(lines) if line.startswith("changes"))
    assert [" ".join(line.split()) for line in lines[start : start + 6]] == [
        "changes peak steady latency",
        "optimization-off 100 MiB 60 MiB 2.50 × (2.45–2.55) slower",
        "disable-prepacking + mmap-threshold 150 MiB 75 MiB 1.02 × (0.97–1.07) chosen",
        "defaults 200 MiB 150 MiB 1.00 ×",
        "disable-prepacking 150 MiB 90 MiB 1.01 × (0.96–1.06)",
        "With -v: 1 note.",
    ]


def test_what_was_not_compared_is_in_the_table_before_others_that_were() -> None:
    points = (
        *(
            point(name, at=(150 + 10 * n, 100), ratio=1.2, on_front=True)
            for n, name in enumerate(("one", "two", "three"))
        ),
        offered("arena-off"),
    )
    lines = printed(kept(*points), width=100)
    assert any("arena-off" in line and "not compared" in line for line in lines)


def test_of_a_rewritten_model_the_rewrites_and_the_files_are_named() -> None:
    fix = fix_records.verified()
    assert saving_reason(fix).startswith("good-one; outputs differ by at most 2.4e-06")
    assert next_step_sentence(fix_records.verified(program="x")).endswith(
        "does. Keep dir/m.onnx: 500 MiB of the weights are still there."
    )
    assert any("wrote dir/m.fixed.onnx" in line for line in printed(fix))
    # What is not a part of the result is not named as written.
    assert not any("wrote" in line for line in printed(fix_records.fix()))


def test_a_model_that_was_not_written_is_told_however_little_is_printed() -> None:
    failed = fix_records.fix(write_problem="no space. Free some.", program="")
    lines = printed(failed, detail=Detail.ANSWER, width=200)
    assert lines[0] == ANSWER.replace("m.onnx: ", "m.onnx: the new model was not written; with it ")
    assert lines[-1].endswith("where the new model can be written: no space. Free some.")


def test_memory_of_one_process_is_called_that() -> None:
    once = fix_records.fix(measured_once=True)
    assert fix_answer(once) == ANSWER.replace(", latency", ", memory measured once, latency")
    assert dict(result_conditions(once))["Memory"].startswith("Measured in one process")
    assert "Memory" not in dict(result_conditions(fix_records.fix()))
    assert once.before is not None
    spread = msgspec.structs.replace(once.before, peak_spread_bytes=9 * MIB)
    assert "±" in REPORT.markdown(fix_records.fix(before=spread))
    assert "±" not in REPORT.markdown(fix_records.fix(before=spread, measured_once=True))


def test_where_nothing_is_worth_it_the_defaults_are_the_answer() -> None:
    fix = kept(point("arena-off", at=(150, 75), ratio=2.5, fits=False))
    assert fix_answer(fix) == (
        "dir/m.onnx: the defaults are the best that was found (peak 200 MiB, steady 150 MiB)."
    )
    assert saving_reason(fix) == "arena-off saved memory but lost too much time."
    assert next_step_sentence(fix) == "Keep the defaults."
    assert fix.before is not None
    for size, is_told in ((fix.before.steady_bytes // 5, True), (15 * MIB, False)):
        retaining = msgspec.structs.replace(fix.before, retained_bytes=size)
        step = next_step_sentence(msgspec.structs.replace(fix, before=retaining, after=None))
        assert ("malloc_trim(0) after the first runs returns" in step) == is_told
    assert saving_reason(fix_records.nothing_helps()) == "slow-one was not kept (because)."
    assert saving_reason(kept()) == "There is nothing to try."


def test_a_search_that_measured_nothing_says_what_is_left() -> None:
    fix = fix_records.unmeasured()
    assert fix_answer(fix) == (
        "dir/m.onnx: nothing was verified, since the time limit of 60 s passed before the original"
        " itself was measured."
    )
    assert saving_reason(fix) == "2 were not tried in time."
    assert next_step_sentence(fix) == "Run it again with a longer --time-limit, or none."
    image = (Dimension(name="h", size=640, role="height", source="chosen", reason="usual"),)
    fix = msgspec.structs.replace(fix, dimensions=image)
    assert fix_answer(fix).endswith("itself was measured, at h 640.")
    assert next_step_sentence(fix).endswith(
        " Smaller inputs take less time; other sizes: --dim h=N."
    )


def test_what_was_not_compared_in_time_is_named() -> None:
    fix = kept(
        offered("arena-off"),
        point("patterns-off", at=(200, 150)),
        untried=("one-thread",),
        command=("memdiag", "fix", "m.onnx", "--time-limit", "60"),
        ended_by="time_limit",
    )
    assert fix_answer(fix) == (
        "dir/m.onnx: nothing was verified within the time limit of 60 s. The defaults take peak 200"
        " MiB, steady 150 MiB."
    )
    assert next_step_sentence(fix) == (
        "Run it again with a longer --time-limit, or none. The most promising is arena-off (peak"
        " 150 MiB, steady 75 MiB), whose outputs and latency were not compared."
    )
    assert [*offered_point_sentences(fix)] == [
        "not compared: arena-off takes peak 150 MiB, steady 75 MiB. To compare its latency, and"
        " get its program if it is fast enough, run memdiag fix m.onnx --only arena-off",
        "not tried in time: one-thread; to try all, run it again with a longer --time-limit, or"
        " none",
    ]
    assert "import" not in " ".join(printed(fix))
    known = msgspec.structs.replace(fix, sufficient_time_limit_s=101.0)
    assert "with --time-limit 110, which is expected to suffice" in next_step_sentence(known)
    interrupted = msgspec.structs.replace(fix, ended_by="interrupt")
    assert "nothing was verified before the interruption" in fix_answer(interrupted)
    assert next_step_sentence(interrupted).startswith("Run it again. ")


@pytest.mark.parametrize(
    ("count", "clause"),
    [
        (0, "equal, bit by bit."),
        (1, "; 1 combination takes less memory, but there was no time to compare its latency."),
        (2, "; 2 combinations take less memory, but there was no time to compare their latency."),
    ],
)
def test_smaller_points_that_were_not_compared_are_told(count: int, clause: str) -> None:
    names = ("optimization-off", "arena-shrinkage")[:count]
    points = (*POINTS, *(offered(name, at=(50, 40)) for name in names))
    assert saving_reason(fix_records.fix(points=points)).endswith(clause)


def test_what_is_suggested_has_the_options_of_the_command_that_was_run() -> None:
    limits = "--only arena-off,one-thread --budget steady=80MB --out r --time-limit=60"
    words = f"memdiag fix m.onnx {limits}".split()
    (first, *_) = offered_point_sentences(kept(offered("arena-off"), command=tuple(words)))
    assert first.endswith("run memdiag fix m.onnx --budget steady=80MB --only arena-off")
    given = Dimension(name="n", size=4, role="batch", source="given", reason="")
    (first, *_) = offered_point_sentences(kept(offered(REWRITE, "arena-off"), dimensions=(given,)))
    assert first.endswith("run memdiag fix dir/m.onnx --dim n=4 --only rewrites,arena-off")


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        (
            (
                msgspec.structs.replace(
                    point("arena-off", at=(150, 75), ratio=1.5),
                    problem="it does not run",
                    undecided=True,
                ),
                point("one-thread", at=(150, 75), ratio=1.0),
            ),
            "one-thread saved too little memory, arena-off could not be used: it does not run.",
        ),
        (
            (
                point("arena-off", at=(150, 75), ratio=2.5, fits=False),
                point("arena-off", "patterns-off", at=(140, 70), fits=False),
                point("patterns-off", at=(199, 149)),
            ),
            "patterns-off saved too little memory, arena-off saved memory but lost too much time,"
            " arena-off + patterns-off contained options that lost too much time.",
        ),
        (
            tuple(
                msgspec.structs.replace(point(f"option-{n}", at=(200, 150)), problem=problem)
                for n, problem in enumerate(("it ends", "outputs differ", "it ends"))
            ),
            "3 could not be used, most often: it ends.",
        ),
    ],
    ids=["unusable", "slow", "most often"],
)
def test_each_point_is_counted_once_where_the_defaults_are_kept(
    points: tuple[Point, ...], expected: str
) -> None:
    assert saving_reason(kept(*points)) == expected


@pytest.mark.parametrize(
    ("max_slowdown", "expected"),
    [(1.05, "lost too much time."), (1.5, "arena-off saved too little memory.")],
)
def test_too_slow_is_what_exceeds_the_allowed_slowdown(max_slowdown: float, expected: str) -> None:
    slow = point("arena-off", at=(199, 149), ratio=1.3)
    assert saving_reason(kept(slow, max_slowdown=max_slowdown)).endswith(expected)


@pytest.mark.parametrize("undecided", [True, False])
def test_a_chosen_point_that_is_undecided_is_called_so(undecided: bool) -> None:
    chosen = msgspec.structs.replace(CHOSEN, undecided=undecided)
    fix = fix_records.fix(chosen, (DEFAULTS, chosen))
    doubt = "(0.97–1.07): these runs don't tell it from the allowed 1.05 ×, so it is undecided."
    assert fix_answer(fix).endswith(doubt) is undecided
    ends = [line.rstrip().partition("chosen")[2] for line in printed(fix, width=200)]
    assert (", undecided" in ends) is undecided


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"same_kernels": True},
            ": these runs don't tell it from the allowed 1.05 ×; the same kernels run",
        ),
        ({"unnoticed": True}, ": too little longer to notice"),
        ({"same_kernels": True, "ratio": 1.05}, ""),
    ],
)
def test_a_chosen_point_whose_ratio_exceeds_the_allowed_one_says_why(
    changes: dict[str, object], expected: str
) -> None:
    chosen = msgspec.structs.replace(CHOSEN, **{"ratio": 1.12, **changes})
    latencies = (fix_records.latency("size 4", chosen.ratio or 0.0, 1.04, 1.2),)
    fix = fix_records.fix(chosen, (DEFAULTS, chosen), latencies=latencies)
    assert fix_answer(fix).endswith(f"(1.04–1.20){expected}.")


def test_everything_that_was_asked_for_by_name_has_a_row() -> None:
    slow = point("one-thread", at=(150, 75), ratio=1.3)
    fix = kept(
        slow,
        point("arena-off", at=(200, 150)),
        offered("mmap-threshold"),
        point("jemalloc", "malloc-arenas", at=(150, 75), ratio=1.3),
        point("mimalloc", at=None, problem="it ends"),
        remedies=(
            fix_records.remedy("good-one", "w", status="rejected"),
            fix_records.remedy("no-one", status="refused"),
            fix_records.remedy("other-one", "w"),
        ),
        untried=("patterns-off", "save-prepacked"),
        notes=("onnxsim is a name that this note begins with",),
        failed_optimizers={"onnxslim": "wrote no model: why"},
        only=(
            *("good-one", "no-one", "one-thread", "arena-off", "mmap-threshold", "jemalloc"),
            *(
                "mimalloc",
                "patterns-off",
                "options",
                "a-rule",
                "onnxslim",
                "onnxsim",
                "tied-weights",
            ),
        ),
    )
    lines = [" ".join(line.split()) for line in printed(fix, width=160)]
    start = lines.index("asked for result")
    end = next(i for i in range(start, len(lines)) if lines[i].startswith("With -v"))
    assert lines[start + 1 : end] == [
        "good-one not kept: because",
        "no-one not possible: because",
        "one-thread slower: peak 200 MiB → 150 MiB, steady 150 MiB → 75 MiB,"
        " latency 1.30 × (1.25–1.35)",
        "arena-off not kept (peak 200 MiB → 200 MiB, steady 150 MiB → 150 MiB)",
        "mmap-threshold saves memory, but its latency was not compared"
        " (peak 200 MiB → 150 MiB, steady 150 MiB → 75 MiB)",
        "jemalloc measured together with others only",
        "mimalloc cannot be used: it ends",
        "patterns-off not tried: the search ended before",
        "a-rule good-one not kept: because",
        "a-rule no-one not possible: because",
        "a-rule other-one verified: because",
        "onnxslim wrote no model: why",
        "onnxsim nothing to try in this model",
        "tied-weights nothing to try in this model",
    ]
    assert "asked for" not in " ".join(printed(kept(slow)))


def test_the_answer_has_the_largest_ratio_with_its_own_interval() -> None:
    (at,) = fix_records.fix().latencies
    wider = msgspec.structs.replace(at, ratio=at.ratio - 0.01, high=at.high + 1)
    assert fix_answer(fix_records.fix(latencies=(wider, at))) == ANSWER.replace(
        "(0.97–1.07)", "(0.97–1.07, the worst of 2 comparisons)"
    )


def test_a_point_that_is_too_slow_is_called_slower_whatever_its_interval() -> None:
    slow = point("arena-off", at=(100, 75), ratio=1.3, on_front=True)
    slow = msgspec.structs.replace(slow, low=0.9, high=2.0)
    lines = printed(kept(slow), width=200)
    assert any(line.startswith("arena-off") and line.rstrip().endswith("slower") for line in lines)


@pytest.mark.parametrize(
    ("fits", "start"),
    [
        (True, "fits the budget of 160 MiB peak: peak 200 MiB → 150 MiB"),
        (False, "nothing fits the budget of 160 MiB peak; the nearest is peak 200 MiB → 150 MiB"),
    ],
)
def test_the_answer_says_whether_the_budget_is_kept(fits: bool, start: str) -> None:
    near = point("arena-off", at=(150, 75), ratio=1.0, fits=fits)
    fix = fix_records.fix(near, (DEFAULTS, near), budget={"peak": 160 * MIB})
    assert fix_answer(fix).startswith(f"dir/m.onnx: {start}")
    unwritten = msgspec.structs.replace(fix, write_problem="no space. Free some.")
    if not fits:
        assert "; the nearest, whose model was not written, is peak" in fix_answer(unwritten)


def test_what_was_not_compared_may_still_fit_the_budget() -> None:
    over = msgspec.structs.replace(DEFAULTS, fits=False)
    slow = point("one-thread", at=(150, 75), ratio=2.5, fits=False)
    points = (over, offered("arena-off", at=(100, 75)), slow)
    fix = fix_records.fix(
        over, points, budget={"peak": 120 * MIB}, ended_by="interrupt", latencies=()
    )
    assert fix_answer(fix).startswith(
        "dir/m.onnx: nothing that was compared fits the budget of 120"
    )
    ended = msgspec.structs.replace(fix, points=(over, slow), ended_by="completion")
    assert fix_answer(ended).startswith("dir/m.onnx: nothing fits the budget")
    assert next_step_sentence(ended) == "Keep the defaults, and raise the budget or --max-slowdown."


def test_all_that_a_point_sets_is_named() -> None:
    chosen = msgspec.structs.replace(
        CHOSEN,
        environment={"MALLOC_MMAP_THRESHOLD_": "131072"},
        run_options={"memory.enable_memory_arena_shrinkage": "cpu:0"},
        disabled_optimizers=("MatMulAddFusion",),
        shared_arena=True,
        saved_options={"x": "y"},
    )
    assert dict(result_conditions(fix_records.fix(chosen, (DEFAULTS, chosen))))["Settings"] == (
        "session.disable_prepacking=1, $MALLOC_MMAP_THRESHOLD_=131072 in the environment,"
        " memory.enable_memory_arena_shrinkage=cpu:0 for each run, without the graph"
        " transformer MatMulAddFusion, an arena of the environment, the optimized model, saved"
        " once."
    )


def test_a_point_that_is_not_among_the_points_is_no_crash() -> None:
    assert "m.onnx" in fix_answer(fix_records.fix(chosen=("another",)))


def test_where_latency_was_compared_at_one_of_several_sizes_it_is_said() -> None:
    few = msgspec.structs.replace(fix_records.latency("size 4", 0.9, 0.3, 1.9), pairs=4)
    fix = fix_records.fix(latencies=(few,), further_sizes=("size 1",))
    assert (
        "latency 0.90 × (0.30–1.90, 4 pairs of runs) with size 4 only: these runs don't tell it"
        " from the allowed 1.05 ×"
    ) in fix_answer(fix)
    many = fix_records.fix(latencies=(fix_records.latency("size 4", 0.9, 0.3, 1.9),))
    assert "latency 0.90 × (0.30–1.90)," not in fix_answer(many)
    assert "latency 0.90 × (0.30–1.90)" in fix_answer(many)
    assert " only" not in fix_answer(fix_records.verified(further_sizes=("size 1",)))


def test_what_there_was_no_time_for_is_counted_beside_a_result_with_how_to_go_on() -> None:
    fix = fix_records.fix(
        untried=("arena-off", "onnxslim"), ended_by="time_limit", sufficient_time_limit_s=240.0
    )
    left = untried_changes_sentence(fix)
    assert left.startswith("2 changes not tried: ")
    assert "240" in left or "4 min" in left
    assert untried_changes_sentence(fix_records.fix()) == ""


def test_combinations_that_were_not_compared_come_before_rewrites_that_were_not_tried() -> None:
    offered = msgspec.structs.replace(point("mmap-threshold", at=(90, 60)), offered=True)
    untried = fix_records.remedy("late-one", "w", status="untried")
    fix = fix_records.fix(points=(*POINTS, offered), remedies=(untried,), ended_by="time_limit")
    left = untried_changes_sentence(fix)
    assert left.startswith("1 combination not compared and 1 change not tried: run it again")
