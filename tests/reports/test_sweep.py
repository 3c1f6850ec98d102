"""The report of a sweep: sentences, the summary on a terminal, Markdown."""

import io
import re
from itertools import pairwise

import msgspec
import pytest
from rich.console import Console

from memdiag.detail import Detail
from memdiag.records import codec
from memdiag.records.sweep import PlacedModel, Placement, PlacementMachine, Sweep
from memdiag.reports.sweep import REPORT
from memdiag.reports.sweep.sentences import failed_jobs_by_sentence, sweep_headline
from memdiag.reports.sweep.tables import placement_sentence
from memdiag.units import MIB
from tests.reports import sweeps


def printed(sweep: Sweep, *, detail: Detail = Detail.ALL, width: int = 80) -> str:
    out = io.StringIO()
    REPORT.print_summary(sweep, Console(file=out, width=width, highlight=False), detail=detail)
    return out.getvalue()


def markdown(sweep: Sweep) -> str:
    return REPORT.markdown(sweep)


def test_the_answer_counts_jobs_waste_and_changes() -> None:
    answer = sweep_headline(sweeps.sweep())
    assert answer.first == (
        "1 of 4 models takes more memory than necessary: 90 MiB after the runs (minilm.onnx)."
    )
    assert answer.lines == (
        "12 jobs of 4 models on 3 releases of onnxruntime, 1.22.1 to 1.32.0 (figures: the newest),"
        " at tokens=512 or default sizes (--dim); 3 failed.",
        "1 model: shared-weight-transposed.",
        "1.22.1 → 1.24.4: 1 model shrank (most: vits.onnx, -50 MiB at the peak, first in prepack).",
        "1.24.4 → 1.32.0: 1 model grew (most: albert.onnx, +212 MiB at the peak, first in"
        " prepack).",
        "Estimated peaks differ from the measured ones by 2.0 % (median), and 19 of 20 differ"
        " by at most 2.0 %.",
    )


def test_the_answer_names_the_release_and_the_sizes() -> None:
    def measured(*dims: str) -> str:
        each = sweeps.series("a.onnx", 9)
        series = tuple(msgspec.structs.replace(each, dims=text) for text in dims)
        record = sweeps.sweep(series=series, findings=(), releases=("1.22.1",))
        assert "Models, on onnxruntime 1.22.1, the" in printed(record)
        return sweep_headline(record).first

    assert measured("batch=4") == "1 job of 1 model on onnxruntime 1.22.1, at batch=4."
    assert measured("") == "1 job of 1 model on onnxruntime 1.22.1, at default sizes (--dim)."
    assert measured("batch=4", "N=4").endswith("1.22.1, at batch=4 or N=4.")
    assert measured(*(f"batch={n}" for n in range(4))).endswith(", at 4 combinations of sizes.")
    two = sweeps.sweep(series=(sweeps.series("a.onnx", 9, 9),), releases=sweeps.RELEASES[:2])
    assert "on 2 releases of onnxruntime, 1.22.1 and 1.24.4 (figures: the newest)," in (
        sweep_headline(msgspec.structs.replace(two, findings=())).first
    )
    assert "Models, on the newest release, the" in printed(two)


def test_jobs_of_earlier_sweeps_are_counted_apart() -> None:
    series = sweeps.series("a.onnx", 9, 9)
    assert "earlier" not in sweep_headline(sweeps.sweep(series=(series,))).first
    old = msgspec.structs.replace(series.points[0], is_requested=False)
    series = msgspec.structs.replace(series, points=(old, series.points[1]))
    assert sweep_headline(sweeps.sweep(series=(series,))).first.endswith(
        " This sweep names 1 of these 2 jobs; the others are of earlier sweeps."
    )


def test_a_comparison_with_a_store_answers_that_first() -> None:
    answer = sweep_headline(sweeps.sweep(against="nightly"))
    assert answer.first == (
        "Regression: 1 model needs more memory than in nightly (most: albert.onnx, +212 MiB at the"
        " peak, first in prepack)."
    )


def compared(*is_failed: bool, is_new: bool = True) -> str:
    """Return the answer for models with two points, of which the second is new."""
    models = [sweeps.series(f"{n}.onnx", 9, None if f else 9) for n, f in enumerate(is_failed)]
    marked = tuple(
        msgspec.structs.replace(
            each, points=(each.points[0], msgspec.structs.replace(each.points[1], is_new=is_new))
        )
        for each in models
    )
    return sweep_headline(sweeps.sweep(against="nightly", series=marked)).first


