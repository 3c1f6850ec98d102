"""Workers in the reports of a profile: what they take, what one more costs, and what is shared."""

import io

import msgspec
import pytest
from rich.console import Console

from memdiag.api.budget import BudgetResult
from memdiag.cli.commands.profile import _print_result as print_result
from memdiag.records.budget import Budget, Judgement
from memdiag.records.profile import Profile
from memdiag.records.workers import (
    Arrangement,
    WorkerMemory,
    WorkerOwner,
    Workers,
    WorkerWeight,
)
from memdiag.reports.profile import REPORT
from memdiag.reports.profile.workers import (
    arrangement_table,
    process_table,
    shared_weight_table,
    worker_answer,
    worker_sentences,
)
from memdiag.units import MIB
from tests.reports import profiles


def memory(rss: int, pss: int, uss: int) -> WorkerMemory:
    return WorkerMemory(rss_bytes=rss * MIB, pss_bytes=pss * MIB, uss_bytes=uss * MIB)


def arrangement(*each: WorkerMemory, **changes: object) -> Arrangement:
    together = WorkerMemory(
        rss_bytes=sum(one.rss_bytes for one in each),
        pss_bytes=sum(one.pss_bytes for one in each),
        uss_bytes=sum(one.uss_bytes for one in each),
    )
    made = Arrangement(
        processes=len(each),
        sessions=1,
        callers=1,
        fork_after=None,
        shares_prepacked=False,
        each=each,
        together=together,
        latency_s=0.01 if len(each) == 1 else None,
    )
    return msgspec.structs.replace(made, **changes)


def profile(**changes: object) -> Profile:
    """Return the profile of two processes, whose weights could be shared."""
    workers = Workers(
        one=arrangement(memory(220, 210, 200)),
        asked=arrangement(memory(220, 205, 190), memory(220, 205, 190)),
        one_more_bytes=200 * MIB,
        owners=(
            WorkerOwner(
                kind="weights",
                name="packed",
                bytes=300 * MIB,
                private_bytes=300 * MIB,
                proportional_bytes=300 * MIB,
            ),
            WorkerOwner(
                kind="runtime_libraries",
                name="onnxruntime",
                bytes=60 * MIB,
                private_bytes=4 * MIB,
                proportional_bytes=32 * MIB,
            ),
        ),
        weights=(
            WorkerWeight(
                weights=("layer.weight", "tied.weight"),
                layouts=("packed_fp32",),
                copies=2,
                bytes=300 * MIB,
                private_bytes=300 * MIB,
                proportional_bytes=300 * MIB,
            ),
        ),
        proportional_bytes=332 * MIB,
        alternatives=(
            arrangement(memory(220, 125, 40), memory(220, 125, 40), shares_prepacked=True),
            arrangement(memory(230, 220, 210), callers=2, latency_s=0.03),
        ),
        notes=("A note.",),
    )
    made = msgspec.structs.replace(workers, **changes)
    return msgspec.structs.replace(profiles.tied_if(), workers=made)


def shown(made: Profile, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    REPORT.show(made, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_what_they_take_what_one_more_costs_and_what_would_be_less() -> None:
    together, one_more, saved, callers, note = worker_sentences(profile())
    assert together == (
        "2 processes: 410 MiB with shared pages counted once (PSS), 1.95 × one process with one"
        " session (210 MiB). Resident sets add up to 440 MiB, 380 MiB of them private."
    )
    assert one_more == (
        "One more process costs 200 MiB. Of each process 150 MiB private copies of weights,"
        " 2.0 MiB private pages of libraries are private, and 30 MiB are shared with others."
    )
    assert saved.endswith(
        "which all processes map: 250 MiB instead of 410 MiB. memdiag tune MODEL --only"
        " save-prepacked prints the program for that."
    )
    assert callers == (
        "1 process, 2 callers of a session: 220 MiB instead of 410 MiB; a run takes 30 ms then, and"
        " 10 ms alone."
    )
    assert note == "A note."


def test_sessions_and_callers_have_their_own_word() -> None:
    for changes, word in (({"sessions": 3}, "session"), ({"callers": 3}, "caller")):
        asked = arrangement(memory(400, 390, 380), **changes)
        sentences = worker_sentences(profile(asked=asked, alternatives=(), notes=()))
        assert sentences[1] == f"One more {word} costs 200 MiB."
        assert process_table(profile(asked=asked)).rows == ()


def test_the_tables_have_each_process_and_each_weight() -> None:
    made = profile()
    assert len(arrangement_table(made).rows) == 4
    assert [row.cells[1].text for row in process_table(made).rows] == ["220 MiB", "220 MiB"]
    (row,) = shared_weight_table(made).rows
    assert [cell.text for cell in row.cells][1:] == [
        *("2", "packed_fp32", "300 MiB", "300 MiB", "300 MiB"),
    ]
    without = profiles.tied_if()
    assert worker_sentences(without) == []
    for table in (arrangement_table(without), process_table(without), shared_weight_table(without)):
        assert table.rows == ()


def test_every_report_has_them() -> None:
    made = profile()
    for text in (shown(made), REPORT.render(made, "markdown").decode()):
        assert "One more process costs 200 MiB." in " ".join(text.split())
    page = REPORT.render(made, "html").decode()
    assert 'id="h-workers"' in page
    assert "Each process" in page
    assert 'id="h-workers"' not in REPORT.render(profiles.tied_if(), "html").decode()
    assert "measured together" not in shown(profiles.tied_if())
    assert max(map(len, shown(made, 80).splitlines())) <= 80


def test_the_first_line_states_what_one_more_costs_and_what_would_be_less() -> None:
    assert worker_answer(profile()) == (
        "2 processes: 410 MiB together, and one more process costs 200 MiB. They would take 250 MiB"
        " with saved packed weights or 220 MiB as 1 process, 2 callers of a session."
    )
    larger = arrangement(memory(430, 420, 410), callers=2)
    for alternatives in ((), (larger,)):
        assert worker_answer(profile(alternatives=alternatives)) == (
            "2 processes: 410 MiB together, and one more process costs 200 MiB."
        )
    assert shown(profile()).startswith("tied_if.onnx: 2 processes: 410 MiB together")
    assert worker_answer(profiles.tied_if()) == ""


@pytest.mark.parametrize("is_judged", [False, True])
def test_workers_that_could_not_be_measured_end_with_2(
    capsys: pytest.CaptureFixture[str], is_judged: bool
) -> None:
    made = profiles.tied_if()
    if is_judged:
        judgement = Judgement(
            model="model.onnx",
            onnxruntime="1.32.0",
            figures={"peak": 1},
            processes=1,
            budget=Budget(),
            breaches=(),
        )
        made = msgspec.structs.replace(made, judgement=judgement)
    reason = "no workers were measured: 2 GiB are available. Ask for fewer."
    refused = msgspec.structs.replace(made, notes=(*made.notes, reason))
    for printed, code in ((made, 0), (refused, 2)):
        result = BudgetResult(profile=printed)
        assert print_result(result, None, (), format="console", quiet=True) == code
        assert (reason in capsys.readouterr().err) == (code == 2)
