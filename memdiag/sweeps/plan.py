"""The plan of a sweep: models × releases × sizes × options as jobs, without those that are done."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

from memdiag.errors import UsageError
from memdiag.ort.runtime import release_order
from memdiag.records.sweep_job import SweepJob
from memdiag.sweeps.model_sources import ModelSource
from memdiag.units import MIB

WEIGHT_COPIES = 3
"""Multiple of the size of a model's files that is reserved for it where there is no estimate."""

PROCESS_BYTES = 100 * MIB
"""Reserved for a measured process where there is no estimate: interpreter and onnxruntime."""


_Value = TypeVar("_Value")


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """The settings that all jobs of a sweep share.

    Attributes:
        runs: number of runs after the first one.
        timeout_s: seconds after which a measured process is ended.
    """

    runs: int
    timeout_s: float


@dataclass(frozen=True, kw_only=True)
class PlannedJob:
    """A job, and the memory that is reserved for its measured process.

    Attributes:
        job: the job.
        needed_bytes: the memory.
        is_estimated: whether it was estimated from the model, rather than from its size.
    """

    job: SweepJob
    needed_bytes: int
    is_estimated: bool = True


def plan_jobs(
    models: Sequence[ModelSource],
    releases: Mapping[str, str],
    *,
    dims: Mapping[str, Sequence[int]],
    options: Mapping[str, Sequence[str]],
    settings: JobSettings,
) -> list[SweepJob]:
    """Return a job for each model, release, combination of sizes and combination of options.

    Dimensions are named by name or by role. Sizes of dimensions that a model does not have are left
    out. Models that could not be read have no jobs.

    Args:
        models: the models.
        releases: the releases of onnxruntime, each with its interpreter, which is empty for the
            release's own environment.
        dims: the sizes of free dimensions, by name.
        options: the values of session options, by name.
        settings: the settings of all jobs.

    Raises:
        UsageError: a dimension is named both by its name and by its role.
    """
    jobs = []
    for model in models:
        if model.problem:
            continue
        sizes = _own_sizes(model, dims) | {
            own_dim(model, name) or name: [size] for name, size in model.dims.items()
        }
        for release, chosen_sizes, chosen_options in product(
            releases, _value_combinations(sizes), _value_combinations(options)
        ):
            jobs.append(
                SweepJob(
                    model=model.name,
                    address=model.address,
                    digest=model.digest,
                    onnxruntime=release,
                    python=releases[release],
                    dims=chosen_sizes,
                    options=chosen_options,
                    runs=settings.runs,
                    timeout_s=settings.timeout_s,
                )
            )
    return jobs


def own_dim(model: ModelSource, name: str) -> str:
    """Return the free dimension of `model` that `name` means: by name, or by role.

    Empty if there is none. In a damaged model every name is its own, so that its job reports why.
    """
    if model.dim_names is None or name in model.dim_names:
        return name
    return model.dim_roles.get(name, "")


def models_without(models: Sequence[ModelSource], name: str) -> list[str]:
    """Return the names of the models that have no free dimension with this name or role."""
    return [model.name for model in models if not model.problem and not own_dim(model, name)]


def _own_sizes(model: ModelSource, dims: Mapping[str, _Value]) -> dict[str, _Value]:
    """Return the sizes in `dims` of dimensions that `model` has, by the names of its dimensions.

    Raises:
        UsageError: a dimension is named both by its name and by its role.
    """
    size_by_dim: dict[str, _Value] = {}
    for name, size in dims.items():
        key = own_dim(model, name)
        if key in size_by_dim or (key != name and key in dims):
            raise UsageError(
                f"{model.name}: dimension {key!r} is also given as {name!r}. Leave one of them out."
            )
        if key:
            size_by_dim[key] = size
    return size_by_dim


def with_needed_memory(
    jobs: Sequence[SweepJob],
    file_bytes: Mapping[str, int],
    estimate: Callable[[Sequence[SweepJob]], Sequence[int | None]],
) -> list[PlannedJob]:
    """Return `jobs` with the memory that they are expected to need, the largest first.

    Releases hardly differ in memory, so that it is estimated for the newest one only.

    Args:
        jobs: the jobs.
        file_bytes: the size of the files of each model, by digest.
        estimate: returns the estimates of jobs, None for a job whose model cannot be estimated.
    """
    oldest_first = sorted(jobs, key=lambda job: release_order(job.onnxruntime))
    representatives = {_memory_key(job): job for job in oldest_first}
    estimate_by_key = dict(
        zip(representatives, estimate(list(representatives.values())), strict=True)
    )
    planned = []
    for job in jobs:
        estimated = estimate_by_key[_memory_key(job)]
        fallback = PROCESS_BYTES + WEIGHT_COPIES * file_bytes.get(job.digest, 0)
        planned.append(
            PlannedJob(
                job=job,
                needed_bytes=fallback if estimated is None else estimated,
                is_estimated=estimated is not None,
            )
        )
    return sorted(planned, key=lambda planned_job: -planned_job.needed_bytes)


def _memory_key(job: SweepJob) -> tuple[str, str, str]:
    return job.digest, job.dims_text, job.options_text


def _value_combinations(values: Mapping[str, Sequence[_Value]]) -> list[dict[str, _Value]]:
    return [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]
