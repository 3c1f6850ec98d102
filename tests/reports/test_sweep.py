"""The report of a sweep: sentences, the summary on a terminal, Markdown."""

import re
from collections.abc import Callable
from itertools import pairwise

import pytest

from memdiag.detail import Detail
from memdiag.records.sweep import PlacedModel, Placement, PlacementMachine, Sweep, SweepSeries
from memdiag.reports.sweep.sentences import failed_jobs_by_sentence, sweep_headline
from memdiag.reports.sweep.tables import placement_sentence
from memdiag.units import MIB
from tests.reports import sweeps
from tests.reports.rendering import assert_sentences_approved, html, markdown, printed, replaced


def with_sizes(*dims: str, releases: int = 1) -> Sweep:
    """Return a sweep of one model with each of these sizes."""
    series = sweeps.series("a.onnx", *[9] * releases)
    return sweeps.sweep(
        series=tuple(replaced(series, dims=text) for text in dims),
        findings=(),
        releases=sweeps.RELEASES[:releases],
    )


def with_point(series: SweepSeries, number: int, **changes: object) -> SweepSeries:
    points = list(series.points)
    points[number] = replaced(points[number], **changes)
    return replaced(series, points=tuple(points))


def compared(*is_failed: bool, is_new: bool = True) -> Sweep:
    """Return models with two points, of which the second is new."""
    series = (
        sweeps.series(f"{number}.onnx", 9, None if failed else 9)
        for number, failed in enumerate(is_failed)
    )
    marked = tuple(with_point(jobs, 1, is_new=is_new) for jobs in series)
    return sweeps.sweep(against="nightly", series=marked)


def placed(*machines: int, unplaced: int = 0) -> Sweep:
    """Return a placement of models, one of which exceeds its budget."""
    models = tuple(sweeps.series(f"{n}.onnx", 9) for n in range(sum(machines) + unplaced))
    placement = sweeps.placement(*machines, unplaced=unplaced)
    return sweeps.over_budget(sweeps.sweep(series=models, placement=placement))


def wasting(name: str, mebibytes: int) -> SweepSeries:
    return sweeps.series(f"{name}.onnx", 9, avoidable_bytes=mebibytes * MIB)


SMALL, LARGE = wasting("small", 32), wasting("large", 233)
SUMMED = sweeps.sweep(
    series=(SMALL, replaced(SMALL, dims="batch=4", avoidable_bytes=MIB), LARGE), findings=()
)
ONE = sweeps.series("a.onnx", 9)
TWO_JOBS = sweeps.series("a.onnx", 9, 9)
ONLY_NEW = sweeps.sweep(against="nightly", series=(with_point(ONE, 0, is_new=True),))
ANSWERS = {
    "waste, changes and failures": sweeps.sweep(),
    "against a store": sweeps.sweep(against="nightly"),
    "over the budget": sweeps.over_budget(sweeps.sweep(against="nightly")),
    "one size": with_sizes("batch=4"),
    "default sizes": with_sizes(""),
    "two sizes": with_sizes("batch=4", "N=4"),
    "four sizes": with_sizes(*(f"batch={n}" for n in range(4))),
    "two releases": with_sizes("", releases=2),
    "all jobs were requested": sweeps.sweep(series=(TWO_JOBS,)),
    "one job is of an earlier sweep": sweeps.sweep(
        series=(with_point(TWO_JOBS, 0, is_requested=False),)
    ),
    "no regression": compared(False, False),
    "nothing new": compared(False, is_new=False),
    "nothing in both": ONLY_NEW,
    "fails only now": compared(False, True),
    "all placed": placed(2, 1),
    "some placed": placed(1, 0, unplaced=2),
    "none placed": placed(0, unplaced=1),
    "models that take most": SUMMED,
    "all failed": sweeps.sweep(series=(sweeps.series("a.onnx", None),), findings=()),
    "empty": Sweep(store="s"),
}


def test_the_answer_counts_jobs_waste_and_changes() -> None:
    answers = {case: sweep_headline(record) for case, record in ANSWERS.items()}
    texts = {case: (answer.first, *answer.lines) for case, answer in answers.items()}
    assert_sentences_approved("sweep_headlines", texts)


def test_a_sweep_compares_nothing_if_no_model_is_in_both() -> None:
    assert ONLY_NEW.compares_nothing
    assert not replaced(ONLY_NEW, against="").compares_nothing
    # Jobs that the store has already have not changed.
    assert not sweeps.sweep(against="nightly", series=(TWO_JOBS,)).compares_nothing


def test_tables_name_the_release_and_have_columns_for_what_there_is() -> None:
    assert "Models, on onnxruntime 1.22.1, the" in printed(ANSWERS["one size"])
    assert "Models, on the newest release, the" in printed(ANSWERS["two releases"])
    assert "avoidable" in printed(SUMMED)
    assert "budget" not in printed(sweeps.sweep())
    assert printed(ANSWERS["empty"]) == "0 jobs of 0 models.\n"


