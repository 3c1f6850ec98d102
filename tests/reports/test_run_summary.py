"""The summary, the tables and the Markdown of recorded programs."""

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console

from memdiag.detail import Detail
from memdiag.growth.wording import CALIBRATORS_HAVE
from memdiag.records import codec
from memdiag.records.attribution import SearchedModel
from memdiag.records.profile import Samples
from memdiag.records.run import (
    HighWaterRun,
    InheritedSession,
    PhaseTime,
    ProcessXray,
    ProgramFinding,
    ProgramRun,
    ProgramSession,
)
from memdiag.reports.run import REPORT
from memdiag.reports.run.headline import run_headline, session_remarks
from memdiag.reports.run.names import (
    command_text,
    model_names,
    number_ranges_text,
    shapes_text,
)
from memdiag.reports.run.owners import process_owners, program_tiles
from memdiag.reports.run.peaks import (
    activities_text,
    largest_session,
    session_activities,
    session_peak_mark,
    session_peak_phase,
    session_peak_text,
    session_rise_text,
)
from memdiag.reports.run.picture import draw
from memdiag.reports.run.savings import sentences_after_findings
from memdiag.reports.run.sessions import (
    arena_text,
    peak_and_rise_sentences,
    session_phase_table,
    session_table,
)
from memdiag.reports.run.timeline import packed_rows, run_timeline
from tests.reports import runs
from tests.reports.attributions import attribution, copy
from tests.reports.runs import MIB

WRITTEN = (Path("memdiag-run-1/run.json"), Path("memdiag-run-1/trace.json"))


def shown(run: ProgramRun, *, width: int = 80, detail: Detail = Detail.ALL) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    REPORT.print_summary(
        run, console, written=() if detail is Detail.ANSWER else WRITTEN, detail=detail
    )
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("build", runs.ALL, ids=lambda build: build.__name__)
@pytest.mark.parametrize("width", [60, 80, 140])
def test_the_summary_fits_the_terminal(build: Callable[[], ProgramRun], width: int) -> None:
    assert max(map(cell_len, shown(build(), width=width).splitlines())) <= width


@pytest.mark.parametrize("width", [60, 80])
def test_processes_without_sessions_are_listed_with_their_peaks(width: int) -> None:
    long = ("python", "-c", "import time; " * 20)
    processes = (runs.process(7, 20, command=long), runs.process(8, 60, 50, command=("server",)))
    text = shown(runs.run(processes=processes, is_watched=True), width=width)
    assert max(map(cell_len, text.splitlines())) <= width
    rows = [line.split() for line in text.splitlines() if line.strip()[:2] in ("7 ", "8 ")]
    assert rows[0] == ["8", "server", "60", "MiB", "45", "MiB"]
    assert rows[1][:2] == ["7", "python"]


def test_the_answer_is_the_first_line() -> None:
    text = words(shown(runs.server(), detail=Detail.ANSWER))
    assert text.startswith(
        "Session 4 (a.onnx) takes most: +210 MiB in its creation and first run. The processes took"
        " at most 310 MiB together (at 4.0 s), 280 MiB if shared pages are counted once (read at"
        " 4.0 s). 3 processes, 5 sessions of 4 models in 10 s."
    )
    assert "counts pages that processes share for each of them" in text
    one = run_headline(runs.run(runs.session(1)))
    assert one.first == (
        "Session 1 (a.onnx) takes +60 MiB in its creation and first run; the program's peak is"
        " 310 MiB, at 4.0 s, while session 1 was in use. 1 process, 1 session of 1 model in"
        " 10 s."
    )
    assert one.second == ""


def _with_one_shape(number: int, **changes: int) -> ProgramSession:
    made = runs.session(number, **changes)
    return msgspec.structs.replace(made, shapes=made.shapes[1:])


@pytest.mark.parametrize(
    ("run", "answer"),
    [
        (
            runs.run(_with_one_shape(1, peak=310), runs.session(9), peak_s=2.15),
            "Session 1 (a.onnx) takes most: +210 MiB in its creation and first run; the program's"
            " peak is 310 MiB, in the first run of session 1 (x: 1×3×640×640). ",
        ),
        (
            runs.run(_with_one_shape(1, peak=310, run_threads=20), runs.session(9), peak_s=2.15),
            "Session 1 (a.onnx) takes most: +210 MiB in its creation and first run, with up to 20"
            " runs at once; the program's peak is 310 MiB, in the first run of session 1. ",
        ),
        (
            runs.run(runs.session(1, peak=310), runs.session(9), peak_s=1.95),
            "Session 1 (a.onnx) takes most: +210 MiB in its creation and first run; the program's"
            " peak is 310 MiB, in prepack of session 1. ",
        ),
        (
            runs.run(runs.session(1, peak=310), runs.session(9), peak_s=9.95),
            "Session 1 (a.onnx) takes most: +210 MiB in its creation and first run; the program's"
            " peak is 310 MiB, in prepack of session 9 (a.onnx). ",
        ),
        (
            runs.run(runs.session(1, shared_with=(2,)), runs.session(2, shared_with=(1,))),
            "Sessions 1 and 2, created or run at the same time, take most: +60 MiB in the",
        ),
        (
            runs.run(runs.session(1, peak=190), runs.session(2), runs.session(3)),
            "Session 1 (a.onnx) and 2 more sessions take most: +60 MiB to +90 MiB each in their"
            " creation and first run; ",
        ),
        (
            runs.run(runs.session(1, peak=161), runs.session(2), runs.session(3)),
            "Session 1 (a.onnx) and 2 more sessions take most: about +61 MiB each in their creation"
            " and first run; ",
        ),
        (
            runs.run(runs.session(1), runs.session(2, peak=310, shared_with=(1, 3))),
            "Sessions 1–3, created or run at the same time, take most: +210 MiB in the creation and"
            " first run of session 2; ",
        ),
        (
            runs.run(runs.session(1, run_count=0)),
            "Session 1 (a.onnx) takes +60 MiB in its creation; ",
        ),
        (
            runs.run(runs.failed(1)),
            "Session 1 (a.onnx) takes +30 MiB in its creation, which failed; ",
        ),
        (runs.run(), "The program's peak is 310 MiB, at 4.0 s. 1 process, 0 sessions in 10 s."),
        (
            runs.watched(earlier_peak=310),
            "Largest memory during the recording: 310 MiB (sampled, at 4.0 s). It rose by 200 MiB"
            " in 8.0 s, not steadily. Its owners",
        ),
        (
            runs.watched(earlier_peak=334),
            "Largest memory during the recording: 310 MiB (sampled, at 4.0 s); the process's"
            " peak before was 334 MiB. It rose by 200 MiB in 8.0 s, not steadily. Its owners are",
        ),
        (
            msgspec.structs.replace(runs.watched(), peak_rss_bytes=320 * MIB),
            "Largest memory during the recording: 320 MiB (exact). It rose by 200 MiB in 8.0 s,",
        ),
        (
            runs.run(processes=runs.server().processes, is_watched=True),
            "The processes took at most 310 MiB together during the recording (sampled, at 4.0 s),"
            " 280 MiB if",
        ),
        (runs.empty(), "0 processes, 0 sessions in 20 ms."),
    ],
)
def test_the_answer_names_the_session_that_takes_most(run: ProgramRun, answer: str) -> None:
    assert run_headline(run).first.startswith(answer)


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (0, ""),
        (None, ""),
        (3, "The program ended with exit code 3."),
        (-9, "The program was ended by SIGKILL."),
        (-99, "The program was ended by signal 99."),
    ],
)
def test_a_bad_end_is_part_of_the_answer(code: int | None, sentence: str) -> None:
    answer = run_headline(runs.run(runs.session(1), exit_code=code))
    assert answer.second == sentence
    assert answer.is_success == (sentence == "")


