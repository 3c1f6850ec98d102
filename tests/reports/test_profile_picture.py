"""The picture of a profile: its timeline with labels that can be read."""

import io
import itertools
import zlib
from collections.abc import Callable

import numpy
import pytest
from matplotlib import image
from matplotlib.figure import Figure

from memdiag.records.profile import Profile
from memdiag.reports.profile import REPORT
from memdiag.reports.profile.headline import profile_headline
from memdiag.reports.profile.picture import draw
from tests.reports import profiles


def texts(profile: Profile) -> list[str]:
    figure = draw(profile)
    own = [text.get_text() for text in figure.texts]
    return own + [text.get_text() for axes in figure.axes for text in axes.texts]


def legend(figure: Figure) -> set[str]:
    box = figure.axes[0].get_legend()
    assert box is not None
    return {text.get_text() for text in box.get_texts()}


def test_it_is_a_picture_of_two_to_one_that_is_not_blank() -> None:
    picture = io.BytesIO(REPORT.render(profiles.tied_if(), "png"))
    pixels = numpy.asarray(image.imread(picture, format="png"))
    assert pixels.shape[:2] == (832, 1600)
    assert len(zlib.compress((pixels * 255).astype(numpy.uint8).tobytes())) > 20_000


def test_it_has_the_answer_and_marks_peaks_that_were_given_back() -> None:
    shown = texts(profiles.tied_if())
    assert profile_headline(profiles.tied_if()).first in shown  # it fits without being cut
    labels = {"tied_if.onnx", "1.50 GiB · 3.1 × · first_run", "the weights, 500 MiB"}
    assert labels | {"779 MiB", "1.48 GiB"} <= set(shown)
    assert "1017 MiB" not in shown  # optimize ends at its peak
    assert not any("the weights" in text for text in texts(profiles.failed()))


@pytest.mark.parametrize(
    "build", [profiles.tied_if, profiles.tiny, profiles.uneven, profiles.failed, profiles.hostile]
)
def test_labels_of_phases_neither_overlap_nor_leave_the_picture(
    build: Callable[[], Profile],
) -> None:
    profile = build()
    figure = draw(profile)
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


@pytest.mark.parametrize(
    ("profile", "areas"),
    [
        (profiles.build(profiles.TIED_IF, runs=10, split=False), {"resident"}),
        (profiles.tied_if(), {"file-backed", "anonymous"}),
        (profiles.with_shared(), {"file-backed", "shared", "anonymous"}),
    ],
    ids=["not split", "split", "shared"],
)
def test_the_legend_has_the_areas_that_are_known(profile: Profile, areas: set[str]) -> None:
    assert legend(draw(profile)) == areas
