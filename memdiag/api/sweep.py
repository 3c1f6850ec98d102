"""Sweep: many models × releases × sizes × options, in a store that records what is done."""

import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from typing import Any, Protocol, Unpack

import msgspec

from memdiag.api.arguments import check_at_least_one, check_dims, child_process_limits
from memdiag.api.estimating.sizes import (
    MAX_RANGE_SIZES,
    DimSizes,
    check_size_range,
    size_steps,
)
from memdiag.api.options import SweepOptions, options_with_defaults, takes_options
from memdiag.api.profile_config import check_session_options
from memdiag.comparison import runtimes
from memdiag.defaults import LOCAL_EXECUTION
from memdiag.errors import ArgumentError, ProvisionError, UsageError
from memdiag.ort.runtime import Runtime, require_runtime
from memdiag.records.sweep import ExceededBudget, Placement, Sweep
from memdiag.records.sweep_job import JobResult, SweepJob
from memdiag.sweeps.dask_execution import DASK_SCHEME, LOCAL_CLUSTER, DaskExecution
from memdiag.sweeps.job_process import unfinished_result
from memdiag.sweeps.local_execution import LocalExecution
from memdiag.sweeps.model_budget import ModelBudget, breach_sentence, parse_model_budget
from memdiag.sweeps.model_sources import ModelSource, find_sweep_models
from memdiag.sweeps.placement import parse_machines, place_models
from memdiag.sweeps.plan import (
    JobSettings,
    PlannedJob,
    models_without,
    plan_jobs,
    with_needed_memory,
)
from memdiag.sweeps.store import SweepStore, check_version, job_column
from memdiag.sweeps.summary import summarize_sweep
from memdiag.system.cpu_limit import cpus_allowed
from memdiag.system.memory_limit import most_available_bytes
from memdiag.units import some_of

FLUSH_S = 60.0
"""Rows of results are written with the first result after these seconds."""


@dataclass(frozen=True, kw_only=True)
class SweepProgress:
    """The state of a sweep under way.

    Attributes:
        step: the current step, in a few words.
        total: the number of jobs to do.
        done: the number of jobs that are done, failed ones included.
        failed: the number of jobs that failed.
        remaining_s: the estimated seconds until the end; None if they are not known.
        machines: the number of machines.
    """

    step: str
    total: int = 0
    done: int = 0
    failed: int = 0
    remaining_s: float | None = None
    machines: int = 1


OnSweepProgress = Callable[[SweepProgress], None]


@dataclass(kw_only=True)
class SweepOutcome:
    """What a sweep did.

    Attributes:
        store: the folder of the store.
        keys: the keys of all jobs of the sweep, those that were done before included.
        new_keys: the keys of the jobs that were done now.
        failed: the number of all jobs that did not complete.
        completed: the number of all jobs that completed.
        exceeded: jobs that exceed the budget.
        notes: sentences on models and releases that were left out.
        interrupted: whether Ctrl-C ended the sweep.
    """

    store: Path
    keys: list[str] = field(default_factory=list)
    new_keys: set[str] = field(default_factory=set)
    failed: int = 0
    completed: int = 0
    exceeded: list[ExceededBudget] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False


class SweepExecution(Protocol):
    """Where jobs run."""

    @property
    def machines(self) -> int:
        """The number of machines."""

    def machine_classes(self) -> Sequence[str]:
        """Return the classes of the machines."""

    def estimate(self, jobs: Sequence[SweepJob]) -> Sequence[int | None]:
        """Return the bytes that each job is expected to need; None if there is no estimate of
        it."""

    def run(self, jobs: Iterable[PlannedJob]) -> Iterator[JobResult]:
        """Yield the result of each job as soon as it is done."""


@takes_options(SweepOptions)
def sweep(
    *paths: str | Path,
    store: str | Path = "sweep",
    dims: Mapping[str, DimSizes] | None = None,
    session_options: Mapping[str, str | Sequence[str]] | None = None,
    against: str | Path | None = None,
    place: str | Sequence[int] = (),
    on_progress: OnSweepProgress = lambda progress: None,
    **options: Unpack[SweepOptions],
) -> Sweep:
    """Measure many models under releases, sizes and options, and return the answers of the store.

    Each job is what `profile` does. Jobs that the store has are not done again, so that the same
    call goes on after an interruption. Jobs that fail are points with a sentence. Without
    `onnxruntime` the installed release is measured.

    Args:
        paths: models, folders, patterns, lists (``.toml``), or URLs.
        store: the folder of the store; created if missing.
        dims: by name of a free dimension its size, a list of sizes, or a range (low, high) that is
            divided into powers of two. Names may be roles, such as ``batch``. Models without the
            dimension are run without it; at least one has to have it.
        session_options: the value, or a list of values, of SessionOptions attributes and config
            entries by name.
        against: a store to compare with: points that it does not have are new, and so are the
            steps before them.
        place: machines such as ``4x8GiB,16GiB``, or the bytes of each machine, on which the models
            are placed together.
        on_progress: called after each job.
        options: see `takes_options`.

    Raises:
        UsageError: an argument does not fit, a package is not installed, or no release is
            available.
        RecordError: a store was written by another version of memdiag, or is not a store.
        ReportError: the store cannot be written.
        MeasurementError: the scheduler of a cluster is gone; what was measured is stored.
        KeyboardInterrupt: Ctrl-C; what was measured is stored.
    """
    machines = parse_machines(place) if isinstance(place, str) else tuple(place)
    outcome = run_sweep(
        paths,
        store=store,
        dims=dims,
        session_options=session_options,
        on_progress=on_progress,
        **options,
    )
    if outcome.interrupted:
        raise KeyboardInterrupt
    return sweep_answers(outcome, against=against, machines=machines)


