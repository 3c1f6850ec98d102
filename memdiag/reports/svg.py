"""The timeline as a scalable picture, the same drawing as the PNG."""

from memdiag.records.profile import Profile
from memdiag.reports import png

FORMAT = "svg"
FILE_NAME = "timeline.svg"


def render(profile: Profile) -> bytes:
    """Return the drawing of `profile` as SVG; letters are outlines, so that no font is needed."""
    return png.picture(profile, "svg")