def test_what_happened_at_the_peak_is_named() -> None:
    first = runs.session(1, created_s=1.0)
    other = runs.session(2, created_s=1.2, path="/b.onnx")
    peak = HighWaterRun(
        session=1, t_s=6.0, peak_rss_bytes=MIB, shapes={"x": (1, 3, 640, 640)}, latency_s=0.5
    )
    run = runs.run(first, other, peaks=(peak,))
    assert activities_text(run, 1.1) == "parse of session 1 (a.onnx)"
    assert (
        activities_text(run, 1.35)
        == "optimize of session 1 (a.onnx) and parse of session 2 (b.onnx)"
    )
    assert activities_text(run, 5.5) == "a run of session 1 (a.onnx) with x: 1×3×640×640"
    assert activities_text(run, 5.0) == ""  # before the run, which lasted 0.9 s
    assert activities_text(run, 9.0) == ""


@pytest.mark.parametrize(
    ("first_run", "rise", "peak", "phase"),
    [
        pytest.param((150, 155), "+60 MiB", "160 MiB", "constant_fold", id="run at once"),
        pytest.param((350, 355), "+60 MiB", "160 MiB", "constant_fold", id="run after others"),
        pytest.param((350, 450), "+150 MiB", "450 MiB", "first_run", id="its run takes more"),
    ],
)
def test_memory_that_others_took_before_the_first_run_is_not_the_sessions(
    first_run: tuple[int, int], rise: str, peak: str, phase: str
) -> None:
    session = runs.session(1, peak_phase="first_run")
    start, highest = first_run
    phases = (*session.phases[:-1], runs.phase("first_run", start, highest))
    session = msgspec.structs.replace(session, phases=phases)
    assert (
        session_rise_text(session),
        session_peak_text(session),
        session_peak_phase(session),
    ) == (rise, peak, phase)


def test_a_run_that_took_more_than_any_creation_is_the_answer() -> None:
    run = runs.server()
    (first, *_) = run.peaks
    large = msgspec.structs.replace(first, t_s=8.0, peak_rss_bytes=900 * MIB)
    answer = run_headline(msgspec.structs.replace(run, peaks=(*run.peaks, large))).first
    assert answer.startswith("A run of session 1 (a.onnx) with x: 1×3×640×640 takes most: +6")
    assert " in process 100. The processes took" in answer


@pytest.mark.parametrize(
    ("peak", "text"),
    [
        pytest.param(
            900, "Process 101, a fork of 100, takes most: 900 MiB at its peak.", id="large"
        ),
        pytest.param(210, "Session 1 (a.onnx) takes +60 MiB in its creation", id="as its parent"),
    ],
)
def test_a_fork_that_is_much_larger_than_its_parent_is_the_answer(peak: int, text: str) -> None:
    inherited = (InheritedSession(session=1, run_count=20, is_running=False),)
    processes = (
        runs.process(100, 100, 210),
        runs.process(101, 100, peak, parent=100, forked_from=100, inherited=inherited),
    )
    run = runs.run(runs.session(1, run_count=0, forked_run_count=20), processes=processes)
    assert run_headline(run).first.startswith(text)


def _growing(run: ProgramRun, start: int = 200) -> ProgramRun:
    times = tuple(number / 10 for number in range(101))
    sizes = tuple((start + int(10 * time_s)) * MIB for time_s in times)
    (process,) = run.processes
    samples = Samples(
        t_s=times, rss_bytes=sizes, anonymous_bytes=sizes, file_bytes=(0,) * len(times)
    )
    process = msgspec.structs.replace(process, samples=samples, ended_s=None)
    return msgspec.structs.replace(run, processes=(process,))


def test_memory_that_was_still_growing_is_told_first() -> None:
    xray = runs.xray(100, slack=110)
    answer = run_headline(_growing(runs.run(is_watched=True, xrays=(xray,))))
    assert answer.first.startswith(
        "Memory was still growing at the end of the recording: 200 MiB to 295 MiB in 10 s, 9.9 MiB"
        " a second. Largest memory"
    )
    assert answer.second == "memdiag leak 100 tells whether it is a leak, and of what."
    # The X-ray has the memory that grew.
    answer = run_headline(_growing(runs.run(is_watched=True, xrays=(xray,)), start=120))
    assert "a second. Besides weights and libraries, most is arena slack: 110 MiB" in answer.first
    # Of a recording in which nothing grows the largest owner is told as well.
    answer = run_headline(runs.run(is_watched=True, xrays=(xray,)))
    assert "growing" not in answer.first
    assert (
        "not steadily. Besides weights and libraries, most is arena slack: 110 MiB" in answer.first
    )
    # Its end could not be read.
    near_peak = msgspec.structs.replace(xray, reason="peak", t_s=3.0)
    first = run_headline(runs.run(is_watched=True, xrays=(near_peak,))).first
    assert "After 3.0 s, besides weights and libraries, most was arena slack: 110 MiB" in first


