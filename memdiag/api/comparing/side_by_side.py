"""Measurement of columns side by side: with the same inputs, in turn, in fresh processes."""

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import msgspec
import numpy as np

from memdiag.api.arguments import OnProgress
from memdiag.api.comparing.column_plans import ColumnPlan
from memdiag.api.comparison_inputs import ComparisonInputs, find_comparison_inputs
from memdiag.api.profile import profile_job
from memdiag.comparison.changes import is_decided
from memdiag.comparison.columns import graph_of, with_profiles
from memdiag.comparison.reference import OutputComparison, ReferenceSession
from memdiag.defaults import COMPARISON_REPEATS
from memdiag.errors import MeasurementError, MemdiagError, UsageError
from memdiag.model.axis_roles import dims_by_name
from memdiag.model.count_inputs import free_axes
from memdiag.model.dimensions import InputAxis, unsized_axes
from memdiag.model.model_file import ModelFile, open_model
from memdiag.model.tensor_types import type_name_of
from memdiag.paths import path_text
from memdiag.records.comparison import ComparisonColumn
from memdiag.records.dimension import Dimension
from memdiag.records.measured_change import SearchEnd
from memdiag.records.profile import Input, Profile
from memdiag.runner.job import Deadline, Feed, InputConfig, Job, TimeLimitReached
from memdiag.runner.try_inputs import try_inputs
from memdiag.units import some_of
from memdiag.verify.model_evaluator import InputSet
from memdiag.verify.outputs import unstable_output_notes
from memdiag.verify.step_estimate import StepEstimate

MIN_COLUMN_REPEATS = 2
"""Processes of each column after which outputs and latency are compared, and further processes are
measured only where they may change what differs."""

MIN_COLUMN_RUNS = 2
"""Runs after the first one in each process: the second run takes memory that the first planned."""

MAX_SETTLED_BYTES = 256 << 10
"""The most by which resident memory still changes when it counts as steady."""

MAX_NAMED_INPUTS = 2
"""Inputs of each model in a message."""


