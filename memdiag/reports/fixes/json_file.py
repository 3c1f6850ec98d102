"""The fix itself as JSON."""

from memdiag.records import codec
from memdiag.records.fix import Fix

FORMAT = "json"
FILE_NAME = "fix.json"


def render(fix: Fix) -> bytes:
    """Return `fix` as strict JSON in UTF-8."""
    return codec.encode(fix)
