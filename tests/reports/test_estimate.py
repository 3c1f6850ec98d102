"""Estimates on a terminal, in Markdown, as a page, as a picture, and for other programs."""

from typing import Any

import msgspec
import pytest

from memdiag.detail import Detail
from memdiag.errors import RecordError
from memdiag.records import codec
from memdiag.records.estimate import Estimate, EstimatedPoint, Fit, Reduction
from memdiag.reports.estimate.chart import estimate_chart
from memdiag.reports.estimate.machine_formats import estimated_resources
from memdiag.reports.estimate.sentences import fit_text, interval_text, reduction_lines
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
from tests.reports.estimates import BASELINE
from tests.reports.rendering import (
    assert_sentences_approved,
    printed,
    replaced,
    table_lines,
    words,
)


def unknown(estimate: Estimate, **fields: bool) -> Estimate:
    """Return `estimate` with three values of unknown size at each point."""
    points = (replaced(point, unknown_values=3, **fields) for point in estimate.points)
    return replaced(estimate, points=tuple(points))


SINGLE = estimates.single()
FLOOR = unknown(SINGLE)
MEASURED_POINTS = estimates.measured().calibration
DECIDED_BY_INPUTS = replaced(FLOOR, size_inputs={"k": "ones", "n": "8, by its name"})
FIRST_SENTENCES = {
    "known values": SINGLE,
    "in a known process": estimates.single(BASELINE),
    "upper bound": replaced(SINGLE, is_upper=True),
    "corrected by measurements": replaced(SINGLE, calibration=MEASURED_POINTS),
    "values of unknown size": FLOOR,
    "values of unknown size, upper bound": replaced(FLOOR, is_upper=True),
    "values of limited size": unknown(SINGLE, is_bounded=True),
    "values of measured size": unknown(estimates.measured(), is_measured=True),
    "sizes decided by inputs": DECIDED_BY_INPUTS,
    "sizes decided by inputs, measured": replaced(DECIDED_BY_INPUTS, calibration=MEASURED_POINTS),
    "three sizes": estimates.line(),
    "the largest does not run": replaced(estimates.line(), fit=estimates.fit(fails_at=34)),
}


def test_what_is_known_is_told_first() -> None:
    sentences = {
        case: (" ".join(printed(record).partition("\n\n")[0].split()),)
        for case, record in FIRST_SENTENCES.items()
    }
    assert_sentences_approved("estimate_answers", sentences)


def test_fp16_that_is_in_memory_in_fp32_is_a_sentence() -> None:
    cast = finding("half-precision-cast", remedies=("model-to-fp32",))
    cast = replaced(cast, message="3 fp16 weights are kept in fp32")
    told = "fp16 3 fp16 weights are kept in fp32. memdiag fix tries model-to-fp32."
    assert told in words(replaced(SINGLE, findings=(cast,)))
    assert "fp16" not in words(SINGLE)


FITS = {
    "surely, probably and not": estimates.fit(),
    "surely and not": estimates.fit(33),
    "probably and not": estimates.fit(None),
    "two sizes, not run at the next": estimates.fit(dims=("a", "b"), others={}, fails_at=34),
    "the next is not known": estimates.fit(too_large=None),
    "not tried": estimates.fit(
        trial="not run", problem="33 may take 420 MiB, and 90 MiB are available"
    ),
    "fails at all sizes": estimates.fit(trial="fails", problem="an index is out of bounds"),
    "one does not fit": estimates.fit(None, None, too_large=1),
    "one may not fit": estimates.fit(None, None),
    "no size, usual need is the limit": Fit(limit_bytes=205 * MIB),
    "no size, usual need is more": Fit(limit_bytes=204 * MIB),
    "no size, least need is more": Fit(limit_bytes=189 * MIB),
    "no size, largest need is less": Fit(limit_bytes=GIB),
    "no size, not known": Fit(
        limit_bytes=GIB, problem="the size of 2 values is not known before a run"
    ),
}
FITS_WITH_DATA_OF_ANY_KIND = {
    "all sizes asked for": estimates.fit(),
    "not those asked for": estimates.fit(2, 3),
    "smaller ones do not": estimates.fit(None, None, too_large=12),
    "larger ones do not": estimates.fit(None, None, too_large=17),
}


def test_what_fits_is_the_first_sentence() -> None:
    records = {case: replaced(SINGLE, fit=fit) for case, fit in FITS.items()}
    answers = {case: words(record, detail=Detail.ANSWER) for case, record in records.items()}
    points = (estimates.point(16), estimates.point(32))
    of_any = unknown(replaced(SINGLE, points=points), is_bounded=True)
    measured = unknown(estimates.measured(), is_measured=True)
    problem = "the size of 3 values is not known before a run"
    sentences = {
        **answers,
        **{
            f"data of any kind: {case}": fit_text(replaced(of_any, fit=fit))
            for case, fit in FITS_WITH_DATA_OF_ANY_KIND.items()
        },
        "measured with generated data": fit_text(
            replaced(measured, fit=Fit(limit_bytes=500 * MIB, problem=problem))
        ),
    }
    assert_sentences_approved("estimate_fits", {case: (text,) for case, text in sentences.items()})
    for case, record in records.items():
        text = words(record)
        assert text.startswith(f"{answers[case]} encoder.onnx needs 200 MiB at its peak")
        assert ("nothing was run" in text) == (FITS[case].trial == "not run")


def test_sizes_at_which_the_model_does_not_run_have_no_figure() -> None:
    failing = FIRST_SENTENCES["the largest does not run"]  # of batch 1, 32 and 64
    assert [failing.may_run(point) for point in failing.points] == [True, True, False]
    assert failing.fits(failing.points[-1], estimates.LIMIT) == "does not run"
    grid = replaced(estimates.grid(), fit=estimates.fit(fails_at=16))
    # It failed with 128 tokens: with more it is not known.
    assert [grid.may_run(point) for point in grid.points] == [True, True, True, False, True, True]