@pytest.mark.parametrize(
    ("onnxruntime", "said"),
    [
        ("1.31.1", "Its owners are not known without an X-ray."),
        (None, "onnxruntime was not recognized in"),
    ],
)
def test_a_process_without_onnxruntime_is_not_sent_to_leak(
    onnxruntime: str | None, said: str
) -> None:
    run = _growing(runs.run(is_watched=True, duration_s=9.0))
    at_rest = runs.process(100, *(100, 104, 108, 100, 112, 100, 104, 108, 104), ended_s=None)
    for watched in (run, msgspec.structs.replace(run, processes=(at_rest,))):
        (process,) = watched.processes
        process = msgspec.structs.replace(process, onnxruntime=onnxruntime)
        answer = run_headline(msgspec.structs.replace(watched, processes=(process,)))
        assert ("memdiag leak" in answer.first + answer.second) == (onnxruntime is not None)
        assert said in answer.first + answer.second
        # It has an onnxruntime whose release is not known.
        xrayed = msgspec.structs.replace(watched, processes=(process,), xrays=(runs.xray(100),))
        assert "not recognized" not in (answer := run_headline(xrayed)).first + answer.second


def test_a_process_that_ended_in_its_xray_is_not_sent_to_leak() -> None:
    sizes = (100, 104, 108, 100, 112, 104, 104, 108, 104)
    process = runs.process(100, *sizes, ended_s=None)
    run = runs.run(processes=(process,), is_watched=True)
    first = run_headline(msgspec.structs.replace(run, end_waits=((9.0, 20.0),))).first
    assert "It rose by 4.0 MiB in 8.0 s, not steadily." in first
    assert "Its owners are not known as its X-ray was not completed." in first
    assert "memdiag leak 100 tells whether it goes on" in run_headline(run).first


@pytest.mark.parametrize(
    ("site", "is_calibration"),
    [("onnxruntime/quantization/calibrate.py:320", True), ("app/quantization/main.py:8", False)],
)
def test_growth_in_a_calibration_names_what_keeps_outputs(
    site: str, *, is_calibration: bool
) -> None:
    session = runs.session(1, created_s=0.0, run_count=40, peak=160, created_at=site)
    session = msgspec.structs.replace(session, first_run_s=1.0, last_run_s=9.0)
    first = run_headline(_growing(runs.run(session))).first
    cause = "about 2.0 MiB a run. onnxruntime.quantization keeps the outputs of all samples"
    assert (cause in first) == is_calibration
    second = run_headline(_growing(runs.run(session))).second
    assert second.startswith("Calibrate in parts: " if is_calibration else "memdiag leak -- ")
    has = f"{CALIBRATORS_HAVE[:1].upper()}{CALIBRATORS_HAVE[1:]} (session 1)."
    assert (has in sentences_after_findings(runs.run(session))) == is_calibration
    still = run_headline(runs.run(session)).first
    assert "quantization keeps" not in still


@pytest.mark.parametrize(("used", "is_told"), [(60, True), (19, False)])
def test_values_that_are_held_at_the_end_are_told(used: int, *, is_told: bool) -> None:
    run = runs.run(runs.session(1), xrays=(runs.xray(100, used=used),))
    sentence = (
        "The process holds 60 MiB of values in onnxruntime's arenas at its end: outputs that the"
        " program keeps, as a rule. memdiag leak tells whether they grow, and names the line."
    )
    assert sentences_after_findings(run)[:1] == (sentence,) * is_told
    for told in sentences_after_findings(msgspec.structs.replace(run, is_watched=True)):
        assert told == (
            "The process holds 60 MiB of values in onnxruntime's arenas: those of a run in"
            " progress, or outputs that the program keeps. memdiag leak 100 tells whether they"
            " grow; memdiag leak -- COMMAND also names the line."
        )


def test_a_command_that_cannot_be_pasted_is_left_out() -> None:
    run = msgspec.structs.replace(runs.run(), command=("python", "-c", "import a\na.b()"))
    session = runs.session(1, created_s=0.0, run_count=40, last_run_s=9.0)
    grown = _growing(msgspec.structs.replace(run, sessions=(session,)))
    assert run_headline(grown).second.startswith("memdiag leak -- COMMAND tells")


@pytest.mark.parametrize(("rise", "largest"), [(60, False), (210, True)])
def test_growth_by_runs_is_told_before_a_smaller_rise(rise: int, largest: bool) -> None:
    session = runs.session(1, created_s=0.0, run_count=40, peak=100 + rise)
    session = msgspec.structs.replace(session, first_run_s=1.0, last_run_s=9.0)
    answer = run_headline(_growing(runs.run(session)))
    assert answer.first.startswith(
        "Memory was still growing at the last run of session 1: 210 MiB to 286 MiB in 8.0 s, about"
        " 2.0 MiB a run. "
    )
    assert ("Session 1 (a.onnx) takes +" in answer.first) == largest
    assert answer.second.startswith("memdiag leak -- python /app/main.py tells whether it is")


def test_a_proportional_set_that_was_read_far_from_the_peak_is_left_out() -> None:
    run = runs.server()
    early = msgspec.structs.replace(
        run.samples, proportional_t_s=(1.0,), pss_bytes=(60 * MIB,), swap_bytes=(0,)
    )
    answer = run_headline(msgspec.structs.replace(run, samples=early))
    assert "at most 310 MiB together (at 4.0 s). 3 processes" in answer.first
    assert "was not read near the peak" in answer.second


def test_the_peak_and_the_largest_rises_are_different_facts() -> None:
    peak, rise, creation = peak_and_rise_sentences(runs.server())
    assert peak.startswith(
        "Peak of the program: 310 MiB at 4.0 s, during prepack of session 4 (a.onnx) in process 101"
        " and a run of session 1 (a.onnx) with x: 1×3×640×640 in process 100. Then resident:"
        " process 100 210 MiB, process 101 90 MiB"
    )
    assert rise == (
        "Largest rise in a run after the first: session 1 (a.onnx) with x: 1×3×640×640 in process"
        " 100, +50 MiB to 210 MiB (the run ended at 4.5 s)."
    )
    assert creation.startswith("Largest rise in a creation and first run: session 4 (a.onnx)")
    for format in ("markdown", "html"):
        assert "the run ended at 4.5 s" in REPORT.render(runs.server(), format).decode()


@pytest.mark.parametrize(
    ("peak_s", "text"),
    [
        (0.5, ", while no session was being created or run."),
        (9.0, "after the last run of a session (at 6.0 s)."),
        (
            3.0,
            " and no run set a new peak of its process (session 1 was in use).",
        ),
    ],
)
def test_a_peak_without_a_known_cause(peak_s: float, text: str) -> None:
    run = runs.run(runs.session(1), peak_s=peak_s)
    assert peak_and_rise_sentences(run)[0].endswith(text)
    assert peak_and_rise_sentences(runs.run()) == ()


