"""Join a fix or a tuning to the profile of the same model, for one report to tell of both."""

from pathlib import PurePath

import msgspec

from memdiag.errors import UsageError
from memdiag.records.fix import Fix
from memdiag.records.profile import Profile


def join_fix(profile: Profile, fix: Fix) -> Profile:
    """Return `profile` with `fix` in it.

    Models are the same where their files are called alike and, as far as that was measured, are of
    one size.

    Raises:
        UsageError: the two are of different models.
    """
    names = [PurePath(path).name for path in (profile.model.path, fix.model)]
    if names[0] != names[1]:
        raise UsageError(
            f"the fix is of {names[1]}, but the profile is of {names[0]}. Join those of one model."
        )
    size = profile.model.file_bytes + profile.model.external_bytes
    if fix.before is not None and fix.before.disk_bytes != size:
        raise UsageError(
            f"{names[0]}: its files took {fix.before.disk_bytes:,} bytes when it was fixed, and"
            f" {size:,} when it was profiled; profile and fix the same files."
        )
    return msgspec.structs.replace(profile, fix=fix)