def uncertain(*points: EstimatedPoint) -> tuple[EstimatedPoint, ...]:
    """Return points with an interval that ends 60 MiB above the peak."""
    return tuple(replaced(point, high_bytes=point.peak_bytes + 60 * MIB) for point in points)


LINE, GRID = estimates.line(), estimates.grid()
(SCORES,) = estimates.point().live
FORMS = replaced(estimates.point(), live=(SCORES, replaced(SCORES, form="in blocks")))
POINTS = [estimates.point(batch) for batch in (16, 24, 31)]
WIDE_POINTS = [estimates.point(batch, tokens) for batch in (16, 24) for tokens in (128, 512)]


def test_tables_mark_what_is_unknown_and_what_does_not_fit() -> None:
    wide = point_grid(replaced(GRID, points=uncertain(*WIDE_POINTS)))
    assert wide is not None
    tables = {
        "phases": estimated_phase_table(SINGLE),
        "phases, values of unknown size": estimated_phase_table(FLOOR),
        "sizes": point_table(LINE),
        "sizes, values of unknown size": point_table(unknown(LINE)),
        "sizes, values of limited size": point_table(unknown(LINE, is_bounded=True)),
        "sizes, intervals end above the limit": point_table(
            replaced(LINE, points=(POINTS[0], *uncertain(*POINTS[1:])))
        ),
        "grid, intervals end above the limit": wide,
        "forms of one value": live_tensor_table(FORMS),
    }
    lines = {case: table_lines(table) for case, table in tables.items()}
    assert_sentences_approved("estimate_tables", lines)
    assert "? may not fit" not in words(replaced(GRID, points=GRID.points[:1]))
    assert point_grid(LINE) is None


def test_what_is_unknown_is_not_in_parts_and_reductions() -> None:
    halved = Reduction(change="tokens=64", peak_bytes=180 * MIB, run_bytes=0)
    known = replaced(SINGLE, reductions=(halved,))
    text = words(unknown(known))
    assert "memory after the runs, without values of unknown size:" in text
    assert "; and values of unknown size" in text
    assert reduction_lines(unknown(known))[1:] == [
        "these figures are without the values of unknown size"
    ]
    assert "unknown size" not in words(known)
    # A smaller size may well lower what is not known.
    assert "no smaller size lowers the peak" in words(SINGLE)
    assert "no smaller size lowers the peak" not in words(FLOOR)


@pytest.mark.parametrize(
    ("growth", "text"),
    [({"n": 2.0}, "n"), ({"n": 8.0, "m": 1.5}, "n³·m (×1.5 if doubled)"), ({}, "")],
)
def test_a_tensor_that_grows_otherwise_states_the_factor(
    growth: dict[str, float], text: str
) -> None:
    (tensor,) = estimates.point().live
    assert tensor_growth_text(replaced(tensor, growth=growth)) == text


def test_what_lowers_the_peak_is_a_sentence() -> None:
    size = Reduction(change="tokens=64", peak_bytes=150 * MIB, run_bytes=0)
    option = Reduction(change="enable_mem_pattern=0", peak_bytes=180 * MIB, run_bytes=0)
    record = estimates.single(BASELINE)

    def told(*reductions: Reduction, **changes: Any) -> list[str]:
        return reduction_lines(replaced(record, reductions=reductions, **changes))

    lower = "with enable_mem_pattern=0 the peak is 20 MiB lower (230 MiB)"
    assert told(size, option) == ["at tokens 64 the peak is 50 MiB lower (200 MiB)", lower]
    numbered = replaced(record.dimensions[0], name="s77", role="sequence")
    assert told(replaced(size, change="s77=64"), dimensions=(numbered,)) == [
        "at sequence 64 the peak is 50 MiB lower (200 MiB)"
    ]
    assert told(option) == [
        lower,
        "no smaller size lowers the peak: it is in optimize, before the runs",
    ]
    assert told(points=(replaced(record.point, peak_phase="steady"),)) == []


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
    for part in ("Includes 51Mi of Python", "memory: 209Mi", "memory: 271Mi"):  # rounded up
        assert part in known
    assert "# Too low: 3 values whose sizes only a run shows are" in estimated_resources(FLOOR)
    measured = unknown(estimates.measured(), is_measured=True)
    assert "Too low" not in estimated_resources(measured)


def test_every_part_has_a_colour_of_its_own() -> None:
    assert len(set(TERM_COLORS.values())) == len(TERM_COLORS)
    assert set(TERM_COLORS.values()) <= colors_by_kind("light").keys()


def test_bars_add_up_to_the_peaks() -> None:
    chart = estimate_chart(estimates.grid())
    totals = [sum(sizes) for sizes in zip(*(t.peak_bytes for t in chart.terms), strict=True)]
    assert totals == [phase.peak_bytes for phase in estimates.point().phases]
    sizes = chart.sizes
    assert sizes is not None
    # The dimension with more sizes is across.
    assert (sizes.x_name, sizes.x) == ("tokens", (128, 256, 512))
    assert (sizes.y_name, sizes.y) == ("batch", (1, 16))
    assert sizes.peak_bytes[1][2] == 662 * MIB
    assert estimate_chart(SINGLE).sizes is None


def test_a_record_without_its_peak_is_refused() -> None:
    for points in ((), (replaced(SINGLE.point, peak_phase="prepack"),)):
        broken = msgspec.json.decode(codec.encode(SINGLE))
        broken["points"] = msgspec.to_builtins(points)
        with pytest.raises(RecordError, match="point"):
            codec.decode(msgspec.json.encode(broken), Estimate)