def sweep_answers(
    outcome: SweepOutcome,
    *,
    against: str | Path | None = None,
    machines: Sequence[int] = (),
) -> Sweep:
    """Return the answers of the store that a sweep has written.

    Args:
        outcome: what the sweep did.
        against: a store to compare with.
        machines: the memory of each machine on which the models are placed; empty for no placement.

    Raises:
        RecordError: `against` was written by another version of memdiag, or is not a store.
    """

    def place(answers: Sweep) -> Placement:
        sizes = job_column(outcome.store, "baseline_bytes")
        baselines = {key: size for key, size in sizes.items() if size is not None}
        return place_models(answers, machines, baselines)

    is_same = against is not None and Path(against).resolve() == outcome.store.resolve()
    if against is not None and not is_same:
        check_version(Path(against))
    answers = summarize_sweep(
        outcome.store,
        against=outcome.store if is_same else None if against is None else Path(against),
        new_keys=outcome.new_keys if is_same else None,
        requested_keys=outcome.keys,
        place=place if machines else None,
    )
    notes = tuple(dict.fromkeys((*outcome.notes, *answers.notes)))
    return msgspec.structs.replace(answers, notes=notes, exceeded=tuple(outcome.exceeded))


def run_sweep(
    paths: Sequence[str | Path],
    *,
    store: str | Path,
    dims: Mapping[str, DimSizes] | None = None,
    session_options: Mapping[str, str | Sequence[str]] | None = None,
    budget: Mapping[str, str] | None = None,
    on_progress: OnSweepProgress = lambda progress: None,
    **options: Unpack[SweepOptions],
) -> SweepOutcome:
    """Measure models under releases, sizes and options, and return what was done.

    The arguments are as in `sweep`; `budget` has limits by the names of figures.

    Raises:
        UsageError, RecordError, ReportError: as in `sweep`.
    """
    values = options_with_defaults(SweepOptions, options)
    _check_sweep_options(paths, values)
    dim_sizes = _requested_sizes(dims or {})
    option_values = _requested_options(session_options or {})
    model_budget = parse_model_budget(budget) if budget is not None else None
    sweep_store = SweepStore(Path(store))
    outcome = SweepOutcome(store=Path(store))
    on_progress(SweepProgress(step="reading the store"))
    sweep_store.repair()
    releases = _requested_releases(values["onnxruntime"], outcome.notes, on_progress)
    models = find_sweep_models(
        [str(path) for path in paths],
        on_progress=lambda name: on_progress(SweepProgress(step=f"reading {name}")),
    )
    _check_dim_names(models, dim_sizes)
    outcome.notes += _model_notes(models, dim_sizes)
    settings = JobSettings(runs=values["runs"], timeout_s=values["timeout_s"])
    jobs = plan_jobs(models, releases, dims=dim_sizes, options=option_values, settings=settings)
    bytes_by_digest = {model.digest: model.file_bytes for model in models}
    with _open_execution(values["on"], values["processes"], values["memory_bytes"]) as execution:
        on_progress(SweepProgress(step="looking for the machines"))
        machines = execution.machine_classes()
        # Models that could not be read before, such as wrong paths, are not results of this sweep.
        statuses = job_column(sweep_store.folder, "status")
        sweep_store.remove([key for key, status in statuses.items() if status == "unreadable"])
        _store_unreadable_models(sweep_store, models, releases, settings, outcome)
        # Records are not read, since there may be very many.
        statuses = job_column(sweep_store.folder, "status")
        new_jobs = []
        done_keys = []
        for job in jobs:
            keys = [job.key(machine) for machine in machines]
            key = next((key for key in keys if key in statuses), None)
            if key is None or (values["retry_failed"] and statuses[key] != "completed"):
                new_jobs.append(job)
            else:
                done_keys.append(key)
        if values["retry_failed"]:
            keys = [job.key(machine) for job in new_jobs for machine in machines]
            sweep_store.remove([key for key in keys if key in statuses])
        for key in done_keys:
            _count_job(outcome, sweep_store, key, statuses[key], model_budget)
        on_progress(
            SweepProgress(step="estimating", total=len(new_jobs), machines=execution.machines)
        )
        planned_jobs = with_needed_memory(new_jobs, bytes_by_digest, execution.estimate)
        try:
            _run_jobs(planned_jobs, execution, sweep_store, outcome, model_budget, on_progress)
        except KeyboardInterrupt:
            outcome.interrupted = True
        finally:
            sweep_store.flush()
    return outcome


