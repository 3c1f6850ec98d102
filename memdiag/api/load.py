"""Read saved records, and join a fix to the profile of the same model."""

from contextlib import suppress
from pathlib import Path
from typing import cast, get_args

from memdiag.errors import RecordError
from memdiag.records import codec
from memdiag.records.base import Record
from memdiag.records.profile import Profile
from memdiag.records.schemas import RECORD_BY_SCHEMA, ReportedRecord
from memdiag.records.sweep_job import JobResult


def load(path: str | Path) -> Record:
    """Return the record saved at `path`, a file or the folder of the reports.

    Its type depends on the schema in the file.

    Raises:
        RecordError: the file cannot be read, or is not such a record.
    """
    return codec.load_any_record(Path(path), _kinds_by_schema())


def load_profile(path: str | Path) -> Profile:
    """Return the profile saved at `path` or in this folder, also that of a job of a sweep.

    Raises:
        RecordError: the file cannot be read, or is not a valid ``memdiag.profile/1``.
            `memdiag.load` reads other records.
    """
    with suppress(RecordError):
        job = codec.load(Path(path), JobResult)
        if job.profile is not None:
            return job.profile
    return codec.load(Path(path), Profile, otherwise="Read it with memdiag.load.")


def load_reported(path: str | Path) -> ReportedRecord:
    """Return the record saved at `path`, which is one that has reports, also that of a job.

    Raises:
        RecordError: the file cannot be read, or is not such a record, or the job has none.
    """
    reported = (*get_args(ReportedRecord), JobResult)
    kinds = {schema: kind for schema, kind in _kinds_by_schema().items() if kind in reported}
    record = codec.load_any_record(Path(path), kinds)
    if isinstance(record, JobResult):
        if record.profile is None:
            raise RecordError(f"{path}: this job has no profile ({record.sentence}).")
        return record.profile
    return cast("ReportedRecord", record)


def _kinds_by_schema() -> dict[str, type[Record]]:
    return {name.replace("-", "/"): kind for name, kind in RECORD_BY_SCHEMA.items()}