def test_without_a_regression_the_models_that_were_compared_are_counted() -> None:
    assert compared(False, False) == (
        "Of 2 models, none needs more memory than in nightly, beyond the noise."
    )
    assert compared(False, is_new=False) == (
        "Nothing new was measured: each job is in nightly already, with the same model, release,"
        " sizes and options. Measure them again into another folder (--out)."
    )
    only_new = sweeps.series("a.onnx", 9)
    points = (msgspec.structs.replace(only_new.points[0], is_new=True),)
    record = sweeps.sweep(
        against="nightly", series=(msgspec.structs.replace(only_new, points=points),)
    )
    assert sweep_headline(record).first.startswith(
        "Nothing is compared with nightly: no model was measured both there and now."
    )
    assert record.compares_nothing
    assert not msgspec.structs.replace(record, against="").compares_nothing


def test_a_model_that_fails_only_now_is_named() -> None:
    assert compared(False, True) == (
        "Of 1 model, none needs more memory than in nightly, beyond the noise. 1 model that"
        " completed there fails now: 1.onnx."
    )


def test_failures_with_the_same_sentence_are_one_without_the_path() -> None:
    ((sentence, jobs),) = failed_jobs_by_sentence(sweeps.sweep().requested_jobs)
    assert sentence == "the file ends inside initializer 'w'."
    assert len(jobs) == 3
    assert (
        failed_jobs_by_sentence(sweeps.sweep(series=(sweeps.series("a.onnx", 1),)).requested_jobs)
        == []
    )


def test_the_summary_fits_eighty_columns_and_quiet_is_the_answer() -> None:
    text = printed(sweeps.sweep())
    assert all(len(line) <= 80 for line in text.splitlines())
    for part in ("shared-weight-transposed", "+212 MiB", "the file ends inside", "899 MiB"):
        assert part in text
    quiet = printed(sweeps.sweep(), detail=Detail.ANSWER)
    assert text.startswith(quiet)
    assert "the file ends" not in quiet


def test_an_exceeded_budget_is_the_answer_and_precedes_the_tables() -> None:
    record = sweeps.over_budget(sweeps.sweep(against="nightly"))
    assert sweep_headline(record).first == "1 model exceeds the budget in 1 job: vits.onnx."
    assert sweep_headline(record).lines[0].startswith("Regression: ")
    text = printed(record)
    tables = text.split("\n\n")
    assert "tokens=512" in tables[1]
    assert "peak 899 MiB exceeds 500 MiB by 399 MiB" in tables[1]
    assert "peak 899 MiB exceeds 500 MiB by 399 MiB" in markdown(record)
    assert b"peak 899 MiB exceeds 500 MiB by 399 MiB" in REPORT.render(record, "html")
    assert "budget" not in printed(sweeps.sweep())


def test_the_placement_is_the_answer_also_when_quiet() -> None:
    def first(*machines: int, unplaced: int = 0) -> str:
        models = tuple(sweeps.series(f"{n}.onnx", 9) for n in range(sum(machines) + unplaced))
        placement = sweeps.placement(*machines, unplaced=unplaced)
        record = sweeps.over_budget(sweeps.sweep(series=models, placement=placement))
        assert sweep_headline(record).lines[0].startswith("1 model exceeds the budget")
        return sweep_headline(record).first

    assert first(2, 1) == (
        "3 models fit on 2 machines of 1.00 GiB: albert.onnx, albert.onnx on machine 1;"
        " albert.onnx on machine 2."
    )
    assert first(1, 0, unplaced=2) == (
        "1 of 3 models fits on 2 machines of 1.00 GiB: albert.onnx on machine 1; albert.onnx,"
        " albert.onnx on none."
    )
    assert first(0, unplaced=1) == "None of 1 model fits on 1 machine of 1.00 GiB."
    quiet = printed(sweeps.placed(), detail=Detail.ANSWER)
    assert quiet.startswith(
        "1 model fits on 1 machine of 1.00 GiB: albert.onnx on machine 1; 3 models\n"
    )
    table = printed(sweeps.placed()).split("\n\n")[1]
    assert table.startswith("Models that fit together:\nmachine")


