"""Estimates on a terminal, in Markdown, as a page, as a picture, and for other programs."""

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from memdiag.api.load import load
from memdiag.detail import Detail
from memdiag.errors import RecordError
from memdiag.records import codec
from memdiag.records.estimate import Estimate, EstimatedPoint, Fit, Reduction
from memdiag.reports import report_of
from memdiag.reports.estimate.chart import estimate_chart
from memdiag.reports.estimate.machine_formats import estimated_resources
from memdiag.reports.estimate.sentences import (
    fit_text,
    interval_text,
    reduction_lines,
)
from memdiag.reports.estimate.tables import (
    TERM_COLORS,
    estimated_phase_table,
    live_tensor_table,
    point_grid,
    point_table,
    tensor_growth_text,
)
from memdiag.reports.palette import colors_by_kind
from memdiag.units import GIB, MIB
from tests.fixing.renamed import finding
from tests.reports import estimates

BASELINE = 50 * MIB


def summary(estimate: Estimate, *, detail: Detail = Detail.ALL) -> str:
    console = Console(file=io.StringIO(), width=80)
    report_of(estimate).print_summary(estimate, console, detail=detail)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_sizes_at_which_the_model_does_not_run_have_no_figure() -> None:
    record = estimates.line()  # at batch 1, 32 and 64
    assert "The largest of 3 points" in words(record)
    failing = msgspec.structs.replace(record, fit=estimates.fit(fails_at=34))
    assert [failing.may_run(each) for each in failing.points] == [True, True, False]
    assert failing.fits(failing.points[-1], estimates.LIMIT) == "does not run"
    assert "The largest of 2 points" in words(failing)
    assert "does not run" in words(failing)
    grid = msgspec.structs.replace(estimates.grid(), fit=estimates.fit(fails_at=16))
    # It failed with 128 tokens: with more it is not known.
    assert [grid.may_run(each) for each in grid.points] == [True, True, True, False, True, True]


def words(estimate: Estimate) -> str:
    return " ".join(summary(estimate).split())


def test_the_first_line_is_the_answer() -> None:
    assert " ".join(summary(estimates.single(), detail=Detail.ANSWER).split()).startswith(
        "encoder.onnx needs 200 MiB at its peak (190 to 220 MiB) and 158 MiB after that, at"
        " batch 1 × tokens 128, under onnxruntime 1.32.0: predicted, not measured."
    )


def test_with_a_known_process_the_answer_is_the_total() -> None:
    text = words(estimates.single(BASELINE))
    assert "needs 250 MiB at its peak (240 to 270 MiB) and 208 MiB after that" in text
    assert "That includes 50 MiB of Python" in text
    assert "optimize 200 MiB 100 MiB 250 MiB 150 MiB embed.weight" in text
    assert "are not included: their size is not known" in words(estimates.single())


def test_the_interval_includes_what_malloc_keeps_unless_measurements_corrected_it() -> None:
    text = words(estimates.single())
    assert "(190 to 220 MiB)" in text
    assert "with MALLOC_MMAP_THRESHOLD_=131072 in the environment it ends at 210 MiB." in text
    corrected = msgspec.structs.replace(
        estimates.single(), calibration=estimates.measured().calibration
    )
    assert "MALLOC_MMAP_THRESHOLD_" not in words(corrected)


def unknown(estimate: Estimate, *, is_bounded: bool = False, is_measured: bool = False) -> Estimate:
    points = (
        msgspec.structs.replace(
            point, unknown_values=3, is_bounded=is_bounded, is_measured=is_measured
        )
        for point in estimate.points
    )
    return msgspec.structs.replace(estimate, points=tuple(points))


