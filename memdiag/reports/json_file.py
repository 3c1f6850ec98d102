"""The record itself as JSON: the report that every other one can be made from again."""

from memdiag.records import codec
from memdiag.records.profile import Profile

FORMAT = "json"
FILE_NAME = "profile.json"


def render(profile: Profile) -> bytes:
    """Return `profile` as strict JSON in UTF-8."""
    return codec.encode(profile)
