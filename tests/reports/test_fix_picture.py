"""The picture of a fix: numbered points on a line, their names below."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from memdiag.records.fix import Fix
from memdiag.reports.fix import draw
from memdiag.reports.fix.chart import ParetoPoint, pareto_points
from tests.reports.fix_records import CHOSEN, DEFAULTS, fix, point
from tests.reports.rendering import replaced


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def marks(axes: Axes) -> list[tuple[float, str, bool]]:
    """Return height, marker and hollowness of each mark; lines and intervals have no marker."""
    return [
        (
            float(np.asarray(mark.get_ydata())[0]),
            str(mark.get_marker()),
            mark.get_markerfacecolor() != mark.get_color(),
        )
        for mark in axes.lines
        if mark.get_marker() != "None"
    ]


def points_by_label(record: Fix) -> dict[str, ParetoPoint]:
    return {drawn.label: drawn for drawn in pareto_points(record)}


def test_the_front_is_numbered_from_the_least_memory_on() -> None:
    assert [(drawn.number, drawn.label, drawn.is_chosen) for drawn in pareto_points(fix())] == [
        (1, "optimization-off", False),
        (2, "disable-prepacking + mmap-threshold", True),
        # Its peak is that of the second, and so is its latency, as far as that is known.
        (3, "disable-prepacking", False),
        (0, "defaults", False),  # others that cannot be used or were not compared are left out
    ]
    assert [drawn.is_defaults for drawn in pareto_points(fix())] == [False, False, False, True]
    figure = draw(fix())
    assert texts(figure) == ["1", "2", "defaults", "1", "2, 3", "defaults"]
    assert figure.get_supxlabel() == (
        "1  optimization-off\n2  disable-prepacking + mmap-threshold (chosen)\n"
        "3  disable-prepacking"
    )
    line = figure.axes[0].lines[0]
    assert np.asarray(line.get_xdata()).tolist() == [60, 75]
    assert np.asarray(line.get_ydata()).tolist() == [2.5, 1.0]
    assert [len(marks(axes)) for axes in figure.axes[:2]] == [4, 4]


def test_a_point_that_may_equal_the_defaults_is_hollow_on_its_interval() -> None:
    chosen = point("chosen", at=(100, 60), ratio=0.97)
    figure = draw(fix(chosen, (DEFAULTS, chosen, point("slow", at=(90, 60), ratio=1.2))))
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
    behind = replaced(DEFAULTS, on_front=False)
    figure = draw(fix(CHOSEN, (behind, CHOSEN)))
    assert sorted(texts(figure)) == ["1", "1", "defaults", "defaults"]


def test_one_point_is_a_picture_too() -> None:
    assert texts(draw(fix(DEFAULTS, (DEFAULTS,)))) == ["1", "1"]


def test_no_point_is_marked_that_another_one_beats_in_both_figures_drawn() -> None:
    points = (
        DEFAULTS,
        # The least peak, at the price of steady memory: not on the front of steady memory.
        point("low-peak", at=(80, 140), ratio=1.4, on_front=True),
        point("low-steady", at=(190, 60), ratio=1.3, on_front=True),
        # Between both: on the front of all three figures, and of no two of them.
        point("between", at=(150, 120), ratio=1.45, on_front=True),
    )
    drawn = points_by_label(fix(points[1], points))
    assert {
        name: (shown.number, shown.on_steady_front, shown.on_peak_front)
        for name, shown in drawn.items()
    } == {
        "low-steady": (1, True, True),
        "low-peak": (2, False, True),
        "defaults": (3, True, True),
        "between": (0, False, False),
    }


def test_a_latency_that_may_be_that_of_the_defaults_is_drawn_as_theirs() -> None:
    near, faster = point("a", at=(100, 60), ratio=0.97), point("b", at=(90, 60), ratio=0.9)
    drawn = points_by_label(fix(DEFAULTS, (DEFAULTS, near, faster)))
    assert (drawn["a"].ratio, drawn["a"].drawn_ratio) == (0.97, 1.0)
    assert (drawn["b"].ratio, drawn["b"].drawn_ratio) == (0.9, 0.9)
    assert not drawn["a"].on_steady_front
    defaults = drawn["defaults"]  # has no interval
    assert (defaults.low, defaults.ratio, defaults.high) == (1.0, 1.0, 1.0)


def test_a_point_that_cannot_be_used_is_no_point() -> None:
    broken = replaced(CHOSEN, problem="it ended")
    assert [*points_by_label(fix(broken, (DEFAULTS, broken)))] == ["defaults"]
