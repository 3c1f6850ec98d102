"""What `memdiag.tune` and `memdiag.optimize` share, from the original to the record."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from math import inf
from pathlib import Path
from typing import Literal

from memdiag.api.arguments import OnProgress, check_dims
from memdiag.api.inputs import GivenInputs, read_given
from memdiag.api.new_models import NewModels
from memdiag.api.optimizer_outputs import optimizer_names
from memdiag.api.option_estimates import expected_savings
from memdiag.api.original_model import OriginalModel, measured_original
from memdiag.defaults import DEFAULT_MAX_SLOWDOWN
from memdiag.errors import MeasurementError, UsageError
from memdiag.model.model_file import ModelFile
from memdiag.ort.runtime import Runtime
from memdiag.records.measured_change import SearchEnd
from memdiag.records.tuning import Point, Tuning
from memdiag.runner.job import Deadline, Job, Limits, SessionConfig, TimeLimitReached
from memdiag.tuning.option_search import OptionSearch
from memdiag.tuning.options import TuningOption, tuning_options
from memdiag.tuning.point_evaluator import PointEvaluator
from memdiag.tuning.points import BUDGETS
from memdiag.tuning.record import tuning_record
from memdiag.verify.model_bound import reordered_bound
from memdiag.verify.outputs import Bound


@dataclass(frozen=True, kw_only=True)
class TuneConfig:
    """What is searched for, and how the model is created and run.

    The attributes are the arguments of `memdiag.optimize` with these names.
    """

    budget: Mapping[str, int] = field(default_factory=dict)
    only: Sequence[str] = ()
    max_slowdown: float = DEFAULT_MAX_SLOWDOWN
    unsafe: bool = False
    sessions: int = 1
    processes: int = 1
    load_from: Literal["path", "bytes"] = "path"
    telemetry: bool = False
    dims: Mapping[str, int] = field(default_factory=dict)
    inputs: GivenInputs = field(default_factory=dict)
    same_inputs: bool = False
    sizes: Sequence[int] | None = None
    max_difference: float | None = None

    def check(self, further_names: Sequence[str] = ()) -> None:
        """Check the values; `further_names` may be in `only` beside the names of options.

        Raises:
            UsageError: a budget, an option or a dimension is unknown, or a number too small.
        """
        unknown = sorted(self.budget.keys() - {*BUDGETS})
        if unknown:
            raise UsageError(f"unknown budget {unknown[0]!r}. Use one of {', '.join(BUDGETS)}.")
        names = sorted([*(option.name for option in tuning_options()), *further_names])
        unknown = sorted({*self.only} - {*names})
        if unknown and unknown[0] in optimizer_names():
            raise UsageError(f"{unknown[0]}: it is an optimizer. Try it with memdiag optimize.")
        if unknown:
            similar = get_close_matches(unknown[0], names, n=1)
            advice = f"Did you mean {similar[0]}?" if similar else f"Use one of {', '.join(names)}."
            raise UsageError(f"unknown option {unknown[0]!r}. {advice}")
        if self.sessions < 1:
            raise UsageError("sessions must be at least 1.")
        if self.processes < 1:
            raise UsageError("processes must be at least 1.")
        if self.max_difference is not None and not 0 < self.max_difference < 1:
            raise UsageError("--max-difference must be between 0 and 1.")
        check_dims(self.dims)

    def check_usable(self, job: Job) -> None:
        """Check that each option that is to be tried can be tried with `job`.

        Raises:
            UsageError: one cannot; with the reason.
        """
        runtime = Runtime.installed()
        for option in tuning_options():
            if option.name not in self.only:
                continue
            needs = f" (it needs {option.needs})" if option.needs else ""
            if not option.is_available(runtime):
                problem = f"is not available here, with onnxruntime {runtime}{needs}. Leave it out"
            elif not option.is_relevant(job):
                problem = f"makes no difference to this model and session{needs}. Leave it out"
            elif option.changes_values and not self.unsafe:
                problem = "changes values. Allow that with --unsafe"
            else:
                continue
            raise UsageError(f"{option.name}: it {problem}.")


def default_job(path: Path, config: TuneConfig, deadline: Deadline) -> Job:
    """Return the job of the defaults with the model at `path`: options are added to it."""
    session = SessionConfig(
        sessions=config.sessions, load_from=config.load_from, telemetry=config.telemetry
    )
    return Job(model=path, runs=None, session=session, limits=Limits(deadline=deadline))


def runnable_original(
    exits: ExitStack, file: ModelFile, job: Job, config: TuneConfig, report_progress: OnProgress
) -> OriginalModel:
    """Return the original `file` with its evaluator, open until `exits` closes.

    Raises:
        MeasurementError: the session cannot be created, the model does not run with the inputs, or
            the time limit passed before it was measured.
    """
    try:
        base = measured_original(
            exits,
            file,
            job,
            dims=config.dims,
            given=read_given(config.inputs),
            sizes=config.sizes,
            same_inputs=config.same_inputs,
            processes=config.processes,
            report_progress=report_progress,
        )
    except TimeLimitReached as limit:
        raise MeasurementError(
            f"{file.path}: the time limit passed before the defaults were measured. Increase"
            " --time-limit."
        ) from limit
    if base.evaluator is None:
        raise base.not_runnable()
    return base


def search_and_publish(
    base: OriginalModel,
    config: TuneConfig,
    *,
    started: float,
    report_progress: OnProgress,
    new_models: NewModels | None = None,
    ended_by: SearchEnd = "completion",
) -> Tuning:
    """Search for the best options, publish the chosen model if it is a new one; return the record.

    Args:
        base: the original, with an evaluator.
        config: what is searched for.
        started: when everything began, by `time.perf_counter`.
        report_progress: called with a few words about the current step.
        new_models: offers new models, and publishes one; None to try session options alone.
        ended_by: what ended the search before any option was tried, if something did.

    Raises:
        ModelError, MeasurementError: as in `memdiag.tune` and `memdiag.optimize`.
    """
    file, job, evaluator = base.file, base.job, base.evaluator
    assert evaluator is not None
    point_evaluator = PointEvaluator(
        model_evaluator=evaluator,
        bound=_bound(file, config, has_option=new_models is not None),
        scratch=base.scratch,
        max_slowdown=config.max_slowdown,
        budget=dict(config.budget),
    )
    usable = _usable(config, job, Runtime.parse(evaluator.onnxruntime))
    known_points: list[tuple[Point, tuple[TuningOption, ...]]] = []
    if new_models is not None:
        point_evaluator.without_hidden_names = new_models.without_hidden_names
        rewritten = new_models.rewritten_point(point_evaluator)
        if new_models.rewrite is not None and rewritten is not None:
            usable.insert(0, new_models.rewrite)
            known_points.append((rewritten, (new_models.rewrite,)))
    expected: dict[str, int] = {}
    notes: list[str] = []
    try:
        if new_models is not None and ended_by == "completion":
            folder = base.scratch / "optimizers"
            deadline = job.limits.deadline
            usable = (
                new_models.write_with_optimizers(job.model, folder, deadline, report_progress)
                + usable
            )
        if ended_by == "completion":
            expected, notes = _expected(base, usable, report_progress)
    except KeyboardInterrupt:
        ended_by = "interrupt"
    search = OptionSearch(
        point_evaluator=point_evaluator,
        usable=usable,
        together=config.only,
        known_points=known_points,
        budget=dict(config.budget),
        max_slowdown=config.max_slowdown,
        report_progress=report_progress,
        expected=expected,
        end=job.limits.deadline.at,
        setup_s=time.perf_counter() - started,
        ended_by=ended_by,
    )
    if ended_by == "completion":
        search.run()
    notes += [*base.inputs.notes, *evaluator.notes, *(new_models.notes if new_models else ())]
    if config.max_difference is not None and not config.inputs:
        notes.append(
            "outputs were compared for generated inputs; give real ones with --input NAME=FILE"
        )
    published = None
    if new_models is not None:
        report_progress("writing the result")
        published = new_models.publish(search.chosen.options)

    def record() -> Tuning:
        return tuning_record(
            file,
            search,
            published,
            untried=new_models.untried if new_models is not None else (),
            notes=notes,
            dimensions=base.inputs.dimensions,
            duration_s=round(time.perf_counter() - started, 6),
        )

    try:
        return record()
    except KeyboardInterrupt:  # everything is measured and written: only a second Ctrl-C loses it
        return record()


def _usable(config: TuneConfig, job: Job, runtime: Runtime) -> list[TuningOption]:
    """Return the options of the session that are tried."""
    return [
        option
        for option in tuning_options()
        if (not config.only or option.name in config.only)
        and option.is_available(runtime)
        and option.is_relevant(job)
        and (config.unsafe or not option.changes_values)
    ]


def _expected(
    base: OriginalModel,
    options: Sequence[TuningOption],
    report_progress: OnProgress,
) -> tuple[dict[str, int], list[str]]:
    """Return the estimated saving of each option, in bytes by name, and a note if it is unknown.

    Nothing is estimated without a time limit: all options are measured then.
    """
    if base.job.limits.deadline.at == inf:
        return {}, []
    report_progress("estimating what options save")
    assert base.evaluator is not None
    runtime = Runtime.parse(base.evaluator.onnxruntime)
    sizes = {dimension.name: dimension.size for dimension in base.inputs.dimensions}
    try:
        return expected_savings(base.file, runtime, base.job, sizes, options), []
    except Exception as error:  # a defect of the estimate must not lose the fix
        return {}, [f"what options save could not be estimated ({type(error).__name__})"]


def _bound(file: ModelFile, config: TuneConfig, *, has_option: bool) -> Bound:
    """Return how far outputs may differ.

    `has_option`: whether the command has ``--max-difference``, which messages may suggest.
    """
    if config.max_difference is not None:
        return Bound.given(config.max_difference)
    return replace(reordered_bound(file), may_be_given=has_option)