def test_values_of_unknown_size_make_it_a_floor() -> None:
    floor = unknown(estimates.single())
    for record, marked in ((floor, {"first_run", "steady"}), (estimates.single(), set())):
        rows = [row.cells for row in estimated_phase_table(record).rows]
        assert {name.text for name, peak, *_ in rows if peak.text.startswith("≥ ")} == marked
    for record in (floor, msgspec.structs.replace(floor, is_upper=True)):
        assert "needs at least 190 MiB at its peak, at batch" in words(record)
        assert "3 values whose sizes only a run shows are missing (--measure completes" in words(
            record
        )
        assert "interval" not in words(record)
    assert "# Too low: 3 values whose sizes only a run shows are missing" in estimated_resources(
        floor
    )
    measured = unknown(estimates.measured(), is_measured=True)
    assert "missing" not in words(measured)
    assert "by measurements; other data takes other sizes of 3 values." in words(measured)
    asked = Fit(limit_bytes=500 * MIB, problem="the size of 3 values is not known before a run")
    assert fit_text(msgspec.structs.replace(measured, fit=asked)).startswith(
        "With generated data, against 500 MiB: batch 1 × tokens 128 fits, batch 32 × tokens 128"
        " fits, batch 64 × tokens 128 doesn't fit. Of other data"
    )
    assert "Too low" not in estimated_resources(measured)


def test_values_of_limited_size_make_it_an_interval() -> None:
    text = words(unknown(estimates.single(), is_bounded=True))
    assert "needs 190 to 220 MiB at its peak, at batch" in text
    assert "not measured; it depends on 3 values whose sizes only a run shows." in text


def test_a_size_whose_values_are_not_known_is_not_said_to_fit() -> None:
    answers = {
        is_bounded: [
            row.cells[-1].text
            for row in point_table(unknown(estimates.line(), is_bounded=is_bounded)).rows
        ]
        for is_bounded in (True, False)
    }
    assert "yes" not in answers[False]
    assert {"unknown", "no"} == {*answers[False]}
    assert "yes" in answers[True]
    assert "at least" in words(unknown(estimates.line()))


def test_what_is_unknown_is_not_in_parts_and_reductions() -> None:
    halved = Reduction(change="tokens=64", peak_bytes=180 * MIB, run_bytes=0)
    known = msgspec.structs.replace(estimates.single(), reductions=(halved,))
    text = words(unknown(known))
    assert "memory after the runs, without values of unknown size:" in text
    assert "; and values of unknown size" in text
    assert reduction_lines(unknown(known))[1:] == [
        "these figures are without the values of unknown size"
    ]
    assert "unknown size" not in words(known)
    # A smaller size may well lower what is not known.
    text = "no smaller size lowers the peak"
    assert text in words(estimates.single())
    assert text not in words(unknown(estimates.single()))


def test_what_a_run_takes_for_inputs_that_decide_sizes_is_said() -> None:
    record = unknown(estimates.single())
    record = msgspec.structs.replace(record, size_inputs={"k": "ones", "n": "8, by its name"})
    text = "takes ones for k, 8, by its name for n; memdiag profile --input k=FILE.npy takes others"
    assert f"Sizes depend on values of inputs. --measure {text}." in words(record)
    assert "depend on values" not in words(unknown(estimates.single()))
    measured = msgspec.structs.replace(record, calibration=estimates.measured().calibration)
    assert "The measurement took ones for k" in words(measured)


@pytest.mark.parametrize(
    ("fit", "text"),
    [
        (
            estimates.fit(),
            "batch 31 surely fits in 400 MiB at tokens 128, whatever the data; 40 doesn't."
            " (predicted)",
        ),
        (
            estimates.fit(2, 3),
            "batch 16 needs 268 to 298 MiB, depending on the data. batch 2 surely fits in 400 MiB"
            " at tokens 128, whatever the data; 40 doesn't. (predicted)",
        ),
        (
            estimates.fit(None, None, too_large=12),
            "batch 16 does not fit in 400 MiB at tokens 128: it needs 370 to 420 MiB. (predicted)",
        ),
        (
            estimates.fit(None, None, too_large=17),
            "batch 16 may not fit in 400 MiB at tokens 128: it needs 370 to 420 MiB. (predicted)",
        ),
    ],
)
def test_the_answer_for_data_of_any_kind_is_about_the_sizes_asked_for(fit: Fit, text: str) -> None:
    points = (estimates.point(16), estimates.point(32))
    record = unknown(
        msgspec.structs.replace(estimates.single(), points=points, fit=fit), is_bounded=True
    )
    assert fit_text(record) == text


