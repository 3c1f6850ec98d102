"""What is told of recorded programs: the answer, remarks, tables, owners and the timeline."""

from collections.abc import Callable
from typing import Any

import pytest
from rich.cells import cell_len

from memdiag.growth.growth_sentences import CALIBRATORS_HAVE
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
from memdiag.reports.run.names import command_text, model_names, number_ranges_text, shapes_text
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
    peak_and_rise_sentences,
    session_table,
)
from memdiag.reports.run.timeline import packed_rows, run_timeline
from tests.reports import runs
from tests.reports.attributions import attribution, copy
from tests.reports.rendering import (
    assert_sentences_approved,
    html,
    markdown,
    printed,
    replaced,
    section,
    words,
)
from tests.reports.runs import MIB, failed, memory, process, run, session, xray

CALIBRATOR = "onnxruntime/quantization/calibrate.py:320"
SHAPES: dict[str, tuple[int, ...]] = {"x": (1, 3, 640, 640)}


def with_one_shape(number: int, **changes: int) -> ProgramSession:
    made = session(number, **changes)
    return replaced(made, shapes=made.shapes[1:])


def growing(record: ProgramRun, start: int = 200, **changes: Any) -> ProgramRun:
    """Return a recording whose process grows by 10 MiB a second, with changes of the process."""
    times = tuple(number / 10 for number in range(101))
    sizes = tuple((start + int(10 * time_s)) * MIB for time_s in times)
    samples = Samples(
        t_s=times, rss_bytes=sizes, anonymous_bytes=sizes, file_and_shared_bytes=(0,) * 101
    )
    (grown,) = record.processes
    grown = replaced(grown, samples=samples, ended_s=None, **changes)
    return replaced(record, processes=(grown,))


def busy(**changes: Any) -> ProgramSession:
    """Return a session that ran 40 times, until a second before the end."""
    return session(1, created_s=0.0, run_count=40, first_run_s=1.0, last_run_s=9.0, **changes)


def watched(*sizes: int, ended_s: float | None = None, **changes: Any) -> ProgramRun:
    """Return the recording of a process that had these MiB, one each second."""
    return run(processes=(process(100, *sizes, ended_s=ended_s, **changes),), is_watched=True)


def forked(peak: int) -> ProgramRun:
    """Return a process of at most 210 MiB and its fork with `peak` MiB."""
    inherited = (InheritedSession(session=1, run_count=20, is_running=False),)
    fork = process(101, 100, peak, parent=100, forked_from=100, inherited=inherited)
    ran = session(1, run_count=0, forked_run_count=20)
    return run(ran, processes=(process(100, 100, 210), fork))


def ended_with_xray(peak_s: float) -> ProgramRun:
    """Return a process whose X-ray at its end takes the time from 7 s to 9 s."""
    end = replaced(xray(100), t_s=7.0, duration_s=2.0)
    ended = process(100, *[200] * 9)
    return run(session(1), processes=(ended,), xrays=(end,), peak_s=peak_s, end_xrays_s=2.0)


