"""A comparison as a scalable picture, the same drawing as the PNG; its letters stay text."""

from memdiag.records.comparison import Comparison
from memdiag.reports import picture
from memdiag.reports.comparison import png

FORMAT = "svg"
FILE_NAME = "comparison.svg"


def render(comparison: Comparison) -> bytes:
    """Return the drawing of `comparison` as SVG."""
    return picture.rendered(lambda: png.draw(comparison), "svg")
