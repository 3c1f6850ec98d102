"""What a tuning prints: the answer first, the front, and the program last."""

import io

import msgspec
import pytest
from memdiag.records.tuning import REWRITE, Tuning
from memdiag.reports.tuning import REPORT, tuning_summary
from rich.console import Console

from memdiag.records.dimension import Dimension
from tests.reports import fix_records
from tests.reports import tuning_records as tunings


def printed(
    tuning: Tuning, *, quiet: bool = False, every: bool = False, width: int = 80, to: str = "utf-8"
) -> list[str]:
    out = io.TextIOWrapper(io.BytesIO(), encoding=to)
    REPORT.print_summary(tuning, Console(file=out, width=width), quiet=quiet, every=every)
    out.seek(0)
    return out.read().splitlines()


ANSWER = (
    "dir/m.onnx: peak 200 MiB → 150 MiB (0.75 ×), steady 150 MiB → 75 MiB (0.50 ×),"
    " latency 1.02 × (0.97–1.07), by disable-prepacking + mmap-threshold"
)


def test_the_first_line_says_what_was_won_and_quiet_prints_no_more() -> None:
    assert printed(tunings.tuning(), quiet=True, width=200) == [ANSWER]
    assert printed(tunings.tuning(), width=200)[0] == ANSWER


def test_a_model_that_was_not_written_is_told_however_little_is_printed() -> None:
    failed = msgspec.structs.replace(tunings.tuning(), write_problem="no space. Free some.")
    said = "the new model was not written: no space. Free some."
    answer = ANSWER.replace("m.onnx: ", "m.onnx: the new model was not written; with it ")
    assert printed(failed, quiet=True, width=200) == [answer, said]
    assert said in printed(failed, width=200)


def test_memory_of_one_process_is_called_that_in_the_first_line() -> None:
    once = msgspec.structs.replace(tunings.tuning(), measured_once=True)
    (line,) = printed(once, quiet=True, width=200)
    assert line == ANSWER.replace(", latency", ", memory measured once, latency")
    assert once.before is not None
    spread = msgspec.structs.replace(once.before, peak_spread_bytes=9 << 20)
    assert any(
        "±" in each for each in printed(msgspec.structs.replace(tunings.tuning(), before=spread))
    )
    assert not any("±" in each for each in printed(msgspec.structs.replace(once, before=spread)))


def test_where_no_option_is_worth_it_the_defaults_are_the_answer() -> None:
    slow = tunings.point("arena-off", at=(150, 75), ratio=2.5, fits=False)
    points = (tunings.DEFAULTS, slow)
    (line,) = printed(tunings.tuning(tunings.DEFAULTS, points), quiet=True, width=200)
    assert line == (
        "dir/m.onnx: the defaults (peak 200 MiB, steady 150 MiB). No option is worth it: arena-off"
        " saved memory but lost too much time"
    )


def test_what_was_not_compared_in_time_is_named() -> None:
    offered = msgspec.structs.replace(
        tunings.point("arena-off", at=(150, 75), ratio=None), offered=True
    )
    idle = tunings.point("patterns-off", at=(200, 150), ratio=None)
    tuning = tunings.tuning(tunings.DEFAULTS, (tunings.DEFAULTS, offered, idle))
    tuning = msgspec.structs.replace(
        tuning, untried=("one-thread",), command=("memdiag", "tune", "m.onnx", "--time-limit", "60")
    )
    lines = printed(tuning, width=300)
    assert lines[0] == (
        "dir/m.onnx: nothing was verified within the time limit of 60 s. The defaults take peak 200"
        " MiB, steady 150 MiB. The most promising is arena-off (peak 150 MiB, steady 75 MiB), whose"
        " outputs and latency were not compared; run it again with a longer --time-limit, or none"
    )
    assert not any("chosen" in line or "program for" in line for line in lines)
    assert any(line.split()[0] == "arena-off" and "not compared" in line for line in lines if line)
    assert not any(line.startswith("patterns-off") for line in lines)
    assert (
        "not compared: arena-off takes peak 150 MiB, steady 75 MiB. To compare its latency, and"
        " get its program if it is fast enough, run memdiag tune m.onnx --only arena-off"
    ) in lines
    assert (
        "not tried in time: one-thread; to try all, run it again with a longer --time-limit, or"
        " none"
    ) in lines
    known = msgspec.structs.replace(tuning, sufficient_time_limit_s=101.0)
    again = "run it again with --time-limit 110, which is expected to suffice, or without"
    assert f"not tried in time: one-thread; to try all, {again}" in printed(known, width=300)
    untried = msgspec.structs.replace(tuning, points=(tunings.DEFAULTS,))
    assert (
        "Of the options one-thread was not tried in time; run it again"
        in (printed(untried, width=300)[0])
    )