SERVER = runs.server()
NOTHING_STEADY = (100, 104, 108, 100, 112, 104, 104, 108, 104)
XRAY = xray(100, slack=110)
NEAR_PEAK = replaced(XRAY, reason="peak", t_s=3.0)
UNPASTABLE = ("python", "-c", "import a\na.b()")
HEADLINES = {
    "one session": run(session(1)),
    "in its first run": run(with_one_shape(1, peak=310), session(9), peak_s=2.15),
    "in one of 20 first runs at once": run(
        with_one_shape(1, peak=310, run_threads=20), session(9), peak_s=2.15
    ),
    "in its own creation": run(session(1, peak=310), session(9), peak_s=1.95),
    "in another session's creation": run(session(1, peak=310), session(9), peak_s=9.95),
    "two at the same time": run(session(1, shared_with=(2,)), session(2, shared_with=(1,))),
    "three at the same time": run(session(1), session(2, peak=310, shared_with=(1, 3))),
    "three of a model": run(session(1, peak=190), session(2), session(3)),
    "three of a model, about alike": run(session(1, peak=161), session(2), session(3)),
    "never ran": run(session(1, run_count=0)),
    "ran in forks only": run(session(1, run_count=0, forked_run_count=20)),
    "creation failed": run(failed(1)),
    "no session": run(),
    "a later run takes most": replaced(
        SERVER, peaks=(*SERVER.peaks, replaced(SERVER.peaks[0], t_s=8.0, peak_rss_bytes=900 * MIB))
    ),
    "a fork takes most": forked(900),
    "a fork as large as its parent": forked(210),
    "proportional set read far from the peak": replaced(
        SERVER,
        samples__proportional_t_s=(1.0,),
        samples__pss_bytes=(60 * MIB,),
        samples__swap_bytes=(0,),
    ),
    "several watched": run(processes=SERVER.processes, is_watched=True),
    "watched, peak before is the same": runs.watched(earlier_peak=310),
    "watched, larger peak before": runs.watched(earlier_peak=334),
    "watched, exact peak": replaced(runs.watched(), peak_rss_bytes=320 * MIB),
    "watched, growing": growing(run(is_watched=True, xrays=(XRAY,))),
    "watched, growing, X-ray has the growth": growing(run(is_watched=True, xrays=(XRAY,)), 120),
    "watched, not growing, X-ray": run(is_watched=True, xrays=(XRAY,)),
    "watched, X-ray near a peak only": run(is_watched=True, xrays=(NEAR_PEAK,)),
    "watched, its X-ray was not completed": replaced(
        watched(*NOTHING_STEADY), end_waits=((9.0, 20.0),)
    ),
    "watched, level": watched(*[100] * 9),
    "watched, up and down": watched(*NOTHING_STEADY),
    "watched, one spike": watched(100, 101, 101, 100, 112, 101, 101, 101, 101),
    # The least of both halves is the same: the last samples may be those of a long run.
    "watched, larger at times": watched(100, 150, 150, 100, 150, 100, 100, 150, 150),
    "watched, too short to tell": watched(*[100] * 3),
    "watched, ended at once": watched(*[100] * 5, ended_s=5.0),
    "watched, ended level": watched(*[100] * 9, 30, ended_s=10.0),
    "watched, ended after a rise": watched(*[100] * 4, *[130] * 7, 30, ended_s=11.0),
    "growing in a calibration": growing(run(busy(peak=160, created_at=CALIBRATOR))),
    "growing in a folder called quantization": growing(
        run(busy(peak=160, created_at="app/quantization/main.py:8"))
    ),
    "growing, command cannot be pasted": growing(replaced(run(busy()), command=UNPASTABLE)),
    "growing more than the session's rise": growing(run(busy(peak=160))),
    "growing less than the session's rise": growing(run(busy(peak=310))),
    "peak in the X-ray at the end": ended_with_xray(7.5),
    "peak before the X-ray at the end": ended_with_xray(6.5),
}


def test_the_answer_names_what_takes_most() -> None:
    answers = {case: run_headline(record) for case, record in HEADLINES.items()}
    sentences = {case: (answer.first, answer.second) for case, answer in answers.items()}
    assert_sentences_approved("run_headlines", sentences)


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
    answer = run_headline(run(session(1), exit_code=code))
    assert (answer.second, answer.is_success) == (sentence, not sentence)


@pytest.mark.parametrize("onnxruntime", ["1.31.1", None])
@pytest.mark.parametrize("grows", [True, False])
def test_a_process_without_onnxruntime_is_not_sent_to_leak(
    onnxruntime: str | None, grows: bool
) -> None:
    at_rest = watched(*NOTHING_STEADY, onnxruntime=onnxruntime)
    record = growing(at_rest) if grows else at_rest
    answer = run_headline(record)
    text = answer.first + answer.second
    assert ("memdiag leak" in text) == (onnxruntime is not None)
    assert ("onnxruntime was not recognized" in text) == (onnxruntime is None)
    # Its X-ray found onnxruntime, in a release that is not known.
    xrayed = run_headline(replaced(record, xrays=(xray(100),)))
    assert "not recognized" not in xrayed.first + xrayed.second