def test_failures_with_the_same_sentence_are_one_without_the_path() -> None:
    ((sentence, jobs),) = failed_jobs_by_sentence(sweeps.sweep().requested_jobs)
    assert (sentence, len(jobs)) == ("the file ends inside initializer 'w'.", 3)
    assert failed_jobs_by_sentence(sweeps.sweep(series=(ONE,)).requested_jobs) == []


@pytest.mark.parametrize("build", [sweeps.sweep, sweeps.placed])
def test_the_summary_fits_eighty_columns_and_begins_with_the_answer(
    build: Callable[[], Sweep],
) -> None:
    text = printed(build())
    assert max(map(len, text.splitlines())) <= 80
    assert text.startswith(printed(build(), detail=Detail.ANSWER))


def test_an_exceeded_budget_precedes_the_tables_and_is_on_the_page() -> None:
    record = ANSWERS["over the budget"]
    exceeded = "peak 899 MiB exceeds 500 MiB by 399 MiB"
    assert exceeded in printed(record).split("\n\n")[1]
    assert exceeded in html(record)


def test_notes_precede_the_tables() -> None:
    record = sweeps.sweep(notes=("onnxruntime 1.0 is left out: unknown",))
    assert printed(record).split("\n\n")[1] == "note: onnxruntime 1.0 is left out: unknown"
    text = markdown(record)
    assert text.index("is left out") < text.index("| model |")


def test_changes_say_where_the_noise_is_assumed() -> None:
    assumed = sweeps.sweep(noise_share=None)
    assert "too few repeated jobs" in printed(assumed)
    assert "too few repeated jobs" in markdown(assumed)
    assert "too few repeated jobs" not in printed(sweeps.sweep())


def test_changes_of_the_same_model_have_their_sizes() -> None:
    record = sweeps.sweep(series=(sweeps.with_step("a.onnx", 1, 9, at=1),))
    assert not re.search("^model +sizes", printed(record), re.MULTILINE)
    sized = tuple(replaced(series, dims="batch=4") for series in record.series)
    # Those of the answer, the change and the model.
    assert printed(replaced(record, series=sized)).count("batch=4") == 3


@pytest.mark.parametrize("width", [40, 60, 80])
def test_rows_that_differ_look_different_on_a_narrow_terminal(width: int) -> None:
    """The rows differ in the middle of the model's name, or at the end of the releases."""
    names = [f"organization/resnet50-batch-{n}/model.onnx" for n in (1, 2)]
    releases = ("1.33.0.dev20260130", "1.33.0.dev20260131", "1.33.0.dev20260201")
    series = []
    for at, name in enumerate(names, start=1):
        stepping = sweeps.with_step(name, 500, 500 + 200 * (at == 1), 700, at=at)
        for number, release in enumerate(releases):
            stepping = with_point(stepping, number, onnxruntime=release)
        series.append(stepping)
    text = printed(sweeps.sweep(series=tuple(series)), width=width)
    (changes,) = [part for part in text.split("\n\n") if part.startswith("Lasting changes")]
    assert "…" not in changes
    assert all(len(line) <= width for line in text.splitlines())
    heading, *rows = changes.splitlines()[1:]
    starts = [heading.index(word) for word in ("model", "where", "figure")]
    # The lines of a cell, joined.
    models, places = (
        "".join(row[start:end].replace(" ", "") for row in rows) for start, end in pairwise(starts)
    )
    assert all(name in models for name in names)
    assert f"{releases[0]}→{releases[1]}" in places
    assert f"{releases[1]}→{releases[2]}" in places


def test_long_tables_say_how_many_rows_they_lack() -> None:
    count = 1500
    many = tuple(sweeps.series(f"{number}.onnx", 100 + number) for number in range(count))
    record = sweeps.sweep(series=many, findings=())
    for text, shown in (
        (printed(record, detail=Detail.USUAL), 8),
        (markdown(record), 50),
        (html(record).partition("<footer>")[0], 1000),
    ):
        assert f"and {count - shown:,} more rows" in text
        names = set(re.findall(r"\b(\d+)\.onnx", text))
        assert {int(name) for name in names} == set(range(count - shown, count))
    assert "more rows" not in printed(record)


def test_markdown_escapes_names() -> None:
    text = markdown(sweeps.sweep(series=(sweeps.with_step("<b>|x.onnx", 1, 9, at=1),)))
    assert r"\<b\>\|x.onnx" in text
    assert "<b>" not in text.replace(r"\<b\>", "")


def test_a_model_that_fits_nowhere_is_not_said_to_lack_room_beside_others() -> None:
    large, small = (
        PlacedModel(model=name, key=name, peak_bytes=size * MIB, steady_bytes=size * MIB)
        for name, size in (("large.onnx", 937), ("small.onnx", 300))
    )
    machine = PlacementMachine(memory_bytes=512 * MIB, needed_bytes=400 * MIB, models=())
    sentence = placement_sentence(
        Placement(machines=(machine,), margin=0.1, unplaced=(large, small))
    )
    assert "1 model fits on no machine, even alone: large.onnx (937 MiB)." in sentence
    assert "1 model fits on no machine with others: small.onnx (300 MiB)." in sentence
