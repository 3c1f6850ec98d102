"""The points of a tuning as a scalable picture, the same drawing as the PNG."""

from memdiag.records.fix import Fix
from memdiag.reporters import picture
from memdiag.reporters.tunings import png

FORMAT = "svg"
FILE_NAME = "tune.svg"


def render(tuning: Fix) -> bytes:
    """Return the picture of `tuning` as SVG; its letters stay text."""
    return picture.rendered(lambda: png.draw(tuning), "svg")