@pytest.mark.parametrize(
    ("count", "clause"),
    [
        (0, ", by disable-prepacking + mmap-threshold"),
        (1, "; 1 combination takes less memory, but there was no time to compare its latency"),
        (2, "; 2 combinations take less memory, but there was no time to compare their latency"),
    ],
)
def test_smaller_points_that_were_not_compared_are_in_the_first_line(
    count: int, clause: str
) -> None:
    offered = [
        msgspec.structs.replace(tunings.point(name, at=(50, 40), ratio=None), offered=True)
        for name in ("optimization-off", "arena-shrinkage")[:count]
    ]
    (first,) = printed(tunings.tuning(points=(*tunings.POINTS, *offered)), quiet=True, width=300)
    assert first.endswith(clause)


def test_what_is_suggested_has_the_options_of_the_command_that_was_run() -> None:
    offered = msgspec.structs.replace(
        tunings.point("arena-off", at=(150, 75), ratio=None), offered=True
    )
    limits = "--only arena-off,one-thread --budget steady=80MB --out r --time-limit=60"
    words = f"memdiag tune m.onnx {limits}"
    tuning = msgspec.structs.replace(
        tunings.tuning(tunings.DEFAULTS, (tunings.DEFAULTS, offered)),
        untried=("one-thread",),
        command=tuple(words.split()),
    )
    text = " ".join(printed(tuning, width=300))
    assert "run memdiag tune m.onnx --budget steady=80MB --only arena-off" in text


def test_each_point_is_counted_once_where_the_defaults_are_kept() -> None:
    failed = tunings.point("arena-off", at=(150, 75), ratio=1.5)
    failed = msgspec.structs.replace(failed, problem="it does not run", undecided=True)
    unconfirmed = msgspec.structs.replace(
        tunings.point("one-thread", at=(150, 75), ratio=1.0), fits=True
    )
    points = (tunings.DEFAULTS, failed, unconfirmed)
    (line,) = printed(tunings.tuning(tunings.DEFAULTS, points), quiet=True, width=300)
    assert line.endswith(
        "No option is worth it: one-thread saved too little memory, arena-off could not be used: it"
        " does not run"
    )


def test_a_command_that_was_just_run_is_not_suggested() -> None:
    offered = msgspec.structs.replace(
        tunings.point("arena-off", at=(150, 75), ratio=None), offered=True
    )
    given = Dimension(name="n", size=4, role="batch", source="given", reason="")
    tuning = msgspec.structs.replace(
        tunings.tuning(tunings.DEFAULTS, (tunings.DEFAULTS, offered)), dimensions=(given,)
    )
    text = " ".join(printed(tuning, width=300))
    assert "get its program if it is fast enough, run it again with a longer --time-limit" in text
    assert "--only" not in text
    further = msgspec.structs.replace(tuning, untried=("one-thread",))
    text = " ".join(printed(further, width=300))
    assert "run memdiag tune dir/m.onnx --dim n=4 --only arena-off" in text


def test_what_was_not_compared_is_continued_by_the_same_command() -> None:
    points = (
        tunings.DEFAULTS,
        *(
            msgspec.structs.replace(tunings.point(*names, at=(150, 75), ratio=None), offered=True)
            for names in ((REWRITE,), (REWRITE, "arena-off"))
        ),
    )
    several = msgspec.structs.replace(tunings.tuning(tunings.DEFAULTS, points), untried=("a",))
    advice = {
        names: printed(
            msgspec.structs.replace(several, points=(tunings.DEFAULTS, points[number])), width=300
        )
        for number, names in ((1, "alone"), (2, "with an option"))
    }
    (alone,) = (line for line in advice["alone"] if line.startswith("not compared: "))
    assert alone.endswith(
        " get its program if it is fast enough, run it again with a longer --time-limit, or none"
    )
    (added,) = (line for line in advice["with an option"] if line.startswith("not compared: "))
    assert added.endswith(
        " get its program if it is fast enough, run memdiag tune dir/m.onnx --only arena-off"
    )
    lines = printed(several, width=300)
    assert len([line for line in lines if line.startswith("not compared: ")]) == 2
    assert (
        "to compare the latency of all of them, run it again with a longer --time-limit, or none;"
        " to compare one, and get its program if it is fast enough, add --only with its names,"
        " separated by commas"
    ) in lines