@pytest.mark.parametrize(
    ("site", "released_s", "is_told"),
    [
        ("onnxruntime/quantization/calibrate.py:320", 9.5, True),
        ("onnxruntime/quantization/calibrate.py:320", None, True),
        ("onnxruntime/quantization/calibrate.py:320", 8.0, False),  # the model is quantized then
        ("app.py:7", 9.5, False),
    ],
)
def test_a_peak_while_a_calibrator_is_alive_is_named(
    site: str, released_s: float | None, *, is_told: bool
) -> None:
    session = msgspec.structs.replace(
        runs.session(1, created_at=site, peak=160), released_s=released_s
    )
    end = ", before the calibration released its session 1" if is_told else ""
    said = f"after the last run of a session (at 6.0 s){end}."
    assert said in run_headline(runs.run(session, peak_s=9.0)).first


@pytest.mark.parametrize(
    ("peak_s", "ending"),
    [(7.5, ", while process 100 ended"), (6.5, ""), (9.5, "")],
    ids=["after its X-ray began", "before", "after its end"],
)
def test_a_peak_while_the_process_ended_is_named(peak_s: float, ending: str) -> None:
    end = msgspec.structs.replace(runs.xray(100), t_s=7.0, duration_s=2.0)
    process = runs.process(100, *[200] * 9)
    run = runs.run(
        runs.session(1), processes=(process,), xrays=(end,), peak_s=peak_s, end_xrays_s=2.0
    )
    after = f"after the last run of a session (at 6.0 s){ending}."
    assert peak_and_rise_sentences(run)[0].endswith(after)
    assert f"310 MiB, at {peak_s} s, {after}" in run_headline(run).first
    assert run_headline(run).first.endswith("in 10 s, 2.0 s of them for X-rays at the end.")


def test_the_picture_has_the_whole_answer() -> None:
    run = msgspec.structs.replace(runs.server(), end_xrays_s=2.0)
    figure = draw(run)
    texts = [" ".join(text.get_text().split()) for text in figure.texts]
    assert run_headline(run).first in texts


def test_runs_in_forks_are_runs() -> None:
    forked = runs.session(1, run_count=0, forked_run_count=20)
    both = runs.session(2, forked_run_count=3)
    never = runs.session(3, run_count=0, path="/models/b.onnx")
    text = words(shown(runs.run(forked, both, never)))
    assert "Session 3 never ran (b.onnx)." in text
    assert " 20 in forks" in text
    assert " 6 + 3 in forks" in text
    peak = peak_and_rise_sentences(runs.run(both, peak_s=9.0))[0]
    assert "Forked workers may have been running sessions: the time of each of their runs" in peak
    assert "+60 MiB in its creation; " in run_headline(runs.run(forked)).first


@pytest.mark.parametrize("peak_s", [9.0, 3.0], ids=["after the last run", "between runs"])
def test_a_peak_may_come_from_a_session_of_before_the_recording(peak_s: float) -> None:
    older = runs.run(runs.session(1), peak_s=peak_s, earlier_sessions=1)
    answer, peak = run_headline(older).first, peak_and_rise_sentences(older)[0]
    assert "after the last run" not in answer + peak
    assert "Sessions from before the recording may have run: their runs are not recorded." in peak
    only = runs.run(runs.session(1), peak_s=peak_s)
    assert "before the recording" not in peak_and_rise_sentences(only)[0]
    assert ("after the last run" in run_headline(only).first) == (peak_s == 9.0)


def test_the_duration_of_a_run_is_its_own() -> None:
    peak = HighWaterRun(
        session=1, t_s=6.0, peak_rss_bytes=MIB, shapes={"x": (1, 3, 640, 640)}, latency_s=0.2
    )
    run = runs.run(runs.session(1), peaks=(peak,))
    assert activities_text(run, 5.9) != ""
    assert activities_text(run, 5.5) == ""


def test_the_phases_of_a_session_are_those_of_a_profile() -> None:
    table = session_phase_table(runs.session(1), runs.run(runs.session(1)))
    assert [(row.cells[0].text, row.level) for row in table.rows] == [
        ("parse", 0),
        ("optimize", 0),
        ("constant_fold", 1),
        ("other steps", 1),
        ("initialize", 0),
        ("prepack", 0),
        ("first_run", 0),
    ]
    assert table.rows[2].is_strong  # the peak
    assert [column.heading for column in table.columns][:3] == ["session 1", "time", "at start"]


def test_a_sampled_peak_of_a_session_is_marked_and_the_process_keeps_its_own() -> None:
    made = runs.session(1, peak=257)
    phases = tuple(msgspec.structs.replace(phase, peak_kind="sampled") for phase in made.phases)
    session = msgspec.structs.replace(made, phases=phases)
    run = runs.run(session, processes=(runs.process(100, 20, 250, peak_rss_bytes=267 * MIB),))
    text = words(shown(run))
    assert "~+157" in text
    assert "session 1 (a.onnx) in process 100, ~+157 MiB to ~257 MiB" in text
    assert "~ by the largest sample seen" in text
    assert [cell.text for cell in session_table(run).rows[0].cells if "~" in cell.text] == [
        "~257 MiB",
        "~157 MiB",
    ]
    (lane,) = run_timeline(run).lanes
    assert lane.peak_bytes == 267 * MIB
    assert "peak ~257 MiB" in lane.bars[0].sentences
    assert "~" not in shown(runs.run(made))


def test_the_caller_of_a_library_is_named() -> None:
    session = runs.session(
        1, created_at="ocr/onnx/engine.py:41", library="ocr", called_from="app.py:12"
    )
    run = runs.run(session)
    assert "app.py:12 (ocr)" in words(shown(run))
    assert "| `ocr/onnx/engine.py:41` | `app.py:12` |" in REPORT.render(run, "markdown").decode()
    assert "called from app.py:12" in REPORT.render(run, "html").decode()


def test_a_narrow_table_hides_nothing_of_where_a_session_was_created() -> None:
    session = runs.session(
        1, created_at="ocr/engine.py:41", library="rapidocr", called_from="service/app_pre.py:118"
    )
    for width in (100, 80):
        text = shown(runs.run(session), width=width)
        assert "service/app_pre.py:118" in text
        assert "(rapidocr)" in text


