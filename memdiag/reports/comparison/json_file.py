"""The comparison itself as JSON."""

from memdiag.records import codec
from memdiag.records.comparison import Comparison

FORMAT = "json"
FILE_NAME = "comparison.json"


def render(comparison: Comparison) -> bytes:
    """Return `comparison` as strict JSON in UTF-8."""
    return codec.encode(comparison)