def test_defaults_that_fit_a_budget_are_no_failed_search() -> None:
    half = tunings.point("arena-off", at=(100, 75), ratio=1.02)
    tuning = tunings.tuning(tunings.DEFAULTS, (tunings.DEFAULTS, half))
    fitting = msgspec.structs.replace(tuning, budget={"peak": 1 << 39})
    first = printed(fitting, width=300)[0]
    assert first.startswith("dir/m.onnx: fits the budget of 512")
    assert first.endswith("No option that was compared is clearly faster")
    assert "No option is worth it" in printed(tuning, width=300)[0]


def test_a_budget_that_nothing_fits_is_in_the_answer_of_the_page() -> None:
    over = msgspec.structs.replace(tunings.DEFAULTS, fits=False)
    slow = tunings.point("arena-off", at=(150, 75), ratio=2.5, fits=False)
    tuning = tunings.tuning(over, (over, slow))
    summary = tuning_summary(msgspec.structs.replace(tuning, budget={"peak": 100 << 20}))
    assert summary.answer == "Nothing fits the budget: the defaults are the nearest that was found."
    assert ("What to do", "Keep the defaults, and raise the budget or --max-slowdown.") in (
        summary.sentences
    )


def test_what_was_compared_but_saved_nothing_did_not_save_memory() -> None:
    """As with `--only`, which compares in any case."""
    idle = tunings.point("one-thread", at=(210, 150), ratio=3.0)
    undecided = tunings.point("patterns-off", at=(200, 150), ratio=1.07)
    undecided = msgspec.structs.replace(undecided, undecided=True)
    tuning = tunings.tuning(tunings.DEFAULTS, (tunings.DEFAULTS, idle, undecided))
    assert printed(tuning, width=300)[0].endswith("worth it: 2 saved too little memory")


@pytest.mark.parametrize(
    ("max_slowdown", "said"),
    [
        (1.05, "arena-off saved memory but lost too much time"),
        (1.5, "arena-off saved too little memory"),
    ],
)
def test_too_slow_is_what_exceeds_the_allowed_slowdown(max_slowdown: float, said: str) -> None:
    slow = tunings.point("arena-off", at=(190, 145), ratio=1.3, fits=False)
    tuning = tunings.tuning(tunings.DEFAULTS, (tunings.DEFAULTS, slow))
    tuning = msgspec.structs.replace(tuning, max_slowdown=max_slowdown)
    assert printed(tuning, width=300)[0].endswith(said)


def test_options_left_out_do_not_hide_that_others_were_compared() -> None:
    slow = tunings.point("arena-off", at=(150, 75), ratio=2.5, fits=False)
    tuning = tunings.tuning(tunings.DEFAULTS, (tunings.DEFAULTS, slow))
    line = printed(msgspec.structs.replace(tuning, untried=("a", "b")), width=300)[0]
    assert line.endswith(
        ". No option that was compared is worth it: arena-off saved memory but lost too much time,"
        " 2 were not tried in time"
    )


def test_an_interruption_is_not_called_a_time_limit() -> None:
    tuning = tunings.tuning(tunings.DEFAULTS, (tunings.DEFAULTS,))
    tuning = msgspec.structs.replace(tuning, untried=("one-thread",), ended_by="interrupt")
    line = printed(tuning, width=300)[0]
    assert "nothing was verified before the interruption. The defaults take" in line
    assert line.endswith("Of the options one-thread was not tried")
    assert "not tried: one-thread; to try all, run it again" in printed(tuning)


def test_one_point_is_singular() -> None:
    tuning = tunings.tuning(tunings.DEFAULTS, (tunings.DEFAULTS,))
    assert any(line.startswith("1 combination measured; ") for line in printed(tuning, width=200))


def test_where_nothing_is_chosen_or_offered_no_program_is_printed() -> None:
    slow = tunings.point("arena-off", at=(150, 75), ratio=2.5, fits=False)
    tuning = tunings.tuning(tunings.DEFAULTS, (tunings.DEFAULTS, slow))
    text = "\n".join(printed(msgspec.structs.replace(tuning, program="")))
    assert "program" not in text
    assert "import" not in text


@pytest.mark.parametrize("undecided", [True, False])
def test_a_chosen_point_that_is_undecided_is_called_so(undecided: bool) -> None:
    chosen = msgspec.structs.replace(tunings.CHOSEN, undecided=undecided)
    lines = printed(tunings.tuning(chosen, (tunings.DEFAULTS, chosen)), width=200)
    assert ("(0.97–1.07), undecided, by" in lines[0]) is undecided
    ends = [line.rstrip().partition("chosen")[2] for line in lines if line.startswith("disable")]
    assert ends == [", undecided" if undecided else ""]