def test_the_last_run_may_be_in_a_fork() -> None:
    own = runs.session(1, last_run_s=12.0)
    assert own.latest_run_s == 12.0
    forked = msgspec.structs.replace(own, forked_run_count=6, forked_last_run_s=40.0)
    text = shown(runs.run(forked), width=140)
    assert "at 40 s" in text
    assert "at 12 s" not in text
    earlier = msgspec.structs.replace(forked, forked_last_run_s=4.0)
    assert earlier.latest_run_s == 12.0


def test_the_weights_of_a_fork_are_listed_by_model_and_every_process_has_a_table() -> None:
    models = (SearchedModel(name="a.onnx", weight_bytes=20 * MIB),)
    found = attribution(copy("packed", 20 * MIB), models=models)
    xrays = [msgspec.structs.replace(runs.xray(pid), attribution=found) for pid in range(101, 106)]
    processes = [runs.process(100, 60), *(runs.process(x.pid, 60, parent=100) for x in xrays)]
    run = runs.run(runs.session(1), processes=tuple(processes), xrays=tuple(xrays))
    text = words(shown(run, width=120))
    assert text.count("resident copies: a.onnx 20 MiB") == 5


def test_the_table_has_processes_and_their_sessions() -> None:
    lines = shown(runs.server(), width=80).splitlines()
    start = next(i for i, text in enumerate(lines) if text.startswith("process / session"))
    table = [text.split() for text in lines[start : start + 9]]
    assert table[0][-5:] == ["PSS", "rise", "copies", "arena", "runs"]
    assert table[1][:4] == ["100", "python", "main.py", "--port"]
    assert table[1][-2:] == ["210", "158"]
    assert table[2] == ["1", "a.onnx", "app/main.py:8", "160", "+60", "20", "1.0/30", "6"]
    assert table[3] == ["2", "b.onnx", "app/main.py:8", "160", "+60", "released", "6"]
    assert table[4][-1] == "never"
    assert table[5][-1] == "failed"
    assert table[6][0] == "101"
    assert table[7] == ["4", "a.onnx", "app/main.py:8", "310", "+210", "10", "1.0/40", "6"]
    assert table[8][0] == "102"


def test_processes_are_in_the_order_of_their_sessions() -> None:
    run = runs.run(
        runs.session(1, pid=103),
        runs.session(2, pid=102),
        processes=tuple(runs.process(pid, 60, parent=101) for pid in (101, 102, 103)),
    )
    first_words = [text.split()[:1] for text in shown(run).splitlines()]
    assert [word for word in first_words if word in (["103"], ["102"], ["101"])] == [
        ["103"],
        ["102"],
        ["101"],
    ]


def test_the_weights_of_a_watched_process_are_listed_by_model() -> None:
    models = [SearchedModel(name=name, weight_bytes=30 * MIB) for name in ("a.onnx", "b.onnx")]
    copies = (
        copy("original", 20 * MIB, models=(0, 1)),
        copy("packed", 30 * MIB, models=(1,)),
        copy("packed", 50 * MIB, models=(0,), in_use=False),
    )
    both = attribution(copy("original", 50 * MIB), models=tuple(models), copies=copies)
    alone = attribution(copy("original", 20 * MIB), models=tuple(models[:1]))
    for found, text in (
        (both, "resident copies: b.onnx 40 MiB, a.onnx 10 MiB"),
        (alone, "resident copies: a.onnx 20 MiB"),
    ):
        xray = msgspec.structs.replace(runs.xray(100), attribution=found)
        (owners,) = process_owners(runs.run(is_watched=True, xrays=(xray,)))
        (row,) = [row for row in owners.rows if row.kind == "weights"]
        assert row.sentence == text


def test_wide_terminals_get_more_columns() -> None:
    text = shown(runs.server(), width=140)
    assert "threads" in text
    assert "created in" in text
    assert "last run" in text
    narrow = shown(runs.server())
    assert "created in" not in narrow


def test_weights_of_the_model_stand_beside_their_copies_where_the_width_allows() -> None:
    narrow, wide = words(shown(runs.server(), width=76)), words(shown(runs.server(), width=140))
    assert "rise copies arena" in narrow
    assert "rise weights copies arena" in wide


def _private(pid: int, *sizes: int) -> ProcessXray:
    """Return the X-ray of process `pid` in which the owners have so many private MiB."""
    xray = runs.xray(pid)
    owners = tuple(
        msgspec.structs.replace(owner, private_bytes=size * MIB)
        for owner, size in zip(xray.attribution.owners, (*sizes, 0, 0, 0), strict=False)
    )
    return msgspec.structs.replace(
        xray, attribution=msgspec.structs.replace(xray.attribution, owners=owners)
    )


def test_the_memory_of_one_more_process_is_its_private_memory() -> None:
    """A worker that ends last shares nothing any more, so that the figures differ."""
    sessions = [runs.session(number, pid=100 + number) for number in (1, 2)]
    processes = [runs.process(pid, 200, parent=100) for pid in (101, 102)]

    def sentences(second: int = 150, **changes: Any) -> list[str]:
        given = {
            "processes": (runs.process(100, 20), *processes),
            "xrays": (_private(101, 40, 2, 40, 33), _private(102, 40, 2, 40, second)),
        }
        found = session_remarks(runs.run(*changes.pop("sessions", sessions), **given | changes))
        return [sentence for sentence in found if "One more" in sentence]

    assert sentences() == [
        "One more process like 101, 102 takes 115 MiB to 232 MiB: the memory that each shares with"
        " no other process in its last X-ray."
    ]
    assert sentences(33)[0].startswith("One more process like 101, 102 takes about 115 MiB: ")
    rises = (runs.process(100, 20), *(runs.process(pid, 900, parent=100) for pid in (101, 102)))
    [at_peak] = sentences(33, processes=rises)
    assert re.search(r"takes about 115 MiB, and up to \d+ MiB at its peak: the memory", at_peak)
    assert sentences(is_watched=True) == sentences()
    assert sentences(xrays=(_private(101, 40, 2, 40, 33),)) == []
    other = msgspec.structs.replace(
        sessions[1], model=msgspec.structs.replace(sessions[1].model, path="/models/b.onnx")
    )
    assert sentences(sessions=(sessions[0], other)) == []


def test_a_program_of_one_process_has_no_proportional_set() -> None:
    assert " PSS " in shown(runs.server())
    assert "PSS" not in shown(runs.run(runs.session(1)))


def _finding(size: int | None, *sessions: int) -> ProgramFinding:
    return ProgramFinding(
        name="idle-session",
        sessions=sessions,
        bytes=size and size * MIB,
        message="It is idle.",
        remedy="",
    )


