"""The owners in an X-ray as a picture."""

from memdiag.records.attribution import Attribution
from memdiag.reports import treemap
from memdiag.reports.views import insight

FORMAT = "png"
FILE_NAME = "xray.png"


def render(attribution: Attribution) -> bytes:
    """Return the owners of the resident memory as tiles, as PNG, 1600 × 896 pixels."""
    headline = insight.build(attribution).headline
    return treemap.drawn(f"process {attribution.pid}", headline, attribution, "png")
