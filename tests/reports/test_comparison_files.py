"""A comparison as files, and its timelines on one clock."""

import io
import zlib

import msgspec
import numpy
import pytest
from matplotlib import image
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from memdiag.records.comparison import ComparisonKind
from memdiag.reports.comparison import REPORT
from memdiag.reports.comparison.picture import column_timeline, draw
from tests.comparison.columns import column, measured
from tests.reports import comparisons, profiles


def test_the_schema_uses_the_names_of_the_contract() -> None:
    record = msgspec.json.decode(REPORT.render(comparisons.versions(), "json"))
    assert record["schema"] == "memdiag.comparison/1"
    assert {"label", "status", "message", "profile"} <= {*record["columns"][0]}
    assert {"metric", "phase", "from", "to", "bytes", "why"} <= {*record["changes"][0]}
    assert {"from", "to", "weights", "kind", "bytes"} <= {*record["copies"][0]}


def test_the_picture_is_one_that_is_not_blank_and_grows_with_the_columns() -> None:
    few, many = (
        numpy.asarray(image.imread(io.BytesIO(REPORT.render(build(), "png")), format="png"))
        for build in (comparisons.versions, comparisons.optimizers)
    )
    assert few.shape[1] == many.shape[1]
    assert few.shape[0] < many.shape[0]
    for pixels in (few, many):
        assert len(zlib.compress((pixels * 255).astype(numpy.uint8).tobytes())) > 20_000


def rectangles(axes: Axes) -> list[Rectangle]:
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


def test_the_picture_shows_every_column_in_every_panel() -> None:
    phases, lines, steady, load, run = draw(comparisons.versions()).axes
    assert [label.get_text() for label in steady.get_yticklabels()] == ["1.24.4", "1.31.1"]
    assert len(lines.lines) == 2
    assert [round(bar.get_width()) for bar in rectangles(load)] == [1000, 2000]
    assert [bar.get_width() for bar in rectangles(run)] == [1.0, 1.3]
    assert max(round(bar.get_height()) for bar in rectangles(phases)) == 1563
    anonymous, mapped, *_ = (round(bar.get_width()) for bar in rectangles(steady))
    assert (anonymous, mapped) == (1045, 10)
    text = REPORT.render(comparisons.versions(), "svg").decode()
    assert ">model.onnx: 3 versions of onnxruntime</text>" in text  # its letters are kept
    assert text.count(">1.31.1</text>") == 1  # the three panels side by side are labelled once


@pytest.mark.parametrize(
    ("kind", "times", "ratio", "panels"),
    [
        ("models", 2, (1.3, 1.2, 1.4), ["steady", "load", "latency"]),
        ("models", 2, None, ["steady", "load"]),
        ("models", 1, (1.3, 1.2, 1.4), ["steady", "latency"]),
        ("profiles", 1, None, ["steady"]),
    ],
)
def test_speed_has_bars_only_where_it_is_compared(
    kind: ComparisonKind,
    times: int,
    ratio: tuple[float, float, float] | None,
    panels: list[str],
) -> None:
    made = (column("a", measured(times=times)), column("b", measured(times=times), ratio=ratio))
    _, _, *bars = draw(comparisons.comparison(*made, kind=kind)).axes
    assert [axes.get_title(loc="left").partition(",")[0] for axes in bars] == panels


def test_the_clock_starts_where_the_session_does() -> None:
    line = column_timeline(column("a", profile=profiles.tied_if()))
    assert line is not None
    assert line.t_s[0] == 0
    assert 0 < line.first_run_s < line.t_s[-1]
    # What was not measured has no line.
    assert column_timeline(column("a", profile=None)) is None
    assert column_timeline(column("a", profile=profiles.nothing_seen())) is None
