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
"""Processes of each column before outputs and latency are compared. After that, a column is only
measured again if another process may change which figures differ."""

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
        inputs: sizes and arrays of the inputs, the number of runs, and whether the contents are the
            same in all runs.
        repeats: number of processes for each column; None for as many as an answer needs, from
            `MIN_COLUMN_REPEATS` to `COMPARISON_REPEATS`.
        all_runs: make all runs in each process. Otherwise only the first process of each column
            makes them, and later processes run until memory no longer changes.
        takes_xray: identify the owners of resident bytes in the first process of each column.
        is_sequence: each column is compared with the one before it, rather than with the first.
        own_inputs: generate other inputs for models that do not run with the first model's inputs.
        on_progress: called with the current step.
        notes: notes on all columns.
        ended_by: what ended the measurement. The columns measured until then are returned in any
            case.
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
    _inputs_by_label: dict[str, ComparisonInputs] = field(default_factory=dict)
    _profiles: dict[str, list[Profile]] = field(default_factory=dict)
    _failures: dict[str, str] = field(default_factory=dict)
    _comparisons: dict[str, OutputComparison] = field(default_factory=dict)
    _opened_plans: Sequence[ColumnPlan] = ()
    _first: ColumnPlan | None = None
    _reference: Job | None = None
    _timed_set: int = 0
    _folder_count: int = 0

    def measure(self, plans: Sequence[ColumnPlan]) -> list[ComparisonColumn]:
        """Return a column for each of `plans`, whether it could be measured or not.

        Raises:
            UsageError: the given inputs or dimensions do not fit the models.
        """
        opened_plans = [
            plan for plan in plans if plan.status == "completed" and self._can_open(plan)
        ]
        self._profiles = {plan.label: [] for plan in opened_plans}
        self._failures, self._comparisons = {}, {}
        try:
            started = time.monotonic()
            self._find_inputs(opened_plans)
            self._measure_rounds(opened_plans, first_process_s=time.monotonic() - started)
        except KeyboardInterrupt:
            self.ended_by = "interrupt"
        except TimeLimitReached:
            self.ended_by = "time_limit"
        return [self._measured_column(plan) for plan in plans]

    def _measure_rounds(
        self, opened_plans: Sequence[ColumnPlan], *, first_process_s: float
    ) -> None:
        """Measure a process of each column in turn; after the first rounds compare outputs.

        An early end then leaves figures of all columns. The first process may take about
        `first_process_s` seconds.

        Raises:
            TimeLimitReached: the deadline passed.
        """
        max_repeats = self.repeats or COMPARISON_REPEATS
        # One column alone is compared with others that are measured later.
        min_repeats = (
            MIN_COLUMN_REPEATS if self.repeats is None and len(opened_plans) > 1 else max_repeats
        )
        steps = StepEstimate(first_s=first_process_s, end=self._common_deadline.at)
        for round_index in range(max_repeats):
            if round_index == min(min_repeats, MIN_COLUMN_REPEATS):
                self._compare_outputs(opened_plans, steps)
            round_plans = (
                opened_plans if round_index < min_repeats else self._undecided_plans(opened_plans)
            )
            # Every other round is in reverse order, so that no column is always the last.
            for index, plan in enumerate(
                round_plans if round_index % 2 == 0 else round_plans[::-1]
            ):
                if not self._is_measurable(plan):
                    continue
                later_processes = max(1, min_repeats - round_index) * len(round_plans) - index - 1
                comparisons = len(opened_plans) - 1 if round_index < MIN_COLUMN_REPEATS else 0
                step_text = steps.step(later_processes + comparisons)
                self.on_progress(
                    f"{plan.label}, process {round_index + 1} of {max_repeats} ({step_text})"
                )
                self._measure_process(plan, is_first=round_index == 0)
        if max_repeats <= MIN_COLUMN_REPEATS:
            self._compare_outputs(opened_plans, steps)

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

    def _undecided_plans(self, opened_plans: Sequence[ColumnPlan]) -> list[ColumnPlan]:
        """Return the plans of columns for which another process may change which figures differ."""
        plans = [plan for plan in opened_plans if self._is_measurable(plan)]
        columns = [self._measured_column(plan) for plan in plans]
        undecided_indices: set[int] = set()
        for index in range(1, len(plans)):
            reference_index = index - 1 if self.is_sequence else 0
            if not is_decided(columns[reference_index], columns[index]):
                undecided_indices |= {reference_index, index}
        return [plans[index] for index in sorted(undecided_indices)]

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

    def _find_inputs(self, opened_plans: Sequence[ColumnPlan]) -> None:
        """Generate the inputs of all columns, for the first column that runs with any inputs."""
        self._opened_plans = opened_plans
        self._check_dims(opened_plans)
        self.on_progress("finding inputs that the model runs with")
        for plan in opened_plans:
            if not self._trials.sets:
                self._trials = self._find_trials(plan)
                self._first = plan
        self.notes += self._trials.notes
        if opened_plans and not self._trial_sets:
            self.notes.append("no generated inputs run: sessions are created, but not run")
        for plan in opened_plans if self.own_inputs and self._trial_sets else ():
            feeds = self._trial_sets[0].feeds
            # The first column runs with the inputs that were generated for it.
            can_run = plan is self._first or self._can_run(plan, feeds)
            if not can_run or not self._has_given_sizes(plan, feeds):
                self._inputs_by_label[plan.label] = self._find_trials(plan)

    def _can_run(self, plan: ColumnPlan, feeds: Sequence[Feed]) -> bool:
        return try_inputs(replace(plan.job, runs=None), [feeds]) is not None

    def _check_dims(self, plans: Sequence[ColumnPlan]) -> None:
        """Check that at least one model has each dimension of --dim.

        Raises:
            UsageError: none of the models has a dimension of that name.
        """
        names = {plan.label: [axis.key for axis in self._free_input_axes(plan)] for plan in plans}
        unknown_names = [
            name
            for name in self.inputs.dims
            if not any(
                self._given_plan_dims(plan, [name]).keys() & set(names[plan.label])
                for plan in plans
            )
        ]
        if unknown_names and len({plan.job.model for plan in plans}) > 1:
            dimensions_by_model = (
                f"{label} has {', '.join(dict.fromkeys(keys)) or 'none'}"
                for label, keys in names.items()
            )
            raise UsageError(
                f"unknown dimension {unknown_names[0]!r}: {'; '.join(dimensions_by_model)}."
            )

    def _free_input_axes(self, plan: ColumnPlan) -> list[InputAxis]:
        return unsized_axes(free_axes(self._opened_file(plan).graph))

    def _given_plan_dims(self, plan: ColumnPlan, names: Collection[str]) -> dict[str, int]:
        """Return the sizes that --dim gives for `names`, by the names of a model's dimensions."""
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
        inputs_of_plan = self._inputs_by_label.get(plan.label)
        if inputs_of_plan is not None:
            return inputs_of_plan.dimensions
        if self._first is None or plan.job.model == self._first.job.model:
            return self._trials.dimensions
        dimension_by_name = {dimension.name: dimension for dimension in self._trials.dimensions}
        dimension_by_axis = {
            (axis.input, axis.position): dimension_by_name[axis.key]
            for axis in self._free_input_axes(self._first)
            if axis.key in dimension_by_name
        }
        shapes = _feed_shapes(self._trial_sets[0].feeds)
        dims = self._given_plan_dims(plan, self.inputs.dims)
        reason = "the size that the first model has"
        dimensions = {}
        for axis in self._free_input_axes(plan):
            first_dimension = dimension_by_axis.get((axis.input, axis.position))
            size = _axis_size(axis, shapes)
            if first_dimension is not None:
                source = "given" if axis.key in dims else first_dimension.source
                dimensions[axis.key] = msgspec.structs.replace(
                    first_dimension, name=axis.key, source=source
                )
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
            *(
                (axis.key for axis in self._free_input_axes(opened_plan))
                for opened_plan in self._opened_plans
            )
        )
        # A dimension that only another model has is skipped. One that no model has is an error.
        dims = {
            name: size
            for name, size in self._given_plan_dims(plan, self.inputs.dims).items()
            if name in names or name not in all_names
        }
        return find_comparison_inputs(file, job, folder, replace(self.inputs, dims=dims), sizes=())

    def _profile_plan(self, plan: ColumnPlan, *, is_first: bool) -> Profile:
        # A model that runs with no inputs gets the first model's inputs: the profile has the error.
        inputs_of_plan = self._inputs_by_label.get(plan.label, self._trials)
        sets = inputs_of_plan.sets or self._trial_sets
        runs = self.inputs.runs if is_first or self.all_runs else self._settling_runs
        job = replace(plan.job, runs=runs if sets else None)
        if sets:
            feeds = tuple(input_set.feeds for input_set in sets)
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
        """The number of runs after which memory no longer changed in any first process."""
        firsts = (profiles[0] for profiles in self._profiles.values() if profiles)
        return max([MIN_COLUMN_RUNS, *map(_runs_until_settled, firsts)])

    def _input_descriptions(self, input_set: InputSet) -> tuple[Input, ...]:
        arrays = {
            feed.name: np.load(feed.files[0], mmap_mode="r")
            for feed in input_set.feeds
            if feed.files
        }
        return tuple(
            Input(
                name=feed.name,
                dtype=type_name_of(arrays[feed.name]) if feed.name in arrays else "",
                shape=None if feed.sequence else arrays[feed.name].shape,
                source="given" if feed.name in self.inputs.arrays else "generated",
                note=f"with {input_set.name}",
                varied=feed.vary is not None,
            )
            for feed in input_set.feeds
        )

    def _choose_timed_set(self, profiles: Sequence[Profile]) -> None:
        """Choose the set of inputs that takes longest, for latency."""
        count = len(self._trial_sets)
        latencies_by_set = [
            [run.latency_s for profile in profiles for run in profile.runs[index::count]]
            for index in range(count)
        ]
        medians = [median(latencies) for latencies in latencies_by_set if latencies]
        self._timed_set = medians.index(max(medians)) if medians else 0

    def _timed_runs(self, plan: ColumnPlan) -> slice:
        if plan.label in self._inputs_by_label:
            return slice(None)
        return slice(self._timed_set, None, max(1, len(self._trial_sets)))

    def _compare_outputs(self, opened_plans: Sequence[ColumnPlan], steps: StepEstimate) -> None:
        """Compare outputs and latencies with the first column that completed."""
        completed = [plan for plan in opened_plans if self._is_measurable(plan)]
        if self._reference is None and completed:
            self._choose_timed_set(self._profiles[completed[0].label])
        for plan in completed:
            if plan.label in self._inputs_by_label:
                difference = OutputComparison(failure=self._difference_in_inputs(plan))
                self._comparisons[plan.label] = difference
        compared_plans = [plan for plan in completed if plan.label not in self._inputs_by_label]
        if self._reference is None and compared_plans:
            self._reference = compared_plans.pop(0).job
        if self._reference is None or not compared_plans or not self._trial_sets:
            return
        with ReferenceSession(
            self._reference, self._trial_sets, self._new_scratch_folder("outputs")
        ) as reference:
            self.notes += unstable_output_notes(reference.unstable)
            for index, plan in enumerate(compared_plans):
                step_text = steps.step(len(compared_plans) - index - 1)
                self.on_progress(f"outputs and latency of {plan.label} ({step_text})")
                try:
                    comparison = reference.compare(plan.job, self._timed_set)
                except MeasurementError as error:
                    comparison = OutputComparison(failure=str(error))
                self._comparisons[plan.label] = comparison

    @property
    def _common_deadline(self) -> Deadline:
        return self._opened_plans[0].job.limits.deadline if self._opened_plans else Deadline()

    def _difference_in_inputs(self, plan: ColumnPlan) -> str:
        """Return why `plan`, which has inputs of its own, is not compared with the first column."""
        first, inputs_of_plan = self._first, self._inputs_by_label[plan.label]
        assert first is not None
        if not inputs_of_plan.sets:
            return f"{plan.label} runs with no inputs that memdiag can generate"
        input_texts = (
            _feeds_text(self._trial_sets[0].feeds),
            _feeds_text(inputs_of_plan.sets[0].feeds),
        )
        return (
            f"the inputs differ ({first.label} runs with {input_texts[0]}, {plan.label} with"
            f" {input_texts[1]})"
        )

    def _new_scratch_folder(self, name: str) -> Path:
        self._folder_count += 1
        return self.scratch / f"{name}-{self._folder_count}"


def _feed_shapes(feeds: Sequence[Feed]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the saved arrays, by input."""
    return {
        feed.name: np.load(feed.files[0], mmap_mode="r").shape
        for feed in feeds
        if feed.files and not feed.sequence
    }


def _feeds_text(feeds: Sequence[Feed]) -> str:
    """Return the names and shapes of the first inputs: ``ids [1, 128], mask [1, 128] and 2
    more``."""
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
    changing_runs = (
        number for number, size in enumerate(sizes, 1) if abs(size - sizes[-1]) > MAX_SETTLED_BYTES
    )
    return max(changing_runs, default=0) + 1


def _is_completed_profile(profile: Profile) -> bool:
    return profile.outcome.completed
