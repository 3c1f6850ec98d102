"""Memory of a profile's child that stays after its session was deleted, and remedies."""

from collections.abc import Callable, Iterator

import msgspec

from memdiag.attribution.memory_kinds import (
    KindGrowth,
    KindRanges,
    kind_growth,
    read_memory_kinds,
)
from memdiag.errors import MemdiagError
from memdiag.ort.runtime import Runtime
from memdiag.records.codec import escaped
from memdiag.records.profile import Profile, ReleaseRemedy, SessionRelease
from memdiag.runner.job import Job
from memdiag.runner.run import (
    AtBaseline,
    AtRelease,
    MeasuredRun,
    Measurement,
    Progress,
    ReadMoment,
)
from memdiag.tuning.options import TuningOption, tuning_options
from memdiag.units import MIB

MIN_UNRELEASED_BYTES = 16 * MIB
MIN_UNRELEASED_SHARE = 0.1
"""Remedies are measured if this much stays, and this share of the peak above the baseline."""

REMEDIES = ("mmap-threshold", "malloc-arenas", "jemalloc", "mimalloc", "arena-off")
"""Names of the options that can change how much stays."""


class ChildRelease:
    """Memory of the child by kind, before the session was created and after it was deleted.

    An error of a reading does not end the measurement.

    Attributes:
        growth: the growth of each kind; None before the release, or if a reading failed.
        failure: the reason of a failed reading; None if none failed.
    """

    def __init__(self) -> None:
        self.growth: KindGrowth | None = None
        self.failure: str | None = None
        self._before: KindRanges | None = None

    def read_memory(self, moment: ReadMoment) -> None:
        """Read the memory of the child at the baseline and at the release."""
        try:
            match moment:
                case AtBaseline(pid):
                    self._before = read_memory_kinds(pid)
                case AtRelease(pid) if self._before is not None:
                    self.growth = kind_growth(self._before, read_memory_kinds(pid))
        except MemdiagError as error:
            self.failure = str(error)

    def record(self, measured: Measurement) -> SessionRelease | None:
        """Return the record of what stays; None if the session was not deleted."""
        if measured.released is None or measured.baseline is None:
            return None
        growth = self.growth
        if growth is None:
            return SessionRelease(
                kept_bytes=measured.released.rss_bytes - measured.baseline.rss_bytes,
                trim_returned_bytes=measured.release_trimmed_bytes,
            )
        return SessionRelease(
            kept_bytes=sum(growth),
            **growth._asdict(),
            trim_returned_bytes=measured.release_trimmed_bytes,
        )


def measure_release_remedies(
    profile: Profile, job: Job, on_progress: Callable[[Progress], None] | None = None
) -> Profile:
    """Measure remedies for what stays after the release, if that is much.

    The result is `profile` with them. Each is an option of ``memdiag tune``, measured in a child of
    its own. One that does not run to the end is left out, with a note.

    Args:
        profile: the profile of `job`.
        job: the job, with `release`.
        on_progress: called with the progress of each child.

    Raises:
        MeasurementError: the interpreter cannot be started.
        KeyboardInterrupt: the user interrupted a child.
    """
    release, version = profile.release, profile.environment.onnxruntime
    above = profile.peak_rss_bytes - profile.baseline_rss_bytes
    if release is None or version is None or profile.outcome.status != "completed":
        return profile
    if release.kept_bytes < max(MIN_UNRELEASED_BYTES, MIN_UNRELEASED_SHARE * above):
        return profile
    remedies: list[ReleaseRemedy] = []
    notes = list(profile.notes)
    for option, changed in _changed_jobs(job, Runtime.parse(version)):
        measured = MeasuredRun(changed, on_progress=on_progress).run()
        if measured.interrupted:
            raise KeyboardInterrupt
        if measured.released is None or measured.baseline is None:
            notes.append(f"{option.name} was not measured: {measured.outcome.message}")
            continue
        kept_bytes = measured.released.rss_bytes - measured.baseline.rss_bytes
        settings = {**option.environment, **option.session}
        setting = " ".join(f"{name}={text}" for name, text in settings.items())
        remedies.append(ReleaseRemedy(name=option.name, setting=setting, kept_bytes=kept_bytes))
    remedies.sort(key=lambda remedy: remedy.kept_bytes)
    release = msgspec.structs.replace(release, remedies=tuple(remedies))
    # The reason of a failure may contain bytes that are not text.
    return escaped(msgspec.structs.replace(profile, release=release, notes=tuple(notes)))


def _changed_jobs(job: Job, runtime: Runtime) -> Iterator[tuple[TuningOption, Job]]:
    """Yield each available remedy that changes `job`, and the job with it."""
    for option in tuning_options():
        changed = option.added_to(job)
        if option.name in REMEDIES and option.is_available(runtime) and changed != job:
            yield option, changed