def test_the_models_that_take_most_are_summed_once_each() -> None:
    small, large = (
        sweeps.series(f"{name}.onnx", 9, avoidable_bytes=size * sweeps.MIB)
        for name, size in (("small", 32), ("large", 233))
    )
    again = msgspec.structs.replace(small, dims="batch=4", avoidable_bytes=sweeps.MIB)
    answer = sweep_headline(sweeps.sweep(series=(small, again, large), findings=()))
    assert answer.first == (
        "2 models take more memory than necessary: 265 MiB after the runs, most large.onnx"
        " (233 MiB)."
    )
    assert "avoidable" in printed(sweeps.sweep(series=(small, again, large)))


def test_notes_precede_the_tables() -> None:
    record = sweeps.sweep(notes=("onnxruntime 1.0 is left out: unknown",))
    assert printed(record).split("\n\n")[1] == "note: onnxruntime 1.0 is left out: unknown"
    text = markdown(record)
    assert text.index("is left out") < text.index("| model |")


def test_changes_say_where_the_noise_is_assumed() -> None:
    for text in (printed(sweeps.sweep(noise_share=None)), markdown(sweeps.sweep(noise_share=None))):
        assert "too few repeated jobs" in text
    assert "too few repeated jobs" not in printed(sweeps.sweep())


def test_a_sweep_whose_jobs_failed_says_that_none_completed() -> None:
    record = sweeps.sweep(series=(sweeps.series("a.onnx", None),), findings=())
    assert sweep_headline(record).first.startswith("None of 1 job of 1 model on 3 releases")


def test_changes_of_the_same_model_have_their_sizes() -> None:
    record = sweeps.sweep(series=(sweeps.with_step("a.onnx", 1, 9, at=1),))
    assert not re.search("^model +sizes", printed(record), re.MULTILINE)
    sized = tuple(msgspec.structs.replace(each, dims="batch=4") for each in record.series)
    record = msgspec.structs.replace(record, series=sized)
    assert printed(record).count("batch=4") == 3  # of the answer, the change and the model


@pytest.mark.parametrize("width", [40, 60, 80])
def test_rows_that_differ_look_different_on_a_narrow_terminal(width: int) -> None:
    """The rows differ in the middle of the model's name, or at the end of the releases."""
    names = [f"organization/resnet50-batch-{n}/model.onnx" for n in (1, 2)]
    releases = ("1.33.0.dev20260130", "1.33.0.dev20260131", "1.33.0.dev20260201")
    series = []
    for at, name in enumerate(names, start=1):
        each = sweeps.with_step(name, 500, 500 + 200 * (at == 1), 700, at=at)
        points = tuple(
            msgspec.structs.replace(point, onnxruntime=release)
            for point, release in zip(each.points, releases, strict=True)
        )
        series.append(msgspec.structs.replace(each, points=points))
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


def test_an_empty_sweep_prints_one_line() -> None:
    assert printed(Sweep(store="s")) == "0 jobs of 0 models.\n"


def test_long_tables_say_how_many_rows_they_lack() -> None:
    count = 1500
    many = tuple(sweeps.series(f"{number}.onnx", 100 + number) for number in range(count))
    record = sweeps.sweep(series=many, findings=())
    for text, shown in (
        (printed(record, detail=Detail.USUAL), 8),
        (markdown(record), 50),
        (REPORT.render(record, "html").decode().partition("<footer>")[0], 1000),
    ):
        assert f"and {count - shown:,} more rows" in text
        names = set(re.findall(r"\b(\d+)\.onnx", text))
        assert {int(name) for name in names} == set(range(count - shown, count))
    assert "more rows" not in printed(record)


def test_markdown_escapes_names() -> None:
    text = markdown(sweeps.sweep(series=(sweeps.with_step("<b>|x.onnx", 1, 9, at=1),)))
    assert "### Lasting changes, beyond the noise" in text
    assert r"\<b\>\|x.onnx" in text
    assert "<b>" not in text.replace(r"\<b\>", "")


def test_a_sweep_is_read_as_it_was_written() -> None:
    record = sweeps.sweep()
    assert codec.decode(REPORT.render(record, "json"), Sweep) == record


def test_jobs_that_the_store_has_already_have_not_changed() -> None:
    record = sweeps.sweep(against="nightly", series=(sweeps.series("a.onnx", 9, 9),))
    assert not record.compares_nothing


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
