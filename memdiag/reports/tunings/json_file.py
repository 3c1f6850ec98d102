"""The tuning itself as JSON."""

from memdiag.records import codec
from memdiag.records.fix import Fix

FORMAT = "json"
FILE_NAME = "tune.json"


def render(tuning: Fix) -> bytes:
    """Return `tuning` as strict JSON in UTF-8."""
    return codec.encode(tuning)