@dataclass(kw_only=True)
class SideBySide:
    """Measures the columns of a comparison with the inputs of the first model that runs.

    Attributes:
        scratch: a folder for temporary files.
        exits: closes the open models.
        inputs: sizes and arrays of the inputs, the number of runs, and whether all are the same.
        repeats: number of processes for each column; None for as many as an answer needs, from
            `MIN_COLUMN_REPEATS` to `COMPARISON_REPEATS`.
        all_runs: run as often in each process; by default only in the first of each column, and in
            the others until memory no longer changes.
        takes_xray: identify the owners of resident bytes in the first process of each column.
        is_sequence: each column is compared with the one before it, rather than with the first.
        own_inputs: generate other inputs for models that do not run with the first model's inputs.
        on_progress: called with the current step.
        notes: notes on all columns.
        ended_by: what ended the measurement; the columns up to then are returned in any case.
    """

    scratch: Path
    exits: ExitStack
    inputs: InputConfig
    repeats: int | None
    all_runs: bool
    takes_xray: bool
    is_sequence: bool
    own_inputs: bool
    on_progress: OnProgress
    notes: list[str] = field(default_factory=list)
    ended_by: SearchEnd = "completion"
    _files: dict[Path, ModelFile | MemdiagError] = field(default_factory=dict)
    _trials: ComparisonInputs = field(default_factory=ComparisonInputs)
    _own: dict[str, ComparisonInputs] = field(default_factory=dict)
    _profiles: dict[str, list[Profile]] = field(default_factory=dict)
    _failures: dict[str, str] = field(default_factory=dict)
    _comparisons: dict[str, OutputComparison] = field(default_factory=dict)
    _opened: Sequence[ColumnPlan] = ()
    _first: ColumnPlan | None = None
    _reference: Job | None = None
    _timed: int = 0
    _folders: int = 0

    def measure(self, plans: Sequence[ColumnPlan]) -> list[ComparisonColumn]:
        """Return a column for each of `plans`, whether it could be measured or not.

        Raises:
            UsageError: the given inputs or dimensions do not fit the models.
        """
        opened = [plan for plan in plans if plan.status == "completed" and self._can_open(plan)]
        self._profiles = {plan.label: [] for plan in opened}
        self._failures, self._comparisons = {}, {}
        try:
            started = time.monotonic()
            self._find_inputs(opened)
            self._measure_rounds(opened, about_s=time.monotonic() - started)
        except KeyboardInterrupt:
            self.ended_by = "interrupt"
        except TimeLimitReached:
            self.ended_by = "time_limit"
        return [self._measured_column(plan) for plan in plans]

    def _measure_rounds(self, opened: Sequence[ColumnPlan], *, about_s: float) -> None:
        """Measure a process of each column in turn; after the first rounds compare outputs.

        An early end then leaves figures of all columns. `about_s` is the time that the first
        process may take.

        Raises:
            TimeLimitReached: the deadline passed.
        """
        most = self.repeats or COMPARISON_REPEATS
        # One column alone is compared with others that are measured later.
        least = MIN_COLUMN_REPEATS if self.repeats is None and len(opened) > 1 else most
        steps = StepEstimate(first_s=about_s, end=self._common_deadline.at)
        for round_index in range(most):
            if round_index == min(least, MIN_COLUMN_REPEATS):
                self._compare_outputs(opened, steps)
            left = opened if round_index < least else self._undecided_plans(opened)
            # Every other round is in reverse order, so that no column is always the last.
            for index, plan in enumerate(left if round_index % 2 == 0 else left[::-1]):
                if not self._is_measurable(plan):
                    continue
                further = max(1, least - round_index) * len(left) - index - 1
                compared = len(opened) - 1 if round_index < MIN_COLUMN_REPEATS else 0
                about = steps.step(further + compared)
                self.on_progress(f"{plan.label}, process {round_index + 1} of {most} ({about})")
                self._measure_process(plan, is_first=round_index == 0)
        if most <= MIN_COLUMN_REPEATS:
            self._compare_outputs(opened, steps)

    def _measure_process(self, plan: ColumnPlan, *, is_first: bool) -> None:
        try:
            profile = self._profile_plan(plan, is_first=is_first)
        except MeasurementError as error:
            self._failures[plan.label] = str(error)
            return
        if not _is_completed_profile(profile):
            self._common_deadline.check()
        self._profiles[plan.label].append(profile)

    def _is_measurable(self, plan: ColumnPlan) -> bool:
        """Return whether no process of `plan` failed so far."""
        label = plan.label
        return label not in self._failures and all(
            map(_is_completed_profile, self._profiles[label])
        )

    def _undecided_plans(self, opened: Sequence[ColumnPlan]) -> list[ColumnPlan]:
        """Return the columns of which further processes may change what differs."""
        plans = [plan for plan in opened if self._is_measurable(plan)]
        columns = [self._measured_column(plan) for plan in plans]
        wanted: set[int] = set()
        for index in range(1, len(plans)):
            before = index - 1 if self.is_sequence else 0
            if not is_decided(columns[before], columns[index]):
                wanted |= {before, index}
        return [plans[index] for index in sorted(wanted)]

    def _measured_column(self, plan: ColumnPlan) -> ComparisonColumn:
        """Return the column of `plan` as far as it was measured."""
        failure = self._failures.get(plan.label, "")
        profiles = self._profiles.get(plan.label, ())
        file = self._files.get(plan.job.model)
        column = ComparisonColumn(
            label=plan.label,
            status=plan.status,
            message=plan.message,
            model=plan.model or path_text(plan.job.model),
            optimizer=plan.optimizer,
            graph=graph_of(file) if isinstance(file, ModelFile) else None,
        )
        if isinstance(file, MemdiagError):
            failure = str(file)
        if failure:
            return msgspec.structs.replace(column, status="failed", message=failure)
        if not profiles:
            return column
        comparison = self._comparisons.get(plan.label)
        return with_profiles(column, profiles, comparison, self._timed_runs(plan))

    def _can_open(self, plan: ColumnPlan) -> bool:
        path = plan.job.model
        if path not in self._files:
            try:
                self._files[path] = self.exits.enter_context(open_model(path))
            except MemdiagError as error:
                self._files[path] = error
        return isinstance(self._files[path], ModelFile)

    def _opened_file(self, plan: ColumnPlan) -> ModelFile:
        file = self._files[plan.job.model]
        assert isinstance(file, ModelFile)
        return file

    def _find_inputs(self, opened: Sequence[ColumnPlan]) -> None:
        """Generate the inputs of all columns, with the first column that runs with any."""
        self._opened = opened
        self._check_dims(opened)
        self.on_progress("finding inputs that the model runs with")
        for plan in opened:
            if not self._trials.sets:
                self._trials = self._find_trials(plan)
                self._first = plan
        self.notes += self._trials.notes
        if opened and not self._trial_sets:
            self.notes.append("no generated inputs run: sessions are created, but not run")
        for plan in opened if self.own_inputs and self._trial_sets else ():
            feeds = self._trial_sets[0].feeds
            # The first column runs with its own.
            runs = plan is self._first or self._can_run(plan, feeds)
            if not runs or not self._has_given_sizes(plan, feeds):
                self._own[plan.label] = self._find_trials(plan)

    def _can_run(self, plan: ColumnPlan, feeds: Sequence[Feed]) -> bool:
        return try_inputs(replace(plan.job, runs=None), [feeds]) is not None

    def _check_dims(self, plans: Sequence[ColumnPlan]) -> None:
        """Check that at least one model has each dimension of --dim.

        Raises:
            UsageError: none of the models has a dimension of that name.
        """
        names = {plan.label: [axis.key for axis in self._free_input_axes(plan)] for plan in plans}
        unknown = [
            name
            for name in self.inputs.dims
            if not any(
                self._given_plan_dims(plan, [name]).keys() & set(names[plan.label])
                for plan in plans
            )
        ]
        if unknown and len({plan.job.model for plan in plans}) > 1:
            known = (
                f"{label} has {', '.join(dict.fromkeys(keys)) or 'none'}"
                for label, keys in names.items()
            )
            raise UsageError(f"unknown dimension {unknown[0]!r}: {'; '.join(known)}.")

    def _free_input_axes(self, plan: ColumnPlan) -> list[InputAxis]:
        return unsized_axes(free_axes(self._opened_file(plan).graph))

    def _given_plan_dims(self, plan: ColumnPlan, names: Collection[str]) -> dict[str, int]:
        """Return the sizes of --dim called `names` by the names of dimensions of a model."""
        file = self._opened_file(plan)
        dims = {name: self.inputs.dims[name] for name in names}
        return dims_by_name(file.graph, file.functions, dims)

    def _has_given_sizes(self, plan: ColumnPlan, feeds: Sequence[Feed]) -> bool:
        """Return whether `feeds`, generated for another model, have the sizes of --dim."""
        shapes = _feed_shapes(feeds)
        dims = self._given_plan_dims(plan, self.inputs.dims)
        return all(
            dims.get(axis.key, size) == size
            for axis in self._free_input_axes(plan)
            if (size := _axis_size(axis, shapes)) is not None
        )

    def _dimensions_of(self, plan: ColumnPlan) -> tuple[Dimension, ...]:
        """Return the sizes of the free dimensions of `plan`, by the names of its model."""
        own = self._own.get(plan.label)
        if own is not None:
            return own.dimensions
        if self._first is None or plan.job.model == self._first.job.model:
            return self._trials.dimensions
        sizes = {dimension.name: dimension for dimension in self._trials.dimensions}
        first = {
            (axis.input, axis.position): sizes[axis.key]
            for axis in self._free_input_axes(self._first)
            if axis.key in sizes
        }
        shapes = _feed_shapes(self._trial_sets[0].feeds)
        dims = self._given_plan_dims(plan, self.inputs.dims)
        reason = "the size that the first model has"
        dimensions = {}
        for axis in self._free_input_axes(plan):
            same = first.get((axis.input, axis.position))
            size = _axis_size(axis, shapes)
            if same is not None:
                source = "given" if axis.key in dims else same.source
                dimensions[axis.key] = msgspec.structs.replace(same, name=axis.key, source=source)
            elif size is not None:
                dimensions[axis.key] = Dimension(
                    name=axis.key, size=size, role="size", source="given", reason=reason
                )
        return tuple(dimensions.values())

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The free dimensions of the inputs with the sizes that were chosen."""
        return self._trials.dimensions

    @property
    def _trial_sets(self) -> tuple[InputSet, ...]:
        return self._trials.sets

    def _find_trials(self, plan: ColumnPlan) -> ComparisonInputs:
        job = replace(plan.job, runs=None)
        folder = self._new_scratch_folder("inputs")
        file = self._opened_file(plan)
        names = {axis.key for axis in self._free_input_axes(plan)}
        all_names = names.union(
            *((axis.key for axis in self._free_input_axes(opened)) for opened in self._opened)
        )
        # A size that only another model has is skipped; one that none has is an error.
        dims = {
            name: size
            for name, size in self._given_plan_dims(plan, self.inputs.dims).items()
            if name in names or name not in all_names
        }
        return find_comparison_inputs(file, job, folder, replace(self.inputs, dims=dims), sizes=())

    def _profile_plan(self, plan: ColumnPlan, *, is_first: bool) -> Profile:
        # A model that runs with no inputs gets the first model's inputs: the profile has the error.
        own = self._own.get(plan.label, self._trials)
        sets = own.sets or self._trial_sets
        runs = self.inputs.runs if is_first or self.all_runs else self._settling_runs
        job = replace(plan.job, runs=runs if sets else None)
        if sets:
            feeds = tuple(trial.feeds for trial in sets)
            job = replace(job, feeds=feeds[0], later_feeds=feeds)
        return profile_job(
            self._opened_file(plan),
            job,
            inputs=self._input_descriptions(sets[0]) if sets else (),
            dimensions=self._dimensions_of(plan),
            takes_xray=self.takes_xray and is_first,
        )

    @property
    def _settling_runs(self) -> int:
        """The number of runs after which memory changed no more in any first process."""
        firsts = (profiles[0] for profiles in self._profiles.values() if profiles)
        return max([MIN_COLUMN_RUNS, *map(_runs_until_settled, firsts)])

    def _input_descriptions(self, trial: InputSet) -> tuple[Input, ...]:
        arrays = {
            feed.name: np.load(feed.files[0], mmap_mode="r") for feed in trial.feeds if feed.files
        }
        return tuple(
            Input(
                name=feed.name,
                dtype=type_name_of(arrays[feed.name]) if feed.name in arrays else "",
                shape=None if feed.sequence else arrays[feed.name].shape,
                source="given" if feed.name in self.inputs.arrays else "generated",
                note=f"with {trial.name}",
                varied=feed.vary is not None,
            )
            for feed in trial.feeds
        )

    def _choose_timed(self, profiles: Sequence[Profile]) -> None:
        """Choose the set of inputs that takes longest, for latency."""
        count = len(self._trial_sets)
        runs = [
            [run.latency_s for profile in profiles for run in profile.runs[index::count]]
            for index in range(count)
        ]
        medians = [median(latencies) for latencies in runs if latencies]
        self._timed = medians.index(max(medians)) if medians else 0

    def _timed_runs(self, plan: ColumnPlan) -> slice:
        if plan.label in self._own:
            return slice(None)
        return slice(self._timed, None, max(1, len(self._trial_sets)))

    def _compare_outputs(self, opened: Sequence[ColumnPlan], steps: StepEstimate) -> None:
        """Compare outputs and latencies with the first column that completed."""
        completed = [plan for plan in opened if self._is_measurable(plan)]
        if self._reference is None and completed:
            self._choose_timed(self._profiles[completed[0].label])
        for plan in completed:
            if plan.label in self._own:
                difference = OutputComparison(failure=self._difference_in_inputs(plan))
                self._comparisons[plan.label] = difference
        others = [plan for plan in completed if plan.label not in self._own]
        if self._reference is None and others:
            self._reference = others.pop(0).job
        if self._reference is None or not others or not self._trial_sets:
            return
        with ReferenceSession(
            self._reference, self._trial_sets, self._new_scratch_folder("outputs")
        ) as reference:
            self.notes += unstable_output_notes(reference.unstable)
            for index, plan in enumerate(others):
                about = steps.step(len(others) - index - 1)
                self.on_progress(f"outputs and latency of {plan.label} ({about})")
                try:
                    comparison = reference.compare(plan.job, self._timed)
                except MeasurementError as error:
                    comparison = OutputComparison(failure=str(error))
                self._comparisons[plan.label] = comparison

    @property
    def _common_deadline(self) -> Deadline:
        return self._opened[0].job.limits.deadline if self._opened else Deadline()

    def _difference_in_inputs(self, plan: ColumnPlan) -> str:
        """Return why `plan`, which has inputs of its own, is not compared with the first."""
        first, own = self._first, self._own[plan.label]
        assert first is not None
        if not own.sets:
            return f"{plan.label} runs with no inputs that memdiag can generate"
        inputs = (_feeds_text(self._trial_sets[0].feeds), _feeds_text(own.sets[0].feeds))
        return (
            f"the inputs differ ({first.label} runs with {inputs[0]}, {plan.label} with"
            f" {inputs[1]})"
        )

    def _new_scratch_folder(self, name: str) -> Path:
        self._folders += 1
        return self.scratch / f"{name}-{self._folders}"


def _feed_shapes(feeds: Sequence[Feed]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the saved arrays, by input."""
    return {
        feed.name: np.load(feed.files[0], mmap_mode="r").shape
        for feed in feeds
        if feed.files and not feed.sequence
    }


def _feeds_text(feeds: Sequence[Feed]) -> str:
    """Return the first inputs with their shapes: ``ids [1, 128], mask [1, 128] and 2 more``."""
    shapes = _feed_shapes(feeds)
    names = [
        f"{feed.name} {list(shapes[feed.name])}" if feed.name in shapes else feed.name
        for feed in feeds
    ]
    return some_of(names, MAX_NAMED_INPUTS)


def _axis_size(axis: InputAxis, shapes: Mapping[str, tuple[int, ...]]) -> int | None:
    """Return the size of `axis` in `shapes`; None if its input has no array of this rank."""
    shape = shapes.get(axis.input, ())
    return shape[axis.position] if axis.position < len(shape) else None


def _runs_until_settled(profile: Profile) -> int:
    """Return the number of runs, after the first one, after which memory hardly changed."""
    sizes = [run.rss_bytes for run in profile.runs]
    changing = (n for n, size in enumerate(sizes, 1) if abs(size - sizes[-1]) > MAX_SETTLED_BYTES)
    return max(changing, default=0) + 1


def _is_completed_profile(profile: Profile) -> bool:
    return profile.outcome.completed
