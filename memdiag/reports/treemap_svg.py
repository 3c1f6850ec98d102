"""Who owns the memory as a scalable picture, the same drawing as the PNG."""

from memdiag.records.profile import Profile
from memdiag.reports import treemap

FORMAT = "treemap_svg"
FILE_NAME = "treemap.svg"


def render(profile: Profile) -> bytes:
    """Return the picture of `profile` as SVG; letters are outlines, so that no font is needed."""
    return treemap.picture(profile, "svg")
