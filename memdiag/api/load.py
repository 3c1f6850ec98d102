"""Read saved records, and join a fix to the profile of the same model."""

from contextlib import suppress
from pathlib import Path, PurePath
from typing import cast, get_args

import msgspec

from memdiag.errors import RecordError, UsageError
from memdiag.records import codec
from memdiag.records.base import Record
from memdiag.records.fix import FIX_SCHEMA, Fix
from memdiag.records.profile import Profile
from memdiag.records.schemas import RECORDS, Reported
from memdiag.records.sweep_job import JobResult
from memdiag.records.tuning import TUNING_SCHEMA, Tuning


def load(path: str | Path) -> Record:
    """Return the record saved at `path`, a file or the folder of the reports.

    Its type depends on the schema in the file.

    It is a profile, comparison, fix, tuning, X-ray, recorded program, growth, estimate, check,
    inventory, baseline, sweep or job of a sweep.

    Raises:
        RecordError: the file cannot be read, or is not such a record.
    """
    return codec.load_any(Path(path), _kinds_by_schema())


def load_profile(path: str | Path) -> Profile:
    """Return the profile saved at `path`, also that of a job of a sweep.

    Raises:
        RecordError: the file cannot be read, or is not a valid ``memdiag.profile/1``.
            `memdiag.load` reads other records.
    """
    with suppress(RecordError):
        job = codec.load(Path(path), JobResult)
        if job.profile is not None:
            return job.profile
    return codec.load(Path(path), Profile, otherwise="Read it with memdiag.load.")


def load_reported(path: str | Path) -> Reported:
    """Return the record saved at `path`, which is one that has reports, also that of a job.

    Raises:
        RecordError: the file cannot be read, or is not such a record, or the job has none.
    """
    reported = (*get_args(Reported), JobResult)
    kinds = {schema: kind for schema, kind in _kinds_by_schema().items() if kind in reported}
    found = codec.load_any(Path(path), kinds)
    if isinstance(found, JobResult):
        record = found.profile or found.growth or found.estimate
        if record is None:
            reason = found.sentence or f"it is a {found.job.action}"
            raise RecordError(f"{path}: this job has no record with reports ({reason}).")
        return record
    return cast("Reported", found)


def load_fix_or_tuning(path: Path) -> Fix | Tuning:
    """Return the fix or tuning saved at `path`.

    Raises:
        RecordError: the file cannot be read, or is not such a record.
    """
    kinds: dict[str, type[Fix | Tuning]] = {FIX_SCHEMA: Fix, TUNING_SCHEMA: Tuning}
    return codec.load_any(path, kinds)


def join_fix(profile: Profile, change: Fix | Tuning) -> Profile:
    """Return `profile` with the fix or tuning `change` in it.

    The models are the same if their files have the same name and, if it was measured, size.

    Raises:
        UsageError: the records are of different models.
    """
    kind = "fix" if isinstance(change, Fix) else "tuning"
    names = [PurePath(path).name for path in (profile.model.path, change.model)]
    if names[0] != names[1]:
        raise UsageError(
            f"the {kind} is of {names[1]}, but the profile is of {names[0]}. Join records of one"
            " model."
        )
    size = profile.model.file_bytes + profile.model.external_bytes
    if change.before is not None and change.before.disk_bytes != size:
        raise UsageError(
            f"{names[0]}: its files had {change.before.disk_bytes:,} bytes at the time of the"
            f" {kind}, and {size:,} at the profile's path. Use the same files for both."
        )
    if isinstance(change, Fix):
        return msgspec.structs.replace(profile, fix=change)
    return msgspec.structs.replace(profile, tuning=change)


def _kinds_by_schema() -> dict[str, type[Record]]:
    return {name.replace("-", "/"): kind for name, kind in RECORDS.items()}
