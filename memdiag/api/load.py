"""Read saved records, and join a fix to the profile of the same model."""

from contextlib import suppress
from pathlib import Path
from typing import cast, get_args

from memdiag.errors import RecordError
from memdiag.records import codec
from memdiag.records.base import Record
from memdiag.records.profile import Profile
from memdiag.records.schemas import RECORD_BY_SCHEMA, ReportedRecord
from memdiag.records.sweep_job import JOB_SCHEMA, JobResult


def load(path: str | Path) -> Record:
    """Return the record saved at `path`, a file or the folder of the reports.

    Its type depends on the schema in the file.

    Raises:
        RecordError: the file cannot be read, or is not such a record.
    """
    return codec.load_any_record(Path(path), _record_types_by_schema())


def load_profile(path: str | Path) -> Profile:
    """Return the profile saved at `path`, a file or the folder of the reports, or a job's profile.

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
    """Return the record with reports that is saved at `path`, or the profile of a job.

    Raises:
        RecordError: the file cannot be read, is not such a record, or is a job without a profile.
    """
    reported_types = (*get_args(ReportedRecord), JobResult)
    types_by_schema = {
        schema: record_type
        for schema, record_type in _record_types_by_schema().items()
        if record_type in reported_types
    }
    record = codec.load_any_record(Path(path), types_by_schema)
    if isinstance(record, JobResult):
        if record.profile is None:
            raise RecordError(f"{path}: this job has no profile ({record.sentence}).")
        return record.profile
    return cast("ReportedRecord", record)


def _record_types_by_schema() -> dict[str, type[Record]]:
    types = {name.replace("-", "/"): record_type for name, record_type in RECORD_BY_SCHEMA.items()}
    return {**types, JOB_SCHEMA: JobResult}
