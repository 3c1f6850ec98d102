"""Read a saved record of any kind."""

from pathlib import Path

from memdiag.records.attribution import ATTRIBUTION_SCHEMA, Attribution
from memdiag.records.base import Record
from memdiag.records.codec import load_any
from memdiag.records.comparison import COMPARISON_SCHEMA, Comparison
from memdiag.records.fix import FIX_SCHEMA, Fix
from memdiag.records.profile import PROFILE_SCHEMA, Profile
from memdiag.records.schemas import RECORDS

_KINDS: dict[str, type[Profile | Comparison | Fix | Attribution]] = {
    PROFILE_SCHEMA: Profile,
    COMPARISON_SCHEMA: Comparison,
    FIX_SCHEMA: Fix,
    ATTRIBUTION_SCHEMA: Attribution,
}


def load(path: str | Path) -> Record:
    """Return the record saved at `path`, of the kind that its schema says.

    That is a profile, comparison, fix or tuning, X-ray, check, inventory, baseline or history.

    Raises:
        RecordError: the file cannot be read, or is no such record.
    """
    return load_any(Path(path), {name.replace("-", "/"): kind for name, kind in RECORDS.items()})


def load_record(path: str | Path) -> Profile | Comparison | Fix | Attribution:
    """Return the profile, comparison, fix, tuning or X-ray saved at `path`, as its schema says.

    Raises:
        RecordError: the file cannot be read, or is no such record.
    """
    return load_any(Path(path), _KINDS)