PEAKS = {
    "no session": run(),
    "before the first session": run(session(1), peak_s=0.5),
    "after the last run": run(session(1), peak_s=9.0),
    "between runs": run(session(1), peak_s=3.0),
    "calibrator released after it": run(
        session(1, created_at=CALIBRATOR, peak=160, released_s=9.5), peak_s=9.0
    ),
    "calibrator never released": run(session(1, created_at=CALIBRATOR, peak=160), peak_s=9.0),
    # The model is quantized then.
    "calibrator released before it": run(
        session(1, created_at=CALIBRATOR, peak=160, released_s=8.0), peak_s=9.0
    ),
    "no calibrator": run(session(1, created_at="app.py:7", peak=160, released_s=9.5), peak_s=9.0),
    "while the process ended": ended_with_xray(7.5),
    "before the process ended": ended_with_xray(6.5),
    "after the process ended": ended_with_xray(9.5),
    "runs in forks": run(session(2, forked_run_count=3), peak_s=9.0),
    "older sessions, after the last run": run(session(1), peak_s=9.0, earlier_sessions=1),
    "older sessions, between runs": run(session(1), peak_s=3.0, earlier_sessions=1),
}


def test_the_peak_is_told_with_what_ran_then() -> None:
    sentences = {
        case: (run_headline(record).first, *peak_and_rise_sentences(record)[:1])
        for case, record in PEAKS.items()
    }
    assert_sentences_approved("run_peaks", sentences)


def test_what_happened_at_the_peak_is_named() -> None:
    peak = HighWaterRun(session=1, t_s=6.0, peak_rss_bytes=MIB, shapes=SHAPES, latency_s=0.5)
    record = run(
        session(1, created_s=1.0), session(2, created_s=1.2, path="/b.onnx"), peaks=(peak,)
    )
    assert {time_s: activities_text(record, time_s) for time_s in (1.1, 1.35, 5.5, 5.0, 9.0)} == {
        1.1: "parse of session 1 (a.onnx)",
        1.35: "optimize of session 1 (a.onnx) and parse of session 2 (b.onnx)",
        5.5: "a run of session 1 (a.onnx) with x: 1×3×640×640",
        5.0: "",  # before the run
        9.0: "",
    }
    shorter = run(session(1), peaks=(replaced(peak, latency_s=0.2),))
    assert activities_text(shorter, 5.9) != ""
    assert activities_text(shorter, 5.5) == ""


@pytest.mark.parametrize(
    ("first_run", "expected"),
    [
        pytest.param((150, 155), ("+60 MiB", "160 MiB", "constant_fold"), id="run at once"),
        pytest.param((350, 355), ("+60 MiB", "160 MiB", "constant_fold"), id="run after others"),
        pytest.param((350, 450), ("+150 MiB", "450 MiB", "first_run"), id="its run takes more"),
    ],
)
def test_memory_that_others_took_before_the_first_run_is_not_the_sessions(
    first_run: tuple[int, int], expected: tuple[str, str, str]
) -> None:
    made = session(1, peak_phase="first_run")
    made = replaced(made, phases=(*made.phases[:-1], runs.phase("first_run", *first_run)))
    texts = session_rise_text(made), session_peak_text(made), session_peak_phase(made)
    assert texts == expected


def test_the_mark_of_a_whole_creation_counts_where_its_phases_are_sampled() -> None:
    missed = session(1, creation_peak_rss_bytes=260 * MIB)
    assert (session_rise_text(missed), session_peak_mark(missed)) == ("+160 MiB", "")
    assert session_peak_phase(missed) is None
    record = run(missed, peak_rss_bytes=260 * MIB, peak_s=1.4)
    (activity,) = session_activities(record, 1.4)
    assert activity.short_text == "the creation of session 1"
    # The phases have it already: a page more is no other peak.
    seen = session(1, creation_peak_rss_bytes=160 * MIB + 4096)
    assert (session_rise_text(seen), session_peak_phase(seen)) == ("+60 MiB", "constant_fold")


def finding(size: int | None, *sessions: int) -> ProgramFinding:
    nbytes = size and size * MIB
    return ProgramFinding(
        name="idle-session", sessions=sessions, bytes=nbytes, message="It is idle.", remedy=""
    )


def with_findings(*findings: ProgramFinding) -> ProgramRun:
    return run(session(1), findings=findings)


