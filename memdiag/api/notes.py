"""What a reader of a profile must know about how it was measured, in words."""

from collections.abc import Iterator

from memdiag.ort.runtime import TELEMETRY_SINCE, Runtime
from memdiag.runner.job import Job
from memdiag.runner.run import Measurement
from memdiag.units import MIB, format_limit, format_size

_MAX_WARNINGS = 5
_NOTABLE_LAG_S = 0.002
_NOTABLE_RETENTION = 0.05  # of what steady is above the baseline
_TELEMETRY_OFF = (
    "measured with onnxruntime's telemetry off (ORT_DISABLE_TELEMETRY=1); on, as it is by default,"
    " it takes a thread and about 2 MiB more, writes to the home folder and uploads the model's"
    " file name (--telemetry measures with it)"
)
_TELEMETRY_ON = (
    "measured with onnxruntime's telemetry on, as it is by default: a thread and about 2 MiB are"
    " its own, and it wrote to the home folder (ORT_DISABLE_TELEMETRY=1 turns it off)"
)


def notes_of(measured: Measurement, job: Job) -> Iterator[str]:
    """Yield what could not be told apart or measured exactly, and what the runtime warned of."""
    limit = job.memory_limit_bytes
    if limit is not None and measured.outcome.status == "completed":
        yield f"the whole process stayed below the memory limit of {format_limit(limit)}"
    runtime = f"onnxruntime {measured.onnxruntime}"
    optimized = any(span.phase == "initialize" for span in measured.spans)
    transformed = any(span.modified is not None for span in measured.spans)
    if optimized and not transformed:
        yield (
            f"{runtime} logged no graph transformer: constant folding, if there was any, is part"
            " of optimize"
        )
    elif transformed and not measured.explicit_starts:
        yield (
            f"{runtime} logs where a graph transformer ends but not where it starts: each span"
            " begins where the transformer before it ended, and what the runtime does between two"
            " counts to the second"
        )
    yield from _about_peaks(measured)
    yield from _about_retention(measured)
    if measured.onnxruntime and Runtime.parse(measured.onnxruntime) >= TELEMETRY_SINCE:
        yield _TELEMETRY_ON if job.telemetry else _TELEMETRY_OFF
    if job.load_from == "bytes":
        yield "loaded from bytes: the file's bytes stay resident for as long as the session lives"
    warnings = measured.warnings
    for warning in warnings[:_MAX_WARNINGS]:
        yield f"{runtime} warned: {warning}"
    if len(warnings) > _MAX_WARNINGS:
        yield f"{runtime} warned of {len(warnings) - _MAX_WARNINGS} more things or more"


def _about_retention(measured: Measurement) -> Iterator[str]:
    retained, steady, baseline = (
        measured.allocator_retained_bytes,
        measured.steady,
        measured.baseline,
    )
    if not retained or steady is None or baseline is None:
        return
    above = steady.rss_bytes - baseline.rss_bytes
    if retained >= max(MIB, _NOTABLE_RETENTION * above):
        yield (
            f"{format_size(retained)} of the steady memory is freed memory that malloc has not"
            " returned to the system. This size can differ from process to process; with"
            " --env MALLOC_MMAP_THRESHOLD_=131072 malloc returns large blocks at once"
        )


def _about_peaks(measured: Measurement) -> Iterator[str]:
    if all(phase.peak_kind == "sampled" for phase in measured.phases):
        yield (
            "this system keeps no high-water mark that can be reset (or does not let us): every"
            " peak is the largest sample, and a shorter one may have been missed"
        )
    lag_s = measured.sampling.boundary_lag_s
    if lag_s is not None and lag_s > _NOTABLE_LAG_S:
        yield (
            f"the machine was busy: memdiag noticed the start of a phase up to"
            f" {lag_s * 1000:.0f} ms late, so memory allocated in that time may be counted in the"
            " phase before"
        )
