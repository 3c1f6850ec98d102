"""How much session options are expected to save, estimated from the structure of the model."""

from collections.abc import Mapping, Sequence

from memdiag.api.estimating.estimated_settings import estimated_settings
from memdiag.defaults import DEFAULT_RUNS
from memdiag.model.model_file import ModelFile
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.runtime import Runtime
from memdiag.ort.session_estimate import EstimatedSettings, SessionEstimate
from memdiag.runner.job import Job
from memdiag.tuning.tuning_options import TuningOption


def estimated_savings(
    model_file: ModelFile,
    runtime: Runtime,
    job: Job,
    sizes: Mapping[str, int],
    options: Sequence[TuningOption],
) -> dict[str, int]:
    """Return the bytes of peak plus steady memory that options are expected to save, by name.

    Options that are expected to save nothing, or that estimates do not consider, are left out.

    Args:
        model_file: the open model.
        runtime: the release of onnxruntime.
        job: the session without the options.
        sizes: the sizes of free dimensions by name.
        options: the options, each of which is added alone.
    """
    ctx = AnalysisContext(model_file, runtime, sizes=sizes, reads_weights=False)
    bytes_by_settings: dict[EstimatedSettings, int] = {}

    def total_bytes(job: Job) -> int:
        settings = estimated_settings(job.session, DEFAULT_RUNS)
        if settings not in bytes_by_settings:
            point = SessionEstimate(ctx, settings).most_probable(sizes)
            bytes_by_settings[settings] = point.peak_bytes + point.steady_bytes
        return bytes_by_settings[settings]

    original_bytes = total_bytes(job)
    savings = {
        option.name: original_bytes - total_bytes(option.added_to(job))
        for option in options
        if option.model is None and not option.save_options
    }
    return {name: saved_bytes for name, saved_bytes in savings.items() if saved_bytes > 0}