MANY_COPIES = session(2, memory=memory(31, 1, 1), path="/m/my model.onnx")
FEW_COPIES = session(1, memory=memory(30, 1, 1))
OPENVINO = ("OpenVINOExecutionProvider", "CPUExecutionProvider")
SAVINGS = {
    "one finding": with_findings(finding(20, 1)),
    "one size": with_findings(finding(20, 1), finding(None, 1)),
    "sessions differ": with_findings(finding(20, 1), finding(30, 2, 3)),
    "sessions overlap": with_findings(finding(20, 1, 2), finding(30, 2, 3)),
    "no session": with_findings(finding(20, 1, 2), finding(30)),
    "values held at the end": run(session(1), xrays=(xray(100, used=60),)),
    "few values held": run(session(1), xrays=(xray(100, used=19),)),
    "values held, watched": run(session(1), xrays=(xray(100, used=60),), is_watched=True),
    "many copies": run(MANY_COPIES),
    "fewer copies": run(FEW_COPIES),
    "many copies of another provider": run(replaced(MANY_COPIES, providers=OPENVINO)),
    "many copies, other sessions": run(FEW_COPIES, MANY_COPIES),
    "many copies, 1 % of the program": run(FEW_COPIES, MANY_COPIES, peak_rss_bytes=1101 * MIB),
    "many copies, older sessions": run(FEW_COPIES, MANY_COPIES, earlier_sessions=1),
    "calibration": run(busy(created_at=CALIBRATOR)),
}


def test_what_could_be_saved_follows_the_findings() -> None:
    texts = {case: sentences_after_findings(record) for case, record in SAVINGS.items()}
    assert_sentences_approved("run_savings", texts)
    calibrators = f"{CALIBRATORS_HAVE[:1].upper()}{CALIBRATORS_HAVE[1:]} (session 1)."
    assert [case for case, told in texts.items() if calibrators in told] == ["calibration"]
    (sentence,) = texts["many copies"]
    record = SAVINGS["many copies"]
    assert sentence in words(record)
    for text in (markdown(record), html(record)):
        assert "has 31 MiB of copies of 20 MiB of weights" in text


def private(pid: int, *sizes: int) -> ProcessXray:
    """Return the X-ray of process `pid` in which the owners have so many private MiB."""
    made = xray(pid)
    owners = tuple(
        replaced(owner, private_bytes=size * MIB)
        for owner, size in zip(made.attribution.owners, (*sizes, 0, 0, 0), strict=False)
    )
    return replaced(made, attribution__owners=owners)


def workers(
    second: int = 150, *, size: int = 200, path: str = "/models/a.onnx", **changes: Any
) -> ProgramRun:
    """Return two workers with a session each, the second with other private memory.

    One that ends last shares nothing any more, so that the figures differ.
    """
    fields = {
        "processes": (process(100, 20), *(process(pid, size, parent=100) for pid in (101, 102))),
        "xrays": (private(101, 40, 2, 40, 33), private(102, 40, 2, 40, second)),
    }
    sessions = (session(1, pid=101), session(2, pid=102, path=path))
    return run(*sessions, **fields | changes)


FORKS = run(
    session(1, run_count=0, forked_run_count=20),
    session(2, forked_run_count=3),
    session(3, run_count=0, path="/models/b.onnx"),
)
LOST_FIRST_RUN = run(session(1, run_count=0, first_run_s=2.2))
REMARKS = {
    "one session": run(session(1)),
    "not finished": run(session(1, creation_s=None, run_count=0)),
    "shared on one side": run(session(1, shared_with=(2,)), session(2)),
    "many failed": run(*map(failed, range(1, 20))),
    "ran in forks": FORKS,
    "report of the first run was lost": LOST_FIRST_RUN,
    "two workers": workers(),
    "two workers, watched": workers(is_watched=True),
    "two workers of about one size": workers(33),
    "two workers with larger peaks": workers(33, size=900),
    "one of two workers was examined": workers(xrays=(private(101, 40, 2, 40, 33),)),
    "workers with different models": workers(path="/models/b.onnx"),
}


def test_sessions_and_workers_that_need_a_word_get_a_sentence() -> None:
    remarks = {case: session_remarks(record) for case, record in REMARKS.items()}
    assert_sentences_approved("run_remarks", remarks)


def sampled(made: ProgramSession) -> ProgramSession:
    phases = tuple(replaced(phase, peak_kind="sampled") for phase in made.phases)
    return replaced(made, phases=phases)


def with_memory(used: int, slack: int, **resident: int) -> ProgramRun:
    return run(session(1, memory=memory(10, used, slack, **resident)))


