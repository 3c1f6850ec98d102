"""The session to measure for each column of a comparison, and how it was obtained."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from memdiag.api.arguments import OnProgress
from memdiag.comparison import runtimes
from memdiag.comparison.optimizers import ORIGINAL_MODEL
from memdiag.comparison.run_optimizer import (
    MAX_SINGLE_FILE_BYTES,
    interpreter_for,
    run_optimizer,
)
from memdiag.errors import MemdiagError, ProvisionError
from memdiag.model.model_file import open_model
from memdiag.paths import distinct_names
from memdiag.records.comparison import ColumnStatus, OptimizerRun
from memdiag.runner.job import Job
from memdiag.system.memory_limit import most_available_bytes

_NO_TIME = "the time limit was reached before it was run"
_TOO_LITTLE_TIME = "the optimizer did not end in the part of the time limit that optimizers have"


@dataclass(frozen=True, kw_only=True)
class ColumnPlan:
    """The session to measure for one column.

    Attributes:
        label: the label of the column.
        job: the model and the configuration of the session.
        model: the name of the model in the record; its path if empty.
        status: ``completed`` if there is a session to measure.
        message: why there is no session, or a note on the session; may be empty.
        optimizer: duration and memory of the optimizer that wrote the model.
    """

    label: str
    job: Job
    model: str = ""
    status: ColumnStatus = "completed"
    message: str = ""
    optimizer: OptimizerRun | None = None


def version_plans(
    job: Job, versions: Sequence[str], on_progress: OnProgress
) -> Iterator[ColumnPlan]:
    """Yield a plan for each version of onnxruntime, installed if it is missing.

    Raises:
        UsageError: a text is not a version.
    """
    for version in versions:
        on_progress(f"looking for onnxruntime {version}")
        label, message = version, ""
        try:
            if version == runtimes.LATEST_VERSION:
                label, message = runtimes.latest_version()
            python = runtimes.runtime_interpreter(label)
        except ProvisionError as error:
            yield ColumnPlan(label=label, job=job, status="unavailable", message=str(error))
        else:
            yield ColumnPlan(label=label, job=job_with_interpreter(job, python), message=message)


def environment_plans(job: Job, paths: Sequence[Path]) -> Iterator[ColumnPlan]:
    """Yield a plan for each interpreter or environment, labelled with its onnxruntime.

    Raises:
        UsageError: a path is neither an interpreter nor an environment.
    """
    for path in paths:
        python = runtimes.existing_interpreter(path)
        version = runtimes.interpreter_version(python)
        environment_job = job_with_interpreter(job, python)
        if version is None:
            message = runtimes.no_runtime_text(path)
            yield ColumnPlan(
                label=path.name, job=environment_job, status="unavailable", message=message
            )
        else:
            yield ColumnPlan(label=version, job=environment_job)


def optimizer_plans(
    job: Job, names: Sequence[str], scratch: Path, on_progress: OnProgress
) -> Iterator[ColumnPlan]:
    """Yield the original, and the result of each optimizer, written below `scratch`.

    The time limit, the memory limit and the deadline of the job also apply to the optimizers.
    """
    yield ColumnPlan(label=ORIGINAL_MODEL, job=job)
    with open_model(job.model) as model_file:
        model_bytes = sum(path.stat().st_size for path in model_file.files)
    deadline = job.limits.deadline
    for number, name in enumerate(names, 1):
        if deadline.remaining_s <= 0:
            yield ColumnPlan(label=name, job=job, status="unavailable", message=_NO_TIME)
            continue
        on_progress(f"running {name} ({number} of {len(names)} optimizers)")
        target = scratch / name / job.model.name
        try:
            python = interpreter_for(name)
            result = run_optimizer(
                name,
                job.model,
                target,
                python=python,
                external=model_bytes > MAX_SINGLE_FILE_BYTES,
                timeout_s=min(job.limits.timeout_s, deadline.remaining_s),
                memory_limit_bytes=job.limits.memory_limit_bytes or most_available_bytes(),
            )
        except ProvisionError as error:
            yield ColumnPlan(label=name, job=job, status="unavailable", message=str(error))
        except MemdiagError as error:
            yield ColumnPlan(label=name, job=job, status="failed", message=str(error))
        else:
            yield ColumnPlan(
                label=name,
                job=replace(job, model=result.path) if result.path else job,
                # The folder of the new model is temporary.
                model=f"{name}/{job.model.name}" if result.path else "",
                status=result.status,
                message=(
                    _TOO_LITTLE_TIME
                    if result.status == "timeout" and deadline.remaining_s <= 0
                    else result.message
                ),
                optimizer=result.run,
            )


def model_plans(job: Job, paths: Sequence[Path]) -> Iterator[ColumnPlan]:
    """Yield a plan for each model, labelled with the shortest path that is unique."""
    for label, path in zip(distinct_names(paths), paths, strict=True):
        yield ColumnPlan(label=label, job=replace(job, model=path))


def numbered_labels(labels: Sequence[str]) -> list[str]:
    """Return `labels` with a number after each repeated label: ``a``, ``a (2)``."""
    counts: dict[str, int] = {}
    unique_labels = []
    for label in labels:
        counts[label] = counts.get(label, 0) + 1
        unique_labels.append(label if counts[label] == 1 else f"{label} ({counts[label]})")
    return unique_labels


def job_with_interpreter(job: Job, python: Path) -> Job:
    """Return `job` for another interpreter."""
    return replace(job, session=replace(job.session, python=python))
