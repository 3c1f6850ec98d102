"""One job of a sweep and its result (schema ``memdiag.job/1``)."""

import hashlib
from typing import Final, Literal

import msgspec
from msgspec import field

from memdiag.records.base import Record
from memdiag.records.profile import Profile

JOB_SCHEMA: Final = "memdiag.job/1"

MEASURING_VERSION: Final = 1
"""Raised when memdiag measures differently, so that older results are not taken for new ones."""

JobStatus = Literal["completed", "failed", "killed", "timeout", "limit", "unreadable"]
"""The statuses of a profile, and ``unreadable`` for models whose file could not be read or
fetched. ``killed`` also stands for a process of memdiag that crashed."""


class SweepJob(Record, frozen=True, kw_only=True):
    """A model, a release of onnxruntime, sizes and options: what one process measures.

    Attributes:
        model: the name of the model.
        address: the path or URL of its file.
        digest: the digest of the content of its files; empty if they could not be read.
        onnxruntime: the release.
        dims: sizes of free dimensions by name; the others are chosen as `memdiag.profile` does.
        options: session options by name.
        runs: number of runs after the first one.
        timeout_s: seconds after which a measured process is ended.
        python: an interpreter that has the release; empty for the release's own environment.
    """

    model: str
    address: str
    digest: str
    onnxruntime: str
    dims: dict[str, int] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    runs: int
    timeout_s: float
    python: str = ""

    def key(self, machine: str) -> str:
        """Return the key of the job on a class of machine: a hash of all that figures depend on.

        The name and address of the model are not part of it, except for the address of a model that
        cannot be read.
        """
        parts = (
            MEASURING_VERSION,
            machine,
            self.digest or self.address,
            self.onnxruntime,
            sorted(self.dims.items()),
            sorted(self.options.items()),
            self.runs,
        )
        return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:32]

    @property
    def dims_text(self) -> str:
        """The sizes as text: ``batch=4,seq=16``."""
        return ",".join(f"{name}={size}" for name, size in sorted(self.dims.items()))

    @property
    def options_text(self) -> str:
        """The session options as text."""
        return ",".join(f"{name}={value}" for name, value in sorted(self.options.items()))


class JobAttempt(Record, frozen=True, kw_only=True):
    """An attempt that ended because its memory limit was too low.

    Attributes:
        memory_limit_bytes: the limit of the measured process.
        sentence: how it ended.
    """

    memory_limit_bytes: int
    sentence: str


class JobResult(Record, frozen=True, kw_only=True):
    """The result of one job, with the full record of what was measured.

    Attributes:
        key: the key of the job on this class of machine.
        job: the job.
        machine: the class of machine.
        memdiag: the version of memdiag.
        started_at: when it started, in UTC: ``2026-01-31T12:00:00Z``.
        duration_s: how long it took.
        status: how it ended.
        sentence: why it did not complete; else empty.
        is_alone: whether no other job ran at the same time on the machine. Latencies of other jobs
            are not comparable.
        planned_bytes: the memory that was reserved for it; None if nothing was.
        attempts: earlier attempts, whose memory limits were too low.
        profile: what was measured; None if nothing was.
    """

    schema: Literal["memdiag.job/1"] = JOB_SCHEMA
    key: str
    job: SweepJob
    machine: str
    memdiag: str
    started_at: str
    duration_s: float
    status: JobStatus
    sentence: str = ""
    is_alone: bool = False
    planned_bytes: int | None = None
    attempts: tuple[JobAttempt, ...] = ()
    profile: Profile | None = None