IN_LIBRARY = session(
    *(1,), library="rapidocr", created_at="ocr/engine.py:41", called_from="service/app_pre.py:118"
)
THREE = tuple(process(pid, 60, parent=101) for pid in (101, 102, 103))
LAST_RUN = session(1, last_run_s=12.0, forked_run_count=6, forked_last_run_s=40.0)
SAMPLED = run(
    sampled(session(1, peak=257)), processes=(process(100, 20, 250, peak_rss_bytes=267 * MIB),)
)
TABLES = {
    "many columns": (SERVER, 140),
    "few columns": (SERVER, 76),
    "one process": (run(session(1)), 80),
    "processes in the order of sessions": (
        run(session(1, pid=103), session(2, pid=102), processes=THREE),
        80,
    ),
    "runs in forks": (FORKS, 80),
    "last run in a fork": (run(LAST_RUN), 140),
    "last run before that in a fork": (run(replaced(LAST_RUN, forked_last_run_s=4.0)), 140),
    "report of the first run was lost": (LOST_FIRST_RUN, 80),
    "sampled peak": (SAMPLED, 80),
    "caller of a library": (run(IN_LIBRARY), 80),
    "caller of a library, wide": (run(IN_LIBRARY), 100),
    "slack partly resident": (with_memory(1, 100, resident=40), 80),
    "values partly resident": (with_memory(64, 100, resident=40, resident_used=41), 80),
    "all slack resident": (with_memory(1, 100), 80),
}


def test_sessions_are_listed_below_their_processes() -> None:
    lines = {
        case: section(record, "process / session", width=width)
        for case, (record, width) in TABLES.items()
    }
    assert_sentences_approved("run_tables", lines)


@pytest.mark.parametrize("build", runs.ALL, ids=lambda build: build.__name__)
@pytest.mark.parametrize("width", [60, 80, 140])
def test_the_summary_fits_the_terminal(build: Callable[[], ProgramRun], width: int) -> None:
    assert max(map(cell_len, printed(build(), width=width).splitlines())) <= width


def test_a_sampled_peak_of_a_session_is_marked_and_the_process_keeps_its_own() -> None:
    assert "session 1 (a.onnx) in process 100, ~+157 MiB to ~257 MiB" in words(SAMPLED)
    cells = [cell.text for cell in session_table(SAMPLED).rows[0].cells]
    assert [text for text in cells if "~" in text] == ["~257 MiB", "~157 MiB"]
    (lane,) = run_timeline(SAMPLED).lanes
    assert lane.peak_bytes == 267 * MIB
    assert "peak ~257 MiB" in lane.bars[0].sentences


def test_markdown_and_the_page_have_what_a_terminal_has() -> None:
    assert "| `ocr/engine.py:41` | `service/app_pre.py:118` |" in markdown(run(IN_LIBRARY))
    assert "called from service/app_pre.py:118" in html(run(IN_LIBRARY))
    assert "≥ 1" in markdown(LOST_FIRST_RUN)
    partly = with_memory(64, 100, resident=40, resident_used=41)
    assert "| 40 MiB | 100 MiB | 41 MiB |" in markdown(partly)
    assert "slack reserved" not in markdown(with_memory(1, 100))


def test_the_weights_of_a_process_are_listed_by_model() -> None:
    models = tuple(SearchedModel(name=name, weight_bytes=30 * MIB) for name in ("a.onnx", "b.onnx"))
    copies = (
        copy("original", 20 * MIB, models=(0, 1)),
        copy("packed", 30 * MIB, models=(1,)),
        copy("packed", 50 * MIB, models=(0,), in_use=False),
    )
    for weights, text in (
        (
            attribution(copy("original", 50 * MIB), models=models, copies=copies),
            "b.onnx 40 MiB, a.onnx 10 MiB",
        ),
        (attribution(copy("original", 20 * MIB), models=models[:1]), "a.onnx 20 MiB"),
    ):
        xrayed = run(is_watched=True, xrays=(replaced(xray(100), attribution=weights),))
        (owners,) = process_owners(xrayed)
        assert [row.sentence for row in owners.rows if row.kind == "weights"] == [
            f"resident copies: {text}"
        ]