def test_the_first_line_has_the_largest_ratio_with_its_own_interval() -> None:
    (at,) = tunings.tuning().latencies
    wider = msgspec.structs.replace(at, ratio=at.ratio - 0.01, high=at.high + 1)
    several = msgspec.structs.replace(tunings.tuning(), latencies=(wider, at))
    answer = ANSWER.replace("(0.97–1.07)", "(0.97–1.07, the worst of 2 comparisons)")
    assert printed(several, width=200)[0] == answer


def test_a_ratio_that_is_not_that_of_the_latencies_is_explained() -> None:
    plain, disturbed = (
        msgspec.structs.replace(tunings.tuning().latencies[0], before_s=before_s, after_s=0.04)
        for before_s in (0.04, 0.1)
    )
    for at, is_explained in ((plain, False), (disturbed, True)):
        tuning = msgspec.structs.replace(tunings.tuning(), latencies=(at,))
        text = " ".join(" ".join(printed(tuning, width=200)).split())
        assert ("a ratio may differ from after ÷ before" in text) is is_explained


def test_a_point_that_is_too_slow_is_called_slower_whatever_its_interval() -> None:
    slow = tunings.point("arena-off", at=(100, 75), ratio=1.3, on_front=True)
    slow = msgspec.structs.replace(slow, low=0.9, high=2.0)
    lines = printed(tunings.tuning(tunings.DEFAULTS, (tunings.DEFAULTS, slow)), width=200)
    assert any(line.startswith("arena-off") and line.rstrip().endswith("slower") for line in lines)


def test_what_does_not_fit_is_said_first() -> None:
    near = tunings.point("arena-off", at=(150, 75), ratio=1.0, fits=False)
    (line,) = printed(tunings.tuning(near, (tunings.DEFAULTS, near)), quiet=True, width=200)
    assert line.startswith("dir/m.onnx: nothing fits; the nearest is peak 200 MiB → 150 MiB")


@pytest.mark.parametrize(
    ("fits", "start"),
    [
        (True, "fits the budget of 160 MiB peak: peak 200 MiB → 150 MiB"),
        (
            False,
            "nothing fits the budget of 160 MiB peak; the nearest is peak 200 MiB → 150 MiB",
        ),
    ],
)
def test_the_first_line_says_whether_the_budget_is_kept(fits: bool, start: str) -> None:
    near = tunings.point("arena-off", at=(150, 75), ratio=1.0, fits=fits)
    tuning = msgspec.structs.replace(
        tunings.tuning(near, (tunings.DEFAULTS, near)), budget={"peak": 160 << 20}
    )
    (line,) = printed(tuning, quiet=True, width=200)
    assert line.startswith(f"dir/m.onnx: {start}")


def test_what_was_not_compared_may_still_fit_the_budget() -> None:
    over = msgspec.structs.replace(tunings.DEFAULTS, fits=False)
    offered = msgspec.structs.replace(
        tunings.point("arena-off", at=(100, 75), ratio=None, fits=False), offered=True
    )
    slow = tunings.point("one-thread", at=(150, 75), ratio=2.5, fits=False)
    tuning = msgspec.structs.replace(
        tunings.tuning(over, (over, offered, slow)),
        budget={"peak": 120 << 20},
        ended_by="interrupt",
    )
    start = "dir/m.onnx: nothing that was compared fits the budget of 120 MiB"
    assert printed(tuning, quiet=True, width=300)[0].startswith(start)
    early = msgspec.structs.replace(tuning, points=(over, slow))
    assert printed(early, quiet=True, width=300)[0].startswith(start)
    ended = msgspec.structs.replace(early, ended_by="completion")
    assert printed(ended, quiet=True, width=300)[0].startswith(
        "dir/m.onnx: nothing fits the budget"
    )
    summary = tuning_summary(tuning)
    assert summary.answer.startswith("Nothing that was compared fits the budget: ")
    assert ("What to do", "Run it again.") in summary.sentences
    free = msgspec.structs.replace(tuning, budget={}, points=(tunings.DEFAULTS, offered, slow))
    summary = tuning_summary(free)
    assert summary.answer.startswith("No option that was compared is worth it: ")
    assert ("What to do", "Run it again.") in summary.sentences