def _check_sweep_options(paths: Sequence[str | Path], values: Mapping[str, Any]) -> None:
    """Check the paths, and the values of `SweepOptions`.

    Raises:
        UsageError: a path or a value does not fit.
    """
    child_process_limits(timeout_s=values["timeout_s"])
    if math.isinf(values["timeout_s"]):
        raise ArgumentError("{timeout_s} must be a number of seconds.")
    if values["memory_bytes"] is not None and values["memory_bytes"] <= 0:
        raise ArgumentError("{memory_bytes} must be greater than 0.")
    if not all(map(str, paths)):
        raise UsageError("a path is empty. Check the variables of the command.")
    check_at_least_one("runs", values["runs"])
    check_at_least_one("processes", values["processes"])
    if not paths:
        raise UsageError("no model was given. Name models, folders, patterns, lists or URLs.")


def _run_jobs(
    planned_jobs: Sequence[PlannedJob],
    execution: SweepExecution,
    store: SweepStore,
    outcome: SweepOutcome,
    budget: ModelBudget | None,
    on_progress: OnSweepProgress,
) -> None:
    """Run the jobs, and store their results."""
    machines = execution.machine_classes()
    started = flushed = time.monotonic()
    done = failed = 0

    def jobs_not_done() -> Iterator[PlannedJob]:
        """Yield the jobs that no other sweep has done when their turn comes."""
        nonlocal done
        for planned_job in planned_jobs:
            keys = [planned_job.job.key(machine) for machine in machines]
            key = next(filter(store.has, keys), None)
            if key is None:
                yield planned_job
            else:
                _count_job(outcome, store, key, store.result(key).status, budget)
                done += 1

    def report(step: str) -> None:
        remaining_jobs = len(planned_jobs) - done
        seconds_per_job = (time.monotonic() - started) / done if done else None
        on_progress(
            SweepProgress(
                step=step,
                total=len(planned_jobs),
                done=done,
                failed=failed,
                remaining_s=None if seconds_per_job is None else seconds_per_job * remaining_jobs,
                machines=execution.machines,
            )
        )

    report("measuring")
    for result in execution.run(jobs_not_done()):
        if store.add(result):
            outcome.new_keys.add(result.key)
        _count_job(outcome, store, result.key, result.status, budget)
        done += 1
        failed += result.status != "completed"
        report(f"{result.job.model} · {result.job.onnxruntime}")
        if time.monotonic() - flushed > FLUSH_S:
            store.flush()
            flushed = time.monotonic()


def _count_job(
    outcome: SweepOutcome, store: SweepStore, key: str, status: str, budget: ModelBudget | None
) -> None:
    outcome.keys.append(key)
    if status != "completed":
        outcome.failed += 1
        return
    outcome.completed += 1
    if budget is None:
        return
    result = store.result(key)
    if result.profile is None:
        return
    try:
        breaches = budget.breaches(result.profile)
    except UsageError as error:
        outcome.notes.append(str(error))
        return
    if breaches:
        sentences = tuple(map(breach_sentence, breaches))
        outcome.exceeded.append(ExceededBudget(key=key, sentences=sentences))


def _store_unreadable_models(
    store: SweepStore,
    models: Sequence[ModelSource],
    releases: Mapping[str, str],
    settings: JobSettings,
    outcome: SweepOutcome,
) -> None:
    """Store a result without a digest for each model that cannot be read, for each release."""
    unreadable_models = [model for model in models if model.problem]
    for model, release in product(unreadable_models, releases):
        job = SweepJob(
            model=model.name,
            address=model.address,
            digest="",
            onnxruntime=release,
            runs=settings.runs,
            timeout_s=settings.timeout_s,
        )
        result = unfinished_result(job, status="unreadable", sentence=model.problem)
        store.add(result)
        outcome.keys.append(result.key)
        outcome.new_keys.add(result.key)
        outcome.failed += 1