def test_every_process_has_a_table_of_owners() -> None:
    model = SearchedModel(name="a.onnx", weight_bytes=20 * MIB)
    weights = attribution(copy("packed", 20 * MIB), models=(model,))
    xrays = tuple(replaced(xray(pid), attribution=weights) for pid in range(101, 106))
    processes = (process(100, 60), *(process(made.pid, 60, parent=100) for made in xrays))
    text = words(run(session(1), processes=processes, xrays=xrays), width=120)
    assert text.count("resident copies: a.onnx 20 MiB") == 5


def test_the_session_that_raised_the_memory_most_is_shown_in_phases() -> None:
    large, small = session(1, start=500, peak=510), session(2, start=100, peak=200)
    assert largest_session(run(large, small)) == small
    assert largest_session(run()) is None


def test_a_run_without_sessions_has_all_reports() -> None:
    record = runs.empty()
    older = words(replaced(record, earlier_sessions=1))
    assert "No session was created during the recording." in older
    assert "No session was recorded" not in older
    assert "No session was recorded: " in html(record)
    assert [format for format in REPORT.formats() if not REPORT.render(record, format)] == []
    assert codec.decode(REPORT.render(record, "json"), ProgramRun) == record


def test_long_tables_are_cut() -> None:
    text = markdown(run(*(session(number) for number in range(1, 400))))
    assert "and 349 more rows" in text
    assert "and 748 more rows" in text  # of input shapes


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([4], "4"),
        ([1, 2], "1 and 2"),
        ([3, 1, 2], "1–3"),
        ([1, 3, 4, 5, 9], "1, 3–5 and 9"),
        (range(1, 40, 2), "1, 3, 5, 7, 9, 11 and more"),
    ],
)
def test_numbers_are_ranges(numbers: list[int], text: str) -> None:
    assert number_ranges_text(numbers) == text


def test_models_with_one_file_name_are_distinguished_by_their_folders() -> None:
    paths = ("/m/one/model.onnx", "/m/two/model.onnx", "/m/other.onnx")
    names = model_names(run(*(session(i, path=path) for i, path in enumerate(paths, start=1))))
    assert list(names.values()) == ["one/model.onnx", "two/model.onnx", "other.onnx"]
    from_bytes = replaced(session(1), model__path=None, model__digest="abc")
    assert list(model_names(run(from_bytes)).values()) == ["model of 20 MiB from bytes"]


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


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        (None, "other shapes"),
        ({}, "IOBinding"),
        ({"x": (1, 3), "s": ()}, "x: 1×3, s: scalar"),
        ({name: (size,) for size, name in enumerate("abcde")}, "a: 0, b: 1, c: 2 and 2 more"),
        ({"ids": (64, 256), "mask": (64, 256)}, "2 inputs of 64×256"),
    ],
)
def test_shapes_in_words(shapes: dict[str, tuple[int, ...]] | None, text: str) -> None:
    assert shapes_text(shapes) == text


def test_tiles_sum_up_to_the_resident_sets() -> None:
    tiles = program_tiles(SERVER)
    assert sum(tile.size_bytes for tile in tiles) == 2 * 200 * MIB
    ids = {tile.id for tile in tiles}
    assert all(tile.parent in ids or tile.id == "all" for tile in tiles)
    labels = {tile.label: tile.size for tile in tiles if tile.parent.startswith("p101")}
    assert labels["arena slack"] == "40 MiB"  # the resident part of 100 MiB
    assert labels["other weights"] == "30 MiB"
    assert program_tiles(run(session(1))) == ()


def test_owners_are_of_the_last_xray_of_each_process() -> None:
    early = replaced(xray(100, used=10), t_s=1.0, reason="peak")
    (owners,) = process_owners(run(session(1), xrays=(xray(100), early)))
    assert owners.moment == "at its end, after 9.5 s"
    (owners,) = process_owners(run(session(1), xrays=(early,)))
    assert owners.moment == "near a peak, after 1.0 s"


def test_owners_of_a_watched_process_have_colours_of_their_own() -> None:
    record = runs.watched_with_xray()
    (owners,) = process_owners(record)
    colors = {row.cells[0].text: row.cells[0].color for row in owners.table().rows}
    assert colors["weights"] == "var(--original)"
    assert [tile.kind for tile in program_tiles(record) if tile.label == "weights"] == ["original"]


