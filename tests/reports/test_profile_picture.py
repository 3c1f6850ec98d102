import io
import itertools
import zlib

import numpy
import pytest
from matplotlib.figure import Figure

from memdiag.records.profile import Profile
from memdiag.reports.profile import REPORT
from memdiag.reports.profile.headline import profile_headline
from memdiag.reports.profile.picture import draw
from tests.reports import profiles


def drawn(profile: Profile) -> Figure:
    return draw(profile)


def texts(figure: Figure) -> list[str]:
    own = [text.get_text() for text in figure.texts]
    return own + [text.get_text() for axes in figure.axes for text in axes.texts]


def test_it_is_a_picture_of_two_to_one_that_is_not_blank() -> None:
    from matplotlib import image

    pixels = numpy.asarray(
        image.imread(io.BytesIO(REPORT.render(profiles.tied_if(), "png")), format="png")
    )
    height, width, _ = pixels.shape
    assert (width, height) == (1600, 832)
    assert len(zlib.compress((pixels * 255).astype(numpy.uint8).tobytes())) > 20_000


def test_the_title_is_the_name_and_the_answer() -> None:
    shown = texts(drawn(profiles.tied_if()))
    assert "tied_if.onnx" in shown
    assert profile_headline(profiles.tied_if()).first in shown  # it fits without being cut
    assert "1.50 GiB · 3.1 × · first_run" in shown
    assert "the weights, 500 MiB" in shown


def test_peaks_that_were_given_back_are_marked_and_others_are_not() -> None:
    shown = texts(drawn(profiles.tied_if()))
    assert {"779 MiB", "1.48 GiB"} <= set(shown)
    assert "1017 MiB" not in shown  # optimize ends at its peak


def test_without_weights_there_is_no_line_for_them() -> None:
    assert not any("the weights" in text for text in texts(drawn(profiles.failed())))


@pytest.mark.parametrize(
    "build", [profiles.tied_if, profiles.tiny, profiles.uneven, profiles.failed, profiles.hostile]
)
def test_labels_of_phases_neither_overlap_nor_leave_the_picture(build: object) -> None:
    assert callable(build)
    profile = build()
    figure = drawn(profile)
    figure.canvas.draw()
    phases = {phase.name for phase in profile.phases}
    labels = [text for text in figure.axes[0].texts if text.get_text() in phases]
    assert len(labels) == len(phases)
    boxes = sorted((text.get_window_extent() for text in labels), key=lambda box: box.x0)
    assert all(left.x1 <= right.x0 for left, right in itertools.pairwise(boxes))
    assert boxes[0].x0 >= 0
    assert boxes[-1].x1 <= figure.bbox.x1
    for text in figure.texts:
        assert not text.get_visible() or text.get_window_extent().x1 <= figure.bbox.x1


def test_a_system_that_does_not_split_memory_gets_one_area() -> None:
    profile = profiles.build(profiles.TIED_IF, runs=10, split=False)
    legend = drawn(profile).axes[0].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["resident"]


def test_shared_memory_is_in_the_legend_only_where_there_is_any() -> None:
    for profile, names in (
        (profiles.tied_if(), {"file-backed", "anonymous"}),
        (profiles.with_shared(), {"file-backed", "shared", "anonymous"}),
    ):
        legend = drawn(profile).axes[0].get_legend()
        assert legend is not None
        assert {text.get_text() for text in legend.get_texts()} == names


def test_the_scalable_picture_holds_no_name_as_markup() -> None:
    page = REPORT.render(profiles.hostile(), "svg")
    assert page.startswith(b"<?xml")
    assert b"<img" not in page
    assert b"<script" not in page
