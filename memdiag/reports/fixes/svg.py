"""A fix as a scalable picture, the same drawing as the PNG; its letters stay text."""

from memdiag.records.fix import Fix
from memdiag.reports import picture
from memdiag.reports.fixes import png

FORMAT = "svg"
FILE_NAME = "fix.svg"


def render(fix: Fix) -> bytes:
    """Return the drawing of `fix` as SVG."""
    return picture.rendered(lambda: png.draw(fix), "svg")
