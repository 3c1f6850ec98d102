"""Measuring subjects side by side: the same inputs for all, in turn, each in fresh processes."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import msgspec
import numpy as np

from memdiag.api.comparing.columns import column_of
from memdiag.api.comparing.subjects import Say, Subject
from memdiag.api.profile import profile_job
from memdiag.api.trials import Trials, trials
from memdiag.comparison.reference import OutputComparison, Reference
from memdiag.errors import MeasurementError, MemdiagError, UsageError
from memdiag.model.dimensions import Axis, axes_of
from memdiag.model.model_file import ModelFile, open_model
from memdiag.records.comparison import Column
from memdiag.records.dimension import Dimension
from memdiag.records.profile import Input, Profile
from memdiag.runner.job import Feed, Job
from memdiag.runner.try_inputs import try_inputs
from memdiag.verify.model_evaluator import InputSet


@dataclass(kw_only=True)
class SideBySide:
    """Measures subjects, all at once or later, with the inputs of the first one that runs.

    `own_inputs` says that a model that does not run with those gets inputs of its own. `notes` are
    what there is to say of all columns; `interrupted` that Ctrl-C ended it: what had been measured
    until then was returned.
    """

    scratch: Path
    exits: ExitStack
    dims: Mapping[str, int]
    given: Mapping[str, np.ndarray]
    runs: int
    processes: int
    xray: bool
    own_inputs: bool
    say: Say
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False
    _files: dict[Path, ModelFile | MemdiagError] = field(default_factory=dict)
    _trials: Trials = field(default_factory=Trials)
    _own: dict[str, Trials] = field(default_factory=dict)
    _live: Sequence[Subject] = ()
    _first: Subject | None = None
    _reference: Job | None = None
    _timed: int = 0
    _folders: int = 0

    def measure(self, subjects: Sequence[Subject]) -> list[Column]:
        """Return a column for each of `subjects`, whatever became of it.

        Raises:
            UsageError: the inputs or dimensions that are given do not fit.
        """
        live = [each for each in subjects if each.status == "completed" and self._opens(each)]
        profiles: dict[str, list[Profile]] = {each.label: [] for each in live}
        failures: dict[str, str] = {}
        beside: dict[str, OutputComparison] = {}
        try:
            self._find_inputs(live)
            for turn in range(self.processes):
                for subject in live if turn % 2 == 0 else live[::-1]:
                    seen = profiles[subject.label]
                    if subject.label in failures or not all(map(_is_complete, seen)):
                        continue
                    self.say(f"{subject.label}, {turn + 1} of {self.processes}")
                    try:
                        seen.append(self._profile(subject, turn))
                    except MeasurementError as error:
                        failures[subject.label] = str(error)
            ran = [
                each
                for each in live
                if each.label not in failures and all(map(_is_complete, profiles[each.label]))
            ]
            if self._reference is None and ran:
                self._choose_timed(profiles[ran[0].label])
            beside = self._beside(ran)
        except KeyboardInterrupt:
            self.interrupted = True
        return [
            column_of(
                each,
                self._files.get(each.job.model),
                profiles.get(each.label, ()),
                failures.get(each.label, ""),
                beside.get(each.label),
                self._timed_runs(each),
            )
            for each in subjects
        ]

    def _opens(self, subject: Subject) -> bool:
        path = subject.job.model
        if path not in self._files:
            try:
                self._files[path] = self.exits.enter_context(open_model(path))
            except MemdiagError as error:
                self._files[path] = error
        return isinstance(self._files[path], ModelFile)

    def _file(self, subject: Subject) -> ModelFile:
        file = self._files[subject.job.model]
        assert isinstance(file, ModelFile)
        return file

    def _find_inputs(self, live: Sequence[Subject]) -> None:
        """Make the inputs of all columns, with the first subject that runs with any."""
        self._live = live
        self._check_dims(live)
        self.say("finding inputs that the model runs with")
        for subject in live:
            if not self._trials.sets:
                self._trials = self._find_trials(subject)
                self._first = subject
        self.notes += self._trials.notes
        if live and not self._sets:
            self.notes.append("no generated inputs run: sessions are created, but not run")
        for subject in live if self.own_inputs and self._sets else ():
            feeds = self._sets[0].feeds
            runs = try_inputs(replace(subject.job, runs=None), [feeds]) is not None
            if not runs or not self._has_given_sizes(subject, feeds):
                self._own[subject.label] = self._find_trials(subject)

    def _check_dims(self, live: Sequence[Subject]) -> None:
        """Check that each size of --dim belongs to one of several models at least.

        Raises:
            UsageError: none of the models has a dimension of that name.
        """
        names = {each.label: [axis.key for axis in self._free(each)] for each in live}
        unknown = [one for one in self.dims if not any(one in keys for keys in names.values())]
        if unknown and len({each.job.model for each in live}) > 1:
            known = (
                f"{label} has {', '.join(dict.fromkeys(keys)) or 'none'}"
                for label, keys in names.items()
            )
            raise UsageError(f"unknown dimension {unknown[0]!r}: {'; '.join(known)}.")

    def _free(self, subject: Subject) -> list[Axis]:
        """Return the free axes of a model's inputs."""
        inputs = self._file(subject).graph.required_inputs
        return [axis for value in inputs for axis in axes_of(value) or () if axis.size is None]

    def _has_given_sizes(self, subject: Subject, feeds: Sequence[Feed]) -> bool:
        """Return whether `feeds`, made for another model, have the sizes that --dim asks for."""
        shapes = _shapes(feeds)
        return all(
            self.dims.get(axis.key, size) == size
            for axis in self._free(subject)
            if (size := _size(axis, shapes)) is not None
        )

    def _dimensions_of(self, subject: Subject) -> tuple[Dimension, ...]:
        """Return the sizes that the free dimensions of `subject` have, by its own names."""
        own = self._own.get(subject.label)
        if own is not None:
            return own.dimensions
        if self._first is None or subject.job.model == self._first.job.model:
            return self._trials.dimensions
        sizes = {one.name: one for one in self._trials.dimensions}
        first = {
            (axis.input, axis.position): sizes[axis.key]
            for axis in self._free(self._first)
            if axis.key in sizes
        }
        shapes = _shapes(self._sets[0].feeds)
        fixed = "the size that the first model has"
        found = {}
        for axis in self._free(subject):
            same = first.get((axis.input, axis.position))
            size = _size(axis, shapes)
            if same is not None:
                given = "given" if axis.key in self.dims else same.source
                found[axis.key] = msgspec.structs.replace(same, name=axis.key, source=given)
            elif size is not None:
                found[axis.key] = Dimension(
                    name=axis.key, size=size, role="size", source="given", reason=fixed
                )
        return tuple(found.values())

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The free dimensions of the inputs with the sizes that were chosen."""
        return self._trials.dimensions

    @property
    def _sets(self) -> tuple[InputSet, ...]:
        return self._trials.sets

    def _find_trials(self, subject: Subject) -> Trials:
        job = replace(subject.job, runs=None)
        folder = self._folder("inputs")
        file = self._file(subject)
        names = {axis.key for axis in self._free(subject)}
        all_names = names.union(*((axis.key for axis in self._free(each)) for each in self._live))
        # A size that only another model has is left out; one that none has is an error.
        dims = {
            name: size for name, size in self.dims.items() if name in names or name not in all_names
        }
        return trials(file, job, folder, dims=dims, given=self.given, sizes=())

    def _profile(self, subject: Subject, turn: int) -> Profile:
        # Without inputs of its own, a model that does not run says so in the profile.
        own = self._own.get(subject.label, self._trials)
        sets = own.sets or self._sets
        job = replace(subject.job, runs=self.runs if sets else None)
        if sets:
            feeds = tuple(trial.feeds for trial in sets)
            job = replace(job, feeds=feeds[0], later_feeds=feeds)
        used = self._described(sets[0]) if sets else ()
        found = profile_job(self._file(subject), job, used, xray=self.xray and not turn)
        return msgspec.structs.replace(found, dimensions=self._dimensions_of(subject))

    def _described(self, trial: InputSet) -> tuple[Input, ...]:
        """Return what a profile says of the inputs."""
        arrays = {
            feed.name: np.load(feed.files[0], mmap_mode="r") for feed in trial.feeds if feed.files
        }
        return tuple(
            Input(
                name=feed.name,
                dtype=str(arrays[feed.name].dtype) if feed.name in arrays else "",
                shape=None if feed.sequence else arrays[feed.name].shape,
                source="given" if feed.name in self.given else "generated",
                note=f"with {trial.name}",
            )
            for feed in trial.feeds
        )

    def _choose_timed(self, profiles: Sequence[Profile]) -> None:
        """Tell the latency with the inputs that take longest: those of the larger branch."""
        count = len(self._sets)
        runs = [
            [run.latency_s for one in profiles for run in one.runs[index::count]]
            for index in range(count)
        ]
        medians = [median(latencies) for latencies in runs if latencies]
        self._timed = medians.index(max(medians)) if medians else 0

    def _timed_runs(self, subject: Subject) -> slice:
        if subject.label in self._own:
            return slice(None)
        return slice(self._timed, None, max(1, len(self._sets)))

    def _beside(self, ran: Sequence[Subject]) -> dict[str, OutputComparison]:
        """Compare outputs and latencies with those of the first subject of all that ran."""
        found = {
            each.label: OutputComparison(why="its inputs differ from those of the first model")
            for each in ran
            if each.label in self._own
        }
        others = [each for each in ran if each.label not in found]
        if self._reference is None and others:
            self._reference = others.pop(0).job
        if self._reference is None or not others or not self._sets:
            return found
        with Reference(self._reference, self._sets, self._folder("outputs")) as reference:
            if reference.random:
                names = ", ".join(sorted(reference.random))
                self.notes.append(f"outputs that are random are not compared: {names}")
            for subject in others:
                self.say(f"{subject.label} beside the first")
                try:
                    found[subject.label] = reference.beside(subject.job, self._timed)
                except MeasurementError as error:
                    found[subject.label] = OutputComparison(why=str(error))
        return found

    def _folder(self, what: str) -> Path:
        self._folders += 1
        return self.scratch / f"{what}-{self._folders}"


def _shapes(feeds: Sequence[Feed]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays that are fed, by input."""
    return {
        feed.name: np.load(feed.files[0], mmap_mode="r").shape
        for feed in feeds
        if feed.files and not feed.sequence
    }


def _size(axis: Axis, shapes: Mapping[str, tuple[int, ...]]) -> int | None:
    """Return the size of `axis` in `shapes`; None if its input has no array of this rank."""
    shape = shapes.get(axis.input, ())
    return shape[axis.position] if axis.position < len(shape) else None


def _is_complete(profile: Profile) -> bool:
    return profile.outcome.status == "completed"
