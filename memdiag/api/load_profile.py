"""Read a saved profile."""

from pathlib import Path

from memdiag.records.codec import load
from memdiag.records.profile import Profile


def load_profile(path: str | Path) -> Profile:
    """Return the profile saved at `path`.

    Raises:
        RecordError: the file cannot be read, or is not a valid ``memdiag.profile/1``.
            `memdiag.load` reads other records.
    """
    return load(Path(path), Profile, otherwise="Read it with memdiag.load.")