@pytest.mark.parametrize(
    ("findings", "sentences"),
    [
        ([_finding(20, 1)], ()),
        ([_finding(20, 1), _finding(None, 1)], ()),
        ([_finding(20, 1), _finding(30, 2, 3)], ("Together the findings could save 50 MiB.",)),
        *(
            (
                [_finding(20, 1, 2), _finding(30, *others)],
                ("Findings can overlap: do not add their sizes. The largest is 30 MiB.",),
            )
            for others in [(2, 3), ()]
        ),
    ],
)
def test_sizes_of_findings_add_up_only_if_they_concern_different_sessions(
    findings: list[ProgramFinding], sentences: tuple[str, ...]
) -> None:
    run = runs.run(runs.session(1), findings=tuple(findings))
    assert sentences_after_findings(run) == sentences


def test_many_copies_of_weights_name_the_command_that_explains_them() -> None:
    few, many = runs.memory(30, 1, 1), runs.memory(31, 1, 1)
    sessions = (runs.session(1, memory=few), runs.session(2, memory=many, path="/m/my model.onnx"))
    sentence = (
        "Session 2 (my model.onnx) has 31 MiB of copies of 20 MiB of weights: memdiag check"
        " '/m/my model.onnx' explains them."
    )
    run = runs.run(sessions[1])
    assert sentences_after_findings(run) == (sentence,)
    providers = ("OpenVINOExecutionProvider", "CPUExecutionProvider")
    elsewhere = msgspec.structs.replace(sessions[1], providers=providers)
    unexplained = sentence.partition(":")[0] + "."
    assert sentences_after_findings(runs.run(elsewhere)) == (unexplained,)
    (with_another_model,) = sentences_after_findings(runs.run(*sessions))
    assert (
        "(part of them may belong to sessions that compute equal weights): " in with_another_model
    )
    assert sentence in words(shown(run))
    assert "has 31 MiB of copies of 20 MiB of weights" in REPORT.render(run, "markdown").decode()
    assert "has 31 MiB of copies of 20 MiB of weights" in REPORT.render(run, "html").decode()
    assert sentences_after_findings(runs.run(sessions[0])) == ()
    large = msgspec.structs.replace(runs.run(*sessions), peak_rss_bytes=1101 * MIB)  # 11 MiB: 1 %
    assert sentences_after_findings(large) == ()
    older = runs.run(*sessions, earlier_sessions=1)
    (sentence,) = sentences_after_findings(older)
    assert "of weights (sessions from before the recording may have part of them): me" in sentence


def test_equal_sessions_and_workers_are_one_line_each() -> None:
    text = shown(runs.pool())
    assert "1–30 ×30 a.onnx" in text
    assert "31–38 ×8 b.onnx" in text
    assert "200 and 7 more python" in text
    assert "160/240" not in text
    lines = [words(line) for line in text.splitlines()]
    assert any("8.0/240 48" in line for line in lines)  # sums of arenas and of runs
    few = shown(runs.server())
    assert " ×" not in few.partition("MiB. In the line")[0].partition("process / session")[2]


def test_sessions_that_need_a_word_get_a_sentence() -> None:
    remark = session_remarks(runs.server())
    assert remark == (
        "Session 5 (nowhere.onnx) could not be created: NO_SUCHFILE: the file does not exist.",
        "Session 3 never ran (c.onnx).",
        "Sessions 2 and 3 were created or run at the same time in one process: the peaks of their"
        " phases cannot be told apart.",
    )
    assert session_remarks(runs.run(runs.session(1))) == ()
    cut = runs.session(1, creation_s=None, run_count=0)
    assert session_remarks(runs.run(cut)) == (
        "Session 1 (a.onnx) was not finished in prepack when its process ended.",
    )
    one_sided = runs.run(runs.session(1, shared_with=(2,)), runs.session(2))
    assert session_remarks(one_sided) == (
        "The peaks of session 1 are shared with session 2, created or run at the same time in the"
        " same process.",
    )
    many = session_remarks(runs.run(*map(runs.failed, range(1, 20))))
    assert len(many) == 6
    assert many[-1] == "14 more sentences of this kind are in the report."


def test_a_first_run_counts_although_its_report_was_lost() -> None:
    killed = runs.session(1, run_count=0, first_run_s=2.2)
    assert "Session 1 never ran" not in shown(runs.run(killed))
    assert "≥ 1" in shown(runs.run(killed))
    assert "≥ 1" in REPORT.render(runs.run(killed), "markdown").decode()


def test_findings_phases_owners_notes_and_files_follow() -> None:
    text = words(shown(runs.server()))
    assert (
        "Sessions 1 and 4 load the same model with the same options. [duplicate-sessions] → Create"
        " one session and share it. could save 20 MiB" in text
    )
    assert (
        "Largest rise in a creation and first run: session 4 (a.onnx) in process 101, +210 MiB to"
        " 310 MiB. Phases of session 4 (a.onnx): session 4" in text
    )
    assert "session 4 40 MiB" in text  # the resident part of 100 MiB
    assert "arena slack 40 20 % session 1 30 MiB" in text
    assert "note: process 102: the hook was not loaded" in text
    assert "run.json · trace.json" in text


@pytest.mark.parametrize(
    ("run", "owners"),
    [
        pytest.param(
            runs.run(runs.session(1), xrays=(runs.xray(100),)),
            "At end Python 116 MiB · arena slack 40 MiB · weights 40 MiB and 2 more.",
            id="session",
        ),
        pytest.param(
            runs.server(),
            "At end process 100: Python 116 MiB · arena slack 40 MiB and 3 more.",
            id="workers, where three do not fit in a line",
        ),
        pytest.param(runs.run(runs.session(1)), "", id="no X-ray"),
        # Its table is printed.
        pytest.param(runs.run(xrays=(runs.xray(100),), is_watched=True), "", id="watched"),
    ],
)
def test_the_largest_owners_are_told_where_no_table_is_printed(
    run: ProgramRun, owners: str
) -> None:
    text = words(shown(run, detail=Detail.USUAL))
    assert owners in text
    assert ("At end" in text) == bool(owners)
    assert "At end" not in shown(run, detail=Detail.ANSWER)


