"""The report of a sweep: sentences, the summary on a terminal, Markdown."""

import io

import msgspec
from rich.console import Console

from memdiag.records import codec
from memdiag.records.sweep import Sweep
from memdiag.reports.sweep import REPORT, markdown
from memdiag.reports.sweep.sentences import failures, headline
from tests.reports import sweeps


def printed(sweep: Sweep, *, quiet: bool = False) -> str:
    out = io.StringIO()
    REPORT.print_summary(sweep, Console(file=out, width=80, highlight=False), quiet=quiet)
    return out.getvalue()


def test_the_answer_counts_jobs_waste_and_changes() -> None:
    answer = headline(sweeps.sweep())
    assert answer.first == "12 jobs of 4 models on 3 releases of onnxruntime, 3 failed."
    assert answer.lines == (
        "1 model takes more memory than necessary (90 MiB in all): shared-weight-transposed 1.",
        "1.22.1 → 1.24.4: 1 model shrank (most: vits.onnx, -50 MiB at the peak, from prepack).",
        "1.24.4 → 1.32.0: 1 model grew (most: albert.onnx, +212 MiB at the peak, from prepack).",
        "Estimated peaks differ from the measured ones by 2.0 % (median); 95 % of 12 by at most"
        " 2.0 %.",
    )


def test_a_comparison_with_a_store_answers_that_first() -> None:
    answer = headline(sweeps.sweep(against="nightly"))
    assert answer.first == (
        "Regression: 1 model needs more memory than in nightly (most: albert.onnx, +212 MiB at the"
        " peak, from prepack)."
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
    return headline(sweeps.sweep(against="nightly", series=marked)).first


def test_without_a_regression_the_models_that_were_compared_are_counted() -> None:
    assert compared(False, False) == (
        "Of 2 models, none needs more memory than in nightly, beyond the noise."
    )
    assert compared(False, is_new=False) == "Nothing is compared with nightly: no job is new."
    only_new = sweeps.series("a.onnx", 9)
    points = (msgspec.structs.replace(only_new.points[0], is_new=True),)
    record = sweeps.sweep(
        against="nightly", series=(msgspec.structs.replace(only_new, points=points),)
    )
    assert headline(record).first == (
        "Nothing is compared with nightly: no model was measured both there and now."
    )


def test_a_model_that_fails_only_now_is_named() -> None:
    assert compared(False, True) == (
        "Of 1 model, none needs more memory than in nightly, beyond the noise. 1 model that"
        " completed there fails now: 1.onnx."
    )


def test_failures_with_the_same_sentence_are_one_without_the_path() -> None:
    ((sentence, jobs),) = failures(sweeps.sweep())
    assert sentence == "the file ends inside initializer 'w'."
    assert len(jobs) == 3
    assert failures(sweeps.sweep(series=(sweeps.series("a.onnx", 1),))) == []


def test_the_summary_fits_eighty_columns_and_quiet_is_the_answer() -> None:
    text = printed(sweeps.sweep())
    assert all(len(line) <= 80 for line in text.splitlines())
    for part in ("shared-weight-transposed", "+212 MiB", "the file ends inside", "600 MiB"):
        assert part in text
    quiet = printed(sweeps.sweep(), quiet=True)
    assert text.startswith(quiet)
    assert "the file ends" not in quiet


def test_an_empty_sweep_prints_one_line() -> None:
    assert printed(Sweep(store="s")) == "0 jobs of 0 models.\n"


def test_markdown_folds_the_tables_and_escapes_names() -> None:
    text = markdown(sweeps.sweep(series=(sweeps.with_step("<b>|x.onnx", 1, 9, at=1),)))
    assert "<details><summary>Lasting changes, beyond the noise (1)</summary>" in text
    assert r"\<b\>\|x.onnx" in text
    assert "<b>" not in text.replace(r"\<b\>", "")


def test_a_sweep_is_read_as_it_was_written() -> None:
    record = sweeps.sweep()
    assert codec.decode(REPORT.render(record, "json"), Sweep) == record
