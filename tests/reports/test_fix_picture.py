"""The picture of a fix: numbered points on a line, their names below."""

import msgspec
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from memdiag.reports.fix import REPORT, draw
from memdiag.reports.fix.chart import pareto_points
from tests.reports import fix_records


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def marks(axes: Axes) -> list[tuple[float, str, bool]]:
    """Return height, marker and hollowness of each mark; lines and intervals have no marker."""
    return [
        (float(np.asarray(mark.get_ydata())[0]), str(mark.get_marker()), is_hollow(mark))
        for mark in axes.lines
        if mark.get_marker() != "None"
    ]


def is_hollow(mark: Line2D) -> bool:
    return mark.get_markerfacecolor() != mark.get_color()


def test_it_is_a_png() -> None:
    assert REPORT.render(fix_records.fix(), "png").startswith(b"\x89PNG\r\n\x1a\n")


def test_the_front_is_numbered_from_the_least_memory_on() -> None:
    figure = draw(fix_records.fix())
    assert texts(figure) == ["1", "2", "defaults", "1", "2, 3", "defaults"]
    assert figure.get_supxlabel() == (
        "1  optimization-off\n2  disable-prepacking + mmap-threshold (chosen)\n"
        "3  disable-prepacking"
    )
    line = figure.axes[0].lines[0]
    assert np.asarray(line.get_xdata()).tolist() == [60, 75]
    assert np.asarray(line.get_ydata()).tolist() == [2.5, 1.0]


def test_what_has_no_ratio_or_a_problem_is_not_drawn() -> None:
    assert [len(marks(axes)) for axes in draw(fix_records.fix()).axes[:2]] == [4, 4]


def test_a_point_that_may_equal_the_defaults_is_hollow_on_its_interval() -> None:
    point = fix_records.point
    chosen = point("chosen", at=(100, 60), ratio=0.97)
    points = (fix_records.DEFAULTS, chosen, point("slow", at=(90, 60), ratio=1.2))
    figure = draw(fix_records.fix(chosen, points))
    steady = figure.axes[0]
    assert sorted(marks(steady)) == [(1.0, "*", True), (1.0, "s", False), (1.2, "x", False)]
    lines = [np.asarray(line.get_ydata()).tolist() for line in steady.lines]
    assert any(np.allclose(line, [0.92, 1.02]) for line in lines if len(line) == 2)
    legend = figure.axes[2].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [
        "chosen",
        "defaults",
        "on the Pareto front",
        "others",
        "hollow: may be as fast as the defaults",
        "95 % interval of the latency",
    ]


def test_defaults_behind_the_front_are_named_all_the_same() -> None:
    behind = msgspec.structs.replace(fix_records.DEFAULTS, on_front=False)
    figure = draw(fix_records.fix(fix_records.CHOSEN, (behind, fix_records.CHOSEN)))
    assert sorted(texts(figure)) == ["1", "1", "defaults", "defaults"]


def test_one_point_is_a_picture_too() -> None:
    assert texts(draw(fix_records.fix(fix_records.DEFAULTS, (fix_records.DEFAULTS,)))) == ["1", "1"]


def test_the_front_is_numbered_and_what_was_not_compared_is_left_out() -> None:
    points = pareto_points(fix_records.fix())
    assert [(one.number, one.label) for one in points] == [
        (1, "optimization-off"),
        (2, "disable-prepacking + mmap-threshold"),
        # Its peak is that of the second, and so is its latency, as far as that is known.
        (3, "disable-prepacking"),
        (0, "defaults"),
    ]
    assert [one.is_chosen for one in points] == [False, True, False, False]
    assert [one.is_defaults for one in points] == [False, False, False, True]


def test_no_point_is_marked_that_another_one_beats_in_both_figures_drawn() -> None:
    point = fix_records.point
    points = (
        fix_records.DEFAULTS,
        # The least peak, at the price of steady memory: not on the front of steady memory.
        point("low-peak", at=(80, 140), ratio=1.4, on_front=True),
        point("low-steady", at=(190, 60), ratio=1.3, on_front=True),
        # Between both: on the front of all three figures, and of no two of them.
        point("between", at=(150, 120), ratio=1.45, on_front=True),
    )
    found = {one.label: one for one in pareto_points(fix_records.fix(points[1], points))}
    assert {name: (one.on_steady_front, one.on_peak_front) for name, one in found.items()} == {
        "defaults": (True, True),
        "low-peak": (False, True),
        "low-steady": (True, True),
        "between": (False, False),
    }
    assert {name: one.number for name, one in found.items()} == {
        "low-steady": 1,
        "low-peak": 2,
        "defaults": 3,
        "between": 0,
    }


def test_a_latency_that_may_be_that_of_the_defaults_is_drawn_as_theirs() -> None:
    point = fix_records.point
    points = (
        fix_records.DEFAULTS,
        point("a", at=(100, 60), ratio=0.97),
        point("b", at=(90, 60), ratio=0.9),
    )
    found = {one.label: one for one in pareto_points(fix_records.fix(points[0], points))}
    assert (found["a"].ratio, found["a"].drawn_ratio) == (0.97, 1.0)
    assert (found["b"].ratio, found["b"].drawn_ratio) == (0.9, 0.9)
    assert not found["a"].on_steady_front


def test_a_ratio_without_an_interval_is_its_own() -> None:
    (defaults,) = (one for one in pareto_points(fix_records.fix()) if one.is_defaults)
    assert (defaults.low, defaults.ratio, defaults.high) == (1.0, 1.0, 1.0)


def test_a_point_that_cannot_be_used_is_no_point() -> None:
    broken = msgspec.structs.replace(fix_records.CHOSEN, problem="it ended")
    points = pareto_points(fix_records.fix(broken, (fix_records.DEFAULTS, broken)))
    assert [one.label for one in points] == ["defaults"]