def test_an_upper_bound_has_no_interval() -> None:
    upper = msgspec.structs.replace(estimates.single(), is_upper=True)
    assert "may need up to 200 MiB at its peak and 158 MiB after that" in words(upper)


def test_phases_parts_and_tensors_are_listed() -> None:
    text = words(estimates.single())
    assert "first_run 154 MiB 154 MiB layer/MatMul" in text
    assert "weights 100 MiB 100 MiB embed.weight" in text
    assert "weight being converted 100 MiB " in text
    assert "scores float 1×8×128×128 512 KiB batch·tokens² layer/MatMul layer/Softmax" in text


def test_forms_of_one_value_are_told_apart() -> None:
    point = estimates.point()
    (scores,) = point.live
    blocks = msgspec.structs.replace(scores, form="in blocks")
    table = live_tensor_table(msgspec.structs.replace(point, live=(scores, blocks)))
    assert [row.cells[0].text for row in table.rows] == ["scores", "scores, in blocks"]


def test_sizes_are_a_grid_with_a_mark_where_they_do_not_fit() -> None:
    text = summary(estimates.grid())
    (heading,) = [line for line in text.splitlines() if line.endswith(" 512")]
    assert heading.split() == ["peak", "tokens", "128", "256", "512"]
    (row,) = [line for line in text.splitlines() if line.startswith("batch 16")]
    assert row.split() == ["batch", "16", "278", "MiB", "406", "MiB", "?", "662", "MiB", "✗"]
    sure = msgspec.structs.replace(estimates.grid(), points=estimates.grid().points[:1])
    assert "? may not fit" in text
    assert "? may not fit" not in summary(sure)
    assert point_grid(estimates.line()) is None
    assert "batch peak interval" in " ".join(summary(estimates.line()).split())


def uncertain(point: EstimatedPoint) -> EstimatedPoint:
    return msgspec.structs.replace(point, high_bytes=point.peak_bytes + 60 * MIB)


def test_a_size_whose_interval_ends_above_the_limit_fits_probably() -> None:
    points = tuple(estimates.point(batch) for batch in (16, 24, 31))
    points = (points[0], *(uncertain(point) for point in points[1:]))
    record = msgspec.structs.replace(estimates.line(), points=points)
    table = point_table(record)
    assert [row.cells[-1].text for row in table.rows] == ["yes", "probably", "probably not"]


def test_a_size_whose_interval_ends_above_the_limit_has_a_mark_in_the_grid() -> None:
    points = tuple(estimates.point(batch, tokens) for batch in (16, 24) for tokens in (128, 512))
    points = tuple(map(uncertain, points))
    text = words(msgspec.structs.replace(estimates.grid(), points=points))
    assert "batch 24 342 MiB ? " in text
    assert "✗ does not fit; ? may not fit: the limit is inside the interval" in text


