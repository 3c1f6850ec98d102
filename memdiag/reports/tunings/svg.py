"""The points of a tuning as a scalable picture, the same drawing as the PNG."""

from memdiag.records.fix import Fix
from memdiag.reports import picture
from memdiag.reports.tunings import png

FORMAT = "svg"
FILE_NAME = "tune.svg"


def render(tuning: Fix) -> bytes:
    """Return the picture of `tuning` as SVG; its letters stay text."""
    return picture.rendered(lambda: png.draw(tuning), "svg")
