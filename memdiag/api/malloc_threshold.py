"""How much of the memory that malloc retains in a profile's child a threshold saves."""

from collections.abc import Callable

import msgspec

from memdiag.ort.runtime import Runtime
from memdiag.records.profile import Profile
from memdiag.runner.job import Job
from memdiag.runner.measured_child import ChildProgress, MeasuredChild
from memdiag.tuning.tuning_options import tuning_options
from memdiag.units import MIB

THRESHOLD_OPTION = "mmap-threshold"

MIN_RETAINED_BYTES = 16 * MIB
MIN_RETAINED_SHARE = 0.25
"""The threshold is measured if malloc returned at least these bytes on request, and at least this
share of the steady memory above the baseline."""


def measure_malloc_threshold(
    profile: Profile, job: Job, on_progress: Callable[[ChildProgress], None] | None = None
) -> Profile:
    """Return `profile` with the steady memory under the threshold, if malloc retains much.

    Args:
        profile: the profile of `job`.
        job: the job.
        on_progress: called with the progress of the child.

    Raises:
        MeasurementError: the interpreter cannot be started.
        KeyboardInterrupt: the user interrupted the child.
    """
    version, above_bytes = profile.environment.onnxruntime, profile.steady_above_bytes
    retained_bytes = profile.allocator_retained_bytes or 0
    if version is None or above_bytes is None or profile.attribution is None:
        return profile
    if profile.attribution.allocator not in (None, "glibc"):
        return profile
    if retained_bytes < max(MIN_RETAINED_BYTES, MIN_RETAINED_SHARE * above_bytes):
        return profile
    (option,) = (option for option in tuning_options() if option.name == THRESHOLD_OPTION)
    job_with_threshold = option.added_to(job)
    if job_with_threshold == job or not option.is_available(Runtime.parse(version)):
        return profile
    measurement = MeasuredChild(job_with_threshold, on_progress=on_progress).run()
    if measurement.interrupted:
        raise KeyboardInterrupt
    if measurement.steady is None or measurement.baseline is None:
        return profile
    steady_bytes = measurement.steady.rss_bytes - measurement.baseline.rss_bytes
    return msgspec.structs.replace(
        profile, threshold_saved_bytes=max(0, above_bytes - steady_bytes)
    )