@pytest.mark.parametrize(
    ("fit", "text"),
    [
        (
            estimates.fit(),
            "batch 31 surely fits in 400 MiB at tokens 128; 33 probably does; 40 doesn't."
            " (predicted; ± 8 %)",
        ),
        (
            estimates.fit(33),
            "batch 33 surely fits in 400 MiB at tokens 128; 40 doesn't. (predicted; ± 8 %)",
        ),
        (
            estimates.fit(None),
            "batch 33 probably fits in 400 MiB at tokens 128; 40 doesn't. (predicted; ± 8 %)",
        ),
        (
            estimates.fit(dims=("a", "b"), others={}, fails_at=34),
            "a = b = 31 surely fits in 400 MiB; 33 probably does; the model does not run at 34."
            " (predicted; ± 8 %)",
        ),
        (
            estimates.fit(too_large=None),
            "batch 31 surely fits in 400 MiB at tokens 128; 33 probably does; what larger sizes"
            " need is not known. (predicted; ± 8 %)",
        ),
        (
            estimates.fit(trial="not run", problem="33 may take 420 MiB, and 90 MiB are available"),
            "batch 31 surely fits in 400 MiB at tokens 128; 33 probably does; 40 doesn't."
            " (predicted; ± 8 %) Whether it runs there was not tried: 33 may take 420 MiB, and 90"
            " MiB are available.",
        ),
        (
            estimates.fit(trial="fails", problem="an index is out of bounds"),
            "What fits in 400 MiB cannot be said: the model does not run at batch 33 or less at"
            " tokens 128. Set other sizes with --dim. (an index is out of bounds)",
        ),
        (
            estimates.fit(None, None, too_large=1),
            "batch 1 does not fit in 400 MiB at tokens 128: it needs 370 to 420 MiB. (predicted)",
        ),
        (
            estimates.fit(None, None),
            "batch 1 may not fit in 400 MiB at tokens 128: it needs 370 to 420 MiB. (predicted)",
        ),
        (
            Fit(limit_bytes=205 * MIB),
            "encoder.onnx probably fits in 205 MiB: it needs 190 to 220 MiB. (predicted)",
        ),
        (
            Fit(limit_bytes=204 * MIB),
            "encoder.onnx probably doesn't fit in 204 MiB: it needs 190 to 220 MiB. (predicted)",
        ),
        (
            Fit(limit_bytes=189 * MIB),
            "encoder.onnx doesn't fit in 189 MiB: it needs 190 to 220 MiB. (predicted)",
        ),
        (
            Fit(limit_bytes=GIB),
            "encoder.onnx surely fits in 1.00 GiB: it needs 190 to 220 MiB. (predicted)",
        ),
        (
            Fit(limit_bytes=GIB, problem="the size of 2 values is not known before a run"),
            "What fits in 1.00 GiB cannot be said: the size of 2 values is not known before a run."
            " memdiag profile measures encoder.onnx at batch 1 × tokens 128.",
        ),
    ],
)
def test_what_fits_is_the_first_sentence(fit: Fit, text: str) -> None:
    record = msgspec.structs.replace(estimates.single(), fit=fit)
    assert " ".join(summary(record, detail=Detail.ANSWER).split()) == text
    assert words(record).startswith(f"{text} encoder.onnx needs 200 MiB at its peak")
    assert ("nothing was run" in words(record)) == (fit.trial == "not run")


def test_a_tensor_that_grows_otherwise_states_the_factor() -> None:
    (tensor,) = estimates.point().live
    for growth, text in (
        ({"n": 2.0}, "n"),
        ({"n": 8.0, "m": 1.5}, "n³·m (×1.5 if doubled)"),
        ({}, ""),
    ):
        assert tensor_growth_text(msgspec.structs.replace(tensor, growth=growth)) == text


def test_fp16_that_is_in_memory_in_fp32_is_a_sentence() -> None:
    found = finding("half-precision-cast", remedies=("model-to-fp32",))
    found = msgspec.structs.replace(found, message="3 fp16 weights are kept in fp32")
    record = msgspec.structs.replace(estimates.single(), findings=(found,))
    text = "3 fp16 weights are kept in fp32. memdiag fix tries model-to-fp32."
    assert f"fp16 {text}" in words(record)
    assert "fp16" not in words(estimates.single())


def test_what_lowers_the_peak_is_a_sentence() -> None:
    reductions = (
        Reduction(change="tokens=64", peak_bytes=150 * MIB, run_bytes=0),
        Reduction(change="enable_mem_pattern=0", peak_bytes=180 * MIB, run_bytes=0),
    )
    record = msgspec.structs.replace(estimates.single(BASELINE), reductions=reductions)
    assert reduction_lines(record) == [
        "at tokens 64 the peak is 50 MiB lower (200 MiB)",
        "with enable_mem_pattern=0 the peak is 20 MiB lower (230 MiB)",
    ]
    numbered = tuple(
        msgspec.structs.replace(each, name="s77", role="sequence") for each in record.dimensions[:1]
    )
    smaller = (msgspec.structs.replace(reductions[0], change="s77=64"),)
    called = msgspec.structs.replace(record, dimensions=numbered, reductions=smaller)
    assert reduction_lines(called) == ["at sequence 64 the peak is 50 MiB lower (200 MiB)"]
    # Its peak is in optimize.
    only_option = msgspec.structs.replace(record, reductions=reductions[1:])
    assert reduction_lines(only_option)[1:] == [
        "no smaller size lowers the peak: it is in optimize, before the runs"
    ]
    in_run = msgspec.structs.replace(record.point, peak_phase="steady")
    in_run_only = msgspec.structs.replace(record, points=(in_run,), reductions=())
    assert reduction_lines(in_run_only) == []