def test_slack_is_resident_and_reserved_slack_is_called_so() -> None:
    memory = runs.memory(10, 1, 100, resident=40)
    run = runs.run(runs.session(1, memory=memory))
    assert arena_text(run.sessions) == "1.0/40"
    text = REPORT.render(run, "markdown").decode()
    assert "| arena slack | slack reserved | arena in use |" in text
    assert "| 40 MiB | 100 MiB | 1.0 MiB |" in text
    partly = runs.memory(10, 64, 100, resident=40, resident_used=41)
    run = runs.run(runs.session(1, memory=partly))
    assert arena_text(run.sessions) == "41/40"
    assert "| 40 MiB | 100 MiB | 41 MiB |" in REPORT.render(run, "markdown").decode()
    run = runs.run(runs.session(1, memory=runs.memory(10, 1, 100)))
    assert arena_text(run.sessions) == "1.0/100"
    assert "slack reserved" not in REPORT.render(run, "markdown").decode()


def test_the_session_that_raised_the_memory_most_is_shown_in_phases() -> None:
    large = runs.session(1, start=500, peak=510)
    small = runs.session(2, start=100, peak=200)
    assert largest_session(runs.run(large, small)) == small
    assert largest_session(runs.run()) is None


def test_markdown_has_every_part() -> None:
    text = REPORT.render(runs.server(), "markdown").decode()
    for part in (
        "## Recording of a program: `python main.py`",
        "### Findings",
        "### Sessions",
        "### Owners in process 100 at its end, after 9.5 s",
        "### Input shapes",
        "### Processes",
        "### Notes",
    ):
        assert part in text
    assert "raised the peak" not in text  # tags are for pages


def test_a_run_without_sessions_has_all_reports() -> None:
    run = runs.empty()
    assert "0 processes, 0 sessions in 20 ms.\n" in shown(run)
    assert "No session was recorded: " in words(shown(run))
    older = shown(msgspec.structs.replace(run, earlier_sessions=1))
    assert "No session was created during the recording." in words(older)
    assert "No session was recorded" not in words(older)
    assert "No session was recorded: " in REPORT.render(run, "html").decode()
    for format in REPORT.formats():
        assert REPORT.render(run, format)
    assert codec.decode(REPORT.render(run, "json"), ProgramRun) == run


def test_long_tables_are_cut() -> None:
    run = runs.run(*(runs.session(number) for number in range(1, 400)))
    text = REPORT.render(run, "markdown").decode()
    assert "and 349 more rows" in text
    assert "and 748 more rows" in text  # of input shapes


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ([4], "4"),
        ([1, 2], "1 and 2"),
        ([3, 1, 2], "1–3"),
        ([1, 3, 4, 5, 9], "1, 3–5 and 9"),
        (range(1, 40, 2), "1, 3, 5, 7, 9, 11 and more"),
    ],
)
def test_numbers_are_ranges(found: list[int], text: str) -> None:
    assert number_ranges_text(found) == text


def test_models_with_one_file_name_are_distinguished_by_their_folders() -> None:
    paths = ("/m/one/model.onnx", "/m/two/model.onnx", "/m/other.onnx")
    sessions = [runs.session(i, path=path) for i, path in enumerate(paths, start=1)]
    names = model_names(runs.run(*sessions))
    assert list(names.values()) == ["one/model.onnx", "two/model.onnx", "other.onnx"]
    model = msgspec.structs.replace(sessions[0].model, path=None, digest="abc")
    from_bytes = msgspec.structs.replace(sessions[0], model=model)
    assert list(model_names(runs.run(from_bytes)).values()) == ["model of 20 MiB from bytes"]


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (("/usr/bin/python3", "-m", "app"), "python3 -m app"),
        ((".venv/bin/gunicorn", "app:app", "/etc/x.py"), "gunicorn app:app x.py"),
        (
            ("python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(3)"),
            "multiprocessing worker",
        ),
        (("python", "-c", "from multiprocessing_x import y"), None),
        (("/v/bin/python3", "/v/bin/gunicorn", "app:app"), "gunicorn app:app"),
        (("/v/bin/python3", "/v/bin/app.py"), "python3 app.py"),
        ((), ""),
    ],
)
def test_commands_lose_their_folders(command: tuple[str, ...], text: str | None) -> None:
    assert command_text(command) == (" ".join(command) if text is None else text)


def test_shapes_in_words() -> None:
    assert shapes_text(None) == "other shapes"
    assert shapes_text({}) == "IOBinding"
    assert shapes_text({"x": (1, 3), "s": ()}) == "x: 1×3, s: scalar"
    shapes = {name: (size,) for size, name in enumerate("abcde")}
    assert shapes_text(shapes) == "a: 0, b: 1, c: 2 and 2 more"
    assert shapes_text({"ids": (64, 256), "mask": (64, 256)}) == "2 inputs of 64×256"


def test_tiles_sum_up_to_the_resident_sets() -> None:
    found = program_tiles(runs.server())
    assert sum(tile.size_bytes for tile in found) == 2 * 200 * MIB
    ids = {tile.id for tile in found}
    assert all(tile.parent in ids or tile.id == "all" for tile in found)
    labels = {tile.label: tile.size for tile in found if tile.parent.startswith("p101")}
    assert labels["arena slack"] == "40 MiB"  # the resident part of 100 MiB
    assert labels["other weights"] == "30 MiB"
    assert program_tiles(runs.run(runs.session(1))) == ()


def test_owners_are_of_the_last_xray_of_each_process() -> None:
    early = msgspec.structs.replace(runs.xray(100, used=10), t_s=1.0, reason="peak")
    run = runs.run(runs.session(1), xrays=(runs.xray(100), early))
    (owners,) = process_owners(run)
    assert owners.moment == "at its end, after 9.5 s"
    (owners,) = process_owners(runs.run(runs.session(1), xrays=(early,)))
    assert owners.moment == "near a peak, after 1.0 s"


def test_bars_of_a_row_do_not_overlap() -> None:
    assert packed_rows([(0, 2), (1, 3), (2, 4), (5, 6)]) == [0, 1, 0, 0]
    lane = run_timeline(runs.pool()).lanes[0]
    for bar in lane.bars:
        others = [each for each in lane.bars if each.row == bar.row and each is not bar]
        assert all(each.start_s >= bar.end_s or each.end_s <= bar.start_s for each in others)
    assert len(lane.bars) + lane.left_out == 30


