"""The X-ray itself as JSON."""

from memdiag.records import codec
from memdiag.records.attribution import Attribution

FORMAT = "json"
FILE_NAME = "xray.json"


def render(attribution: Attribution) -> bytes:
    """Return `attribution` as strict JSON in UTF-8."""
    return codec.encode(attribution)