def test_bars_of_a_row_do_not_overlap() -> None:
    assert packed_rows([(0, 2), (1, 3), (2, 4), (5, 6)]) == [0, 1, 0, 0]
    lane = run_timeline(runs.pool()).lanes[0]
    for bar in lane.bars:
        others = [other for other in lane.bars if other.row == bar.row and other is not bar]
        assert all(other.start_s >= bar.end_s or other.end_s <= bar.start_s for other in others)
    assert len(lane.bars) + lane.left_out == 30


def test_many_sessions_and_marks_are_thinned() -> None:
    sessions = [session(i, created_s=i / 10, released_s=i / 10 + 1.35) for i in range(1, 500)]
    peaks = tuple(
        HighWaterRun(session=500, t_s=i / 100, peak_rss_bytes=i, shapes=None, latency_s=0.01)
        for i in range(1, 1000)
    )
    record = run(*sessions, session(500, created_s=1.0), peaks=peaks, duration_s=60.0)
    (lane,) = run_timeline(record, max_rows=100, max_bars=40).lanes
    assert (len(lane.bars), lane.left_out, lane.bars[-1].number) == (40, 460, 500)
    assert len(lane.peaks) < 400
    assert lane.peaks[-1].rss_bytes == 999


@pytest.mark.parametrize(
    ("peak_s", "expected"),
    [(5.5, [1, 2, 3, 6]), (2.5, [1, 2, 3, 4]), (50.0, [1, 2, 3, 4])],
    ids=["of a session without a row", "of a session with a row", "of no session"],
)
def test_the_session_at_the_peak_has_a_bar(peak_s: float, expected: list[int]) -> None:
    def parsed_until(second: int) -> ProgramSession:
        times = (PhaseTime(phase="parse", start_s=second - 1.0, end_s=float(second)),)
        return session(second, created_s=second, phase_times=times)

    record = run(*map(parsed_until, range(1, 9)), duration_s=60.0, peak_s=peak_s)
    (lane,) = run_timeline(record, max_rows=4).lanes
    assert [bar.number for bar in lane.bars] == expected
    assert [bar.row for bar in lane.bars] == [0, 1, 2, 3]
    assert lane.left_out == 4


@pytest.mark.parametrize(("peak_s", "expected"), [(4.0, [101, 102]), (9.0, [101, 103])])
def test_the_process_of_the_session_at_the_peak_has_a_lane(
    peak_s: float, expected: list[int]
) -> None:
    parse = PhaseTime(phase="parse", start_s=3.0, end_s=5.0)
    record = run(
        session(1, pid=101, created_s=1.0, phase_times=()),  # the only one with a rise
        session(2, pid=102, created_s=3.0, phases=(), phase_times=(parse,)),
        session(3, pid=103, created_s=3.0, phases=(), phase_times=()),
        processes=(process(101, 60), process(102, 50), process(103, 300)),
        peak_s=peak_s,
    )
    assert [lane.pid for lane in run_timeline(record, max_lanes=2).lanes] == expected


def test_processes_with_sessions_get_lanes_first() -> None:
    line = run_timeline(SERVER, max_lanes=2)
    assert [lane.pid for lane in line.lanes] == [100, 101]
    assert line.left_out == 1
    (mark,) = line.lanes[0].peaks
    assert mark.sentences == ("run of session 1 (a.onnx)", "x: 1×3×640×640")


@pytest.mark.parametrize(("count", "texts"), [(24, []), (30, ["and 6 more sessions"])])
def test_a_picture_names_the_number_of_sessions_that_it_does_not_draw(
    count: int, texts: list[str]
) -> None:
    sessions = [session(number, created_s=number / 10) for number in range(1, count + 1)]
    figure = draw(run(*sessions, duration_s=60.0))
    assert [text for part in figure.texts if (text := part.get_text()).startswith("and ")] == texts


def test_a_picture_has_the_whole_answer_and_its_legend_above_the_curves() -> None:
    record = replaced(SERVER, end_xrays_s=2.0)
    figure = draw(record)
    assert run_headline(record).first in [" ".join(t.get_text().split()) for t in figure.texts]
    axes = figure.axes[0]
    legend = axes.get_legend()
    assert legend is not None
    figure.draw_without_rendering()
    box, curves = legend.get_window_extent(), axes.get_window_extent()
    assert curves.y1 <= box.y0
    assert box.y1 <= min(text.get_window_extent().y0 for text in figure.texts)
    assert box.x1 <= figure.bbox.x1