@contextmanager
def _open_execution(
    on: str, processes: int | None, memory_bytes: int | None
) -> Iterator[SweepExecution]:
    count = processes or max(1, int(cpus_allowed(os.getpid()) or 1))
    memory = memory_bytes or most_available_bytes()
    if on == LOCAL_EXECUTION:
        with LocalExecution(processes=count, memory_bytes=memory) as execution:
            yield execution
        return
    if on != LOCAL_CLUSTER and not on.startswith(DASK_SCHEME):
        raise ArgumentError(
            f"{{on}} cannot be {on!r}. Write {LOCAL_EXECUTION}, {LOCAL_CLUSTER}, or"
            f" {DASK_SCHEME}host:port."
        )
    with DaskExecution(on, processes=count, memory_bytes=memory) as cluster:
        yield cluster


def _requested_releases(
    onnxruntime: Sequence[str], notes: list[str], on_progress: OnSweepProgress
) -> dict[str, str]:
    """Return the interpreter of each release; empty for an environment that memdiag provides.

    Releases that are not available are left out with a note.

    Raises:
        UsageError: a text is not a version, an environment has no onnxruntime, or nothing is left.
    """
    releases: dict[str, str] = {}
    versions, environments = runtimes.versions_and_environments(onnxruntime)
    for version in versions:
        on_progress(SweepProgress(step=f"looking for onnxruntime {version}"))
        try:
            if version == runtimes.LATEST_VERSION:
                version, note = runtimes.latest_version()
                notes += [f"latest is {version}: {note}"] if note else []
            runtimes.runtime_interpreter(version)
        except ProvisionError as error:
            notes.append(f"onnxruntime {version} is left out: {error}")
        else:
            releases[version] = ""
    for path in environments:
        python = runtimes.existing_interpreter(path)
        release = runtimes.interpreter_version(python)
        if release is None:
            raise UsageError(runtimes.no_runtime_text(path))
        releases[release] = str(python)
    if not onnxruntime:
        require_runtime("name releases with --onnxruntime")
        release = str(Runtime.installed())
        installed_distribution = runtimes.distribution_version() or ""
        releases[installed_distribution or release] = (
            "" if installed_distribution else sys.executable
        )
    if not releases:
        raise UsageError(" ".join(notes))
    return releases


def _requested_sizes(dims: Mapping[str, DimSizes]) -> dict[str, list[int]]:
    """Return the sizes of each dimension.

    Raises:
        UsageError: a value is not a size.
    """
    sizes_by_name: dict[str, list[int]] = {}
    for name, size in dims.items():
        if isinstance(size, tuple):
            check_size_range(name, size)
            sizes_by_name[name] = size_steps(*size, MAX_RANGE_SIZES)
        else:
            sizes_by_name[name] = list(dict.fromkeys(size if isinstance(size, list) else [size]))
        for number in sizes_by_name[name]:
            check_dims({name: number})
            if number < 0:
                raise UsageError(f"dimension {name!r} must be 0 or greater, not {number}.")
    return sizes_by_name


def _requested_options(session_options: Mapping[str, str | Sequence[str]]) -> dict[str, list[str]]:
    """Return the values of each session option.

    Raises:
        UsageError: an option cannot be set.
    """
    values_by_name = {
        name: [value] if isinstance(value, str) else list(dict.fromkeys(value))
        for name, value in session_options.items()
    }
    for name, values in values_by_name.items():
        for value in values:
            check_session_options({name: value})
    return values_by_name


def _model_notes(models: Sequence[ModelSource], sizes: Mapping[str, Sequence[int]]) -> list[str]:
    notes = [
        f"{', '.join(model.other_names)}: the same content as {model.name}, measured once"
        for model in models
        if model.other_names
    ]
    for name in sizes:
        models_without_dimension = models_without(models, name)
        if models_without_dimension:
            notes.append(
                f"{some_of(models_without_dimension)}: no free dimension {name!r}, by name or by"
                " role; measured without it"
            )
    return notes


def _check_dim_names(models: Sequence[ModelSource], names: Iterable[str]) -> None:
    """Check that at least one model has each dimension.

    Raises:
        UsageError: no model has a dimension; the message names a similar or the existing ones.
    """
    readable_models = [model for model in models if not model.problem]
    known_names = sorted(
        {name for model in readable_models for name in (*(model.dim_names or ()), *model.dim_roles)}
    )
    for name in names:
        if readable_models and len(models_without(readable_models, name)) == len(readable_models):
            similar = get_close_matches(name, known_names, n=1)
            hint = (
                f"Did you mean {similar[0]!r}?"
                if similar
                else f"Name one of {some_of(known_names)}."
            )
            if not known_names:
                hint = "All dimensions are fixed: leave it out."
            raise ArgumentError(f"{{dims}}: no model has a free dimension {name!r}. {hint}")
