"""The picture of a tuning: numbered points on a line, their names below."""

import msgspec
import numpy as np
from matplotlib.figure import Figure

from memdiag.reports.tunings import png
from tests.reports import tuning_records as tunings


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_it_is_a_png() -> None:
    assert png.render(tunings.tuning()).startswith(b"\x89PNG\r\n\x1a\n")


def test_the_front_is_numbered_from_the_least_memory_on() -> None:
    figure = png.draw(tunings.tuning())
    assert texts(figure) == ["1", "2", "defaults", "1", "2, 3", "defaults"]
    assert figure.get_supxlabel() == (
        "1  optimization-off\n2  disable-prepacking + mmap-threshold (chosen)\n"
        "3  disable-prepacking"
    )
    line = figure.axes[0].lines[0]
    assert np.asarray(line.get_xdata()).tolist() == [60, 75]
    assert np.asarray(line.get_ydata()).tolist() == [2.5, 1.0]


def test_what_has_no_ratio_or_a_problem_is_not_drawn() -> None:
    # The line, the points on the front, and those behind it.
    assert [len(axes.lines) for axes in png.draw(tunings.tuning()).axes] == [1 + 4, 1 + 4]


def test_defaults_behind_the_front_are_named_all_the_same() -> None:
    behind = msgspec.structs.replace(tunings.DEFAULTS, on_front=False)
    figure = png.draw(tunings.tuning(tunings.CHOSEN, (behind, tunings.CHOSEN)))
    assert sorted(texts(figure)) == ["1", "1", "defaults", "defaults"]


def test_one_point_is_a_picture_too() -> None:
    assert texts(png.draw(tunings.tuning(tunings.DEFAULTS, (tunings.DEFAULTS,)))) == ["1", "1"]