def test_a_nearest_combination_whose_model_was_not_written_is_told_in_one_sentence() -> None:
    near = tunings.point("onnxslim", at=(150, 75), ratio=1.0, fits=False)
    tuning = msgspec.structs.replace(
        tunings.tuning(near, (tunings.DEFAULTS, near)),
        budget={"peak": 100 << 20},
        write_problem="no space. Free some.",
    )
    line, *_ = printed(tuning, quiet=True, width=300)
    assert "; the nearest, whose model was not written, is peak 200 MiB → 150 MiB" in line


def test_what_contains_a_slow_option_did_not_save_too_little() -> None:
    slow = tunings.point("arena-off", at=(150, 75), ratio=2.5, fits=False)
    more = tunings.point("arena-off", "patterns-off", at=(140, 70), ratio=None, fits=False)
    little = tunings.point("patterns-off", at=(199, 149), ratio=None)
    points = (tunings.DEFAULTS, slow, more, little)
    (line,) = printed(tunings.tuning(tunings.DEFAULTS, points), quiet=True, width=400)
    assert line.endswith(
        "No option is worth it: patterns-off saved too little memory, arena-off saved memory but"
        " lost too much time, arena-off + patterns-off contained options that lost too much time"
    )


def test_the_table_holds_the_front_and_the_defaults() -> None:
    lines = printed(tunings.tuning(), width=100)
    start = next(i for i, line in enumerate(lines) if line.startswith("options"))
    assert [" ".join(line.split()) for line in lines[start : start + 5]] == [
        "options peak steady latency",
        "optimization-off 100 MiB 60 MiB 2.50 × (2.45–2.55) slower",
        "disable-prepacking + mmap-threshold 150 MiB 75 MiB 1.02 × (0.97–1.07) chosen",
        "defaults 200 MiB 150 MiB 1.00 ×",
        "",
    ]
    counts = "6 combinations measured, 3 listed here (all with --all); 20 sessions were started in"
    assert any(line.startswith(counts) for line in lines)
    assert "note: a note" in lines
    assert lines[-1] == "import onnxruntime as ort"


def test_all_points_are_shown_on_demand_and_why_some_cannot_be_used() -> None:
    lines = printed(tunings.tuning(), every=True, width=100)
    assert any(line.startswith("mmap-threshold") and "not compared" in line for line in lines)
    assert any(line.startswith("save-prepacked") and "cannot be used" in line for line in lines)
    reason = next(i for i, line in enumerate(lines) if line.startswith("save-prepacked: it does"))
    text = "".join(lines[reason : reason + 5])
    assert "\\x1b[31mxxx" in text
    assert 100 < text.count("x") < 200


def test_remedies_are_told_where_the_model_was_rewritten() -> None:
    rewritten = tunings.point("rewrite", at=(150, 75))
    points = (tunings.DEFAULTS, rewritten)
    fix = fix_records.verified(output="new.onnx", output_files=("new.onnx",), kept_files=())
    lines = printed(tunings.tuning(rewritten, points, fix=fix))
    assert any(line.split() == ["applied", "good-one", "because"] for line in lines)
    assert "wrote new.onnx" in lines
    # What is not a part of the result is not listed as applied.
    others = printed(tunings.tuning(fix=fix))
    assert not any(line.startswith(("applied", "wrote")) for line in others)


def test_what_was_rejected_is_told_beside_the_options() -> None:
    rejected = fix_records.verified(output=None, output_files=(), kept_files=())
    lines = printed(tunings.tuning(fix=rejected))
    assert any("good-one" in line.split() for line in lines)


def test_the_files_of_an_optimizers_model_are_named() -> None:
    tuning = msgspec.structs.replace(
        tunings.tuning(fix=fix_records.verified()), output_files=("m.onnx", "m.onnx.data")
    )
    lines = printed(tuning)
    assert "wrote m.onnx, m.onnx.data" in lines
    assert not any("can load it" in line for line in lines)


def test_several_sessions_are_told() -> None:
    text = "\n".join(printed(tunings.tuning(sessions=3), width=120))
    assert "3 sessions a process" in text


@pytest.mark.parametrize("to", ["utf-8", "ascii"])
def test_it_fits_a_terminal_of_80_columns(to: str) -> None:
    assert max(map(len, printed(tunings.tuning(), to=to))) <= 80


def test_why_most_options_could_not_be_used_is_said() -> None:
    problems = ("it does not run", "outputs differ", "it does not run")
    unusable = [
        msgspec.structs.replace(
            tunings.point(f"option-{index}", at=(200, 150), ratio=None), problem=problem
        )
        for index, problem in enumerate(problems)
    ]
    tuning = tunings.tuning(tunings.DEFAULTS, (tunings.DEFAULTS, *unusable))
    assert "3 could not be used, most often: it does not run" in printed(tuning, width=400)[0]