def test_many_sessions_and_marks_are_thinned() -> None:
    sessions = [runs.session(i, created_s=i / 10, released_s=i / 10 + 1.35) for i in range(1, 500)]
    lasting = runs.session(500, created_s=1.0)
    peaks = [
        HighWaterRun(session=500, t_s=i / 100, peak_rss_bytes=i, shapes=None, latency_s=0.01)
        for i in range(1, 1000)
    ]
    run = runs.run(*sessions, lasting, peaks=tuple(peaks), duration_s=60.0)
    (lane,) = run_timeline(run, max_rows=100, max_bars=40).lanes
    assert len(lane.bars) == 40
    assert lane.left_out == 460
    assert lane.bars[-1].number == 500
    assert len(lane.peaks) < 400
    assert lane.peaks[-1].rss_bytes == 999


@pytest.mark.parametrize(
    ("peak_s", "expected"),
    [(5.5, [1, 2, 3, 6]), (2.5, [1, 2, 3, 4]), (50.0, [1, 2, 3, 4])],
    ids=["of a session without a row", "of a session with a row", "of no session"],
)
def test_the_session_at_the_peak_has_a_bar(peak_s: float, expected: list[int]) -> None:
    sessions = [
        runs.session(
            number,
            created_s=number,
            phase_times=(PhaseTime(phase="parse", start_s=number - 1.0, end_s=float(number)),),
        )
        for number in range(1, 9)
    ]
    run = runs.run(*sessions, duration_s=60.0, peak_s=peak_s)
    (lane,) = run_timeline(run, max_rows=4).lanes
    assert [bar.number for bar in lane.bars] == expected
    assert [bar.row for bar in lane.bars] == [0, 1, 2, 3]
    assert lane.left_out == 4


@pytest.mark.parametrize(("peak_s", "expected"), [(4.0, [101, 102]), (9.0, [101, 103])])
def test_the_process_of_the_session_at_the_peak_has_a_lane(
    peak_s: float, expected: list[int]
) -> None:
    parse = PhaseTime(phase="parse", start_s=3.0, end_s=5.0)
    run = runs.run(
        runs.session(1, pid=101, created_s=1.0, phase_times=()),  # the only one with a rise
        runs.session(2, pid=102, created_s=3.0, phases=(), phase_times=(parse,)),
        runs.session(3, pid=103, created_s=3.0, phases=(), phase_times=()),
        processes=(runs.process(101, 60), runs.process(102, 50), runs.process(103, 300)),
        peak_s=peak_s,
    )
    assert [lane.pid for lane in run_timeline(run, max_lanes=2).lanes] == expected


@pytest.mark.parametrize(("count", "text"), [(24, ""), (30, "and 6 more sessions")])
def test_a_picture_names_the_number_of_sessions_that_it_does_not_draw(
    count: int, text: str
) -> None:
    sessions = [runs.session(number, created_s=number / 10) for number in range(1, count + 1)]
    figure = draw(runs.run(*sessions, duration_s=60.0))
    found = [each.get_text() for each in figure.texts if each.get_text().startswith("and ")]
    assert found == ([text] if text else [])


def test_the_legend_of_a_picture_is_above_the_curves() -> None:
    figure = draw(runs.server())
    axes = figure.axes[0]
    legend = axes.get_legend()
    assert legend is not None
    figure.draw_without_rendering()
    box, curves = legend.get_window_extent(), axes.get_window_extent()
    answer = min(text.get_window_extent().y0 for text in figure.texts)
    assert curves.y1 <= box.y0
    assert box.y1 <= answer
    assert box.x1 <= figure.bbox.x1


@pytest.mark.parametrize(
    ("sizes", "ended_s", "words"),
    [
        ((100,) * 9, None, "No growth was seen in 8.0 s."),
        ((100, 104, 108, 100, 112, 104, 104, 108, 104), None, "It rose by 4.0 MiB in 8.0 s, not"),
        ((100, 101, 101, 100, 112, 101, 101, 101, 101), None, "No growth was seen in 8.0 s."),
        # The least of both halves is the same: the last samples may be those of a long run.
        ((100, 150, 150, 100, 150, 100, 100, 150, 150), None, "it had 50 MiB more than at times"),
        ((100,) * 3, None, ""),  # too short to tell
        ((*(100,) * 9, 30), 10.0, "No growth was seen in 8.0 s."),
        ((*(100,) * 4, *(130,) * 7, 30), 11.0, "It rose by 30 MiB in 9.0 s, not steadily."),
        ((100,) * 5, 5.0, ""),
    ],
)
def test_a_watched_process_at_rest_did_not_grow(
    sizes: tuple[int, ...], ended_s: float | None, words: str
) -> None:
    watched = runs.run(processes=(runs.process(100, *sizes, ended_s=ended_s),), is_watched=True)
    first = run_headline(watched).first
    assert (words in first) if words else ("growth" not in first and "rose" not in first)


def test_the_owners_of_a_watched_process_are_printed() -> None:
    run = msgspec.structs.replace(runs.watched(), xrays=(runs.xray(100),))
    text = shown(run, detail=Detail.USUAL)
    assert "owner (100)" in text
    assert "owners of the memory" not in text


def test_owners_of_a_watched_process_have_words_and_colours_of_their_own() -> None:
    run = msgspec.structs.replace(runs.watched(), xrays=(runs.xray(100),))
    (owners,) = process_owners(run)
    assert owners.moment == "at the end of the recording, after 9.5 s"
    (cell,) = [row.cells[0] for row in owners.table().rows if row.cells[0].text == "weights"]
    assert cell.color == "var(--original)"
    weights = [tile.kind for tile in program_tiles(run) if tile.label == "weights"]
    assert weights == ["original"]


def test_processes_with_sessions_get_lanes_first() -> None:
    line = run_timeline(runs.server(), max_lanes=2)
    assert [lane.pid for lane in line.lanes] == [100, 101]
    assert line.left_out == 1
    assert [mark.sentences for mark in line.lanes[0].peaks] == [
        ("run of session 1 (a.onnx)", "x: 1×3×640×640")
    ]


def test_the_mark_of_a_whole_creation_counts_where_its_phases_are_sampled() -> None:
    missed = runs.session(1, creation_peak_rss_bytes=260 * MIB)
    assert (session_rise_text(missed), session_peak_mark(missed), session_peak_phase(missed)) == (
        "+160 MiB",
        "",
        None,
    )
    run = runs.run(missed, peak_rss_bytes=260 * MIB, peak_s=1.4)
    assert [each.short_text for each in session_activities(run, 1.4)] == [
        "the creation of session 1"
    ]
    # The phases have it already: a page more is no other peak.
    found = runs.session(1, creation_peak_rss_bytes=160 * MIB + 4096)
    assert (session_rise_text(found), session_peak_phase(found)) == ("+60 MiB", "constant_fold")