def test_measured_points_state_the_error_that_is_left() -> None:
    text = words(estimates.measured())
    assert "predicted, and corrected by measurements" in text
    assert (
        "measured at batch 32 × tokens 128: 400 MiB above the process. The correction by the other"
        " points gives 420 MiB (+5.0 %), the estimate without it 406 MiB" in text
    )
    assert (
        "measured at batch 1 × tokens 128: 210 MiB above the process, predicted 200 MiB (-4.8 %)"
        in text
    )


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (190 * MIB, 210 * MIB, "190 to 210 MiB"),
        (1000 * MIB, GIB + 300 * MIB, "1,000 MiB to 1.29 GiB"),
        (0, MIB, "0 B to 1.0 MiB"),
    ],
)
def test_an_interval_names_its_unit_once(low: int, high: int, text: str) -> None:
    assert interval_text(low, high) == text


def test_a_container_gets_the_largest_point() -> None:
    text = estimated_resources(estimates.grid())
    assert "# encoder.onnx at batch 16 × tokens 512, onnxruntime 1.32.0: predicted" in text
    assert "# Add the memory of Python" in text
    assert text.endswith(
        "resources:\n  requests:\n    memory: 662Mi\n  limits:\n    memory: 682Mi\n"
    )
    known = estimated_resources(estimates.single(BASELINE + 1))
    assert "Includes 51Mi of Python" in known
    assert "memory: 209Mi" in known  # rounded up
    assert "memory: 271Mi" in known


def test_every_part_has_a_colour_of_its_own() -> None:
    assert len(set(TERM_COLORS.values())) == len(TERM_COLORS)
    assert set(TERM_COLORS.values()) <= colors_by_kind("light").keys()


def test_bars_add_up_to_the_peaks() -> None:
    chart = estimate_chart(estimates.grid())
    totals = [sum(sizes) for sizes in zip(*(t.peak_bytes for t in chart.terms), strict=True)]
    assert totals == [each.peak_bytes for each in estimates.point().phases]
    sizes = chart.sizes
    assert sizes is not None
    # The dimension with more sizes is across.
    assert (sizes.x_name, sizes.x, sizes.y_name, sizes.y) == (
        "tokens",
        (128, 256, 512),
        "batch",
        (1, 16),
    )
    assert sizes.peak_bytes[1][2] == 662 * MIB
    assert estimate_chart(estimates.single()).sizes is None


@pytest.mark.parametrize("name", ["single", "line", "grid", "measured"])
def test_all_reports_can_be_written_and_read_again(name: str, tmp_path: Path) -> None:
    record: Estimate = getattr(estimates, name)()
    report = report_of(record)
    written = report.write(record, tmp_path, report.default_formats())
    assert {path.name for path in written} == {
        "estimate.json",
        "report.html",
        "report.md",
        "estimate.png",
    }
    assert load(tmp_path) == record
    markdown = (tmp_path / "report.md").read_text()
    assert "| optimize | 200 MiB |" in markdown.replace("**", "")
    page = (tmp_path / "report.html").read_text()
    assert ("Peak over sizes" in page) == (name != "single")
    assert "<svg" in page


def test_a_record_without_its_peak_is_refused() -> None:
    record = estimates.single()
    for points in ((), (msgspec.structs.replace(record.point, peak_phase="prepack"),)):
        broken = msgspec.json.decode(codec.encode(record))
        broken["points"] = msgspec.to_builtins(points)
        with pytest.raises(RecordError, match="point"):
            codec.decode(msgspec.json.encode(broken), Estimate)
