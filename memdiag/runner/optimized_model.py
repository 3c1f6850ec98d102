"""The model as onnxruntime optimized it, saved by a child that is not measured."""

from dataclasses import replace
from pathlib import Path

from memdiag.defaults import DEFAULT_PROVIDERS
from memdiag.runner.job import Job
from memdiag.runner.try_inputs import try_once
from memdiag.session_options import LEVEL_OPTION

EXTERNAL_DATA_OPTION = "session.optimized_model_external_initializers_file_name"
"""Config entry with the name of the file for the weights, in the folder of the saved model."""


def save_optimized_model(job: Job, path: Path) -> str | None:
    """Save the model of `job` to `path` as onnxruntime optimizes it with the session's options.

    Providers other than the CPU's receive the graph after the basic optimizations. A graph that
    they have compiled cannot be saved, so the graph that they receive is saved.

    Return the problem; None if the model was saved. Its weights are in a file next to it.

    Raises:
        MeasurementError: the child's interpreter cannot be started.
        TimeLimitReached: the job's deadline passed.
    """
    options = {
        **job.session.options,
        "optimized_model_filepath": str(path),
        EXTERNAL_DATA_OPTION: f"{path.name}.data",
    }
    session = replace(job.session, options=options)
    if session.providers != DEFAULT_PROVIDERS:
        level = options.get(LEVEL_OPTION, "basic").lower()
        if not level.endswith("disable_all"):
            options[LEVEL_OPTION] = "basic"
        session = replace(session, providers=DEFAULT_PROVIDERS, provider_options={})
    # The creation of the session saves the model.
    trial = try_once(replace(job, session=session, runs=None), ())
    has_failed = not (trial.has_session and trial.has_answer)
    # A session that was created does not run without inputs, which is no problem here.
    if path.exists() and not has_failed:
        return None
    return trial.problem or "it wrote no file"
