"""The sweep: many models on several releases of onnxruntime (schema ``memdiag.sweep/1``)."""

from collections.abc import Iterator
from typing import Final, Literal

from memdiag.records.base import Record, SavableRecord

SWEEP_SCHEMA: Final = "memdiag.sweep/1"

SteppedFigure = Literal["peak", "steady"]
"""Figures whose steps are detected."""


class SweepPoint(Record, frozen=True, kw_only=True):
    """One job of a sweep: a model on one release. Figures are None if they were not measured.

    Attributes:
        key: the content-addressed key of the job, by which its full record is stored.
        digest: the digest of the model's content.
        onnxruntime: the release.
        started_s: when it was started, in seconds since 1970, UTC.
        status: ``completed``, or how it ended before.
        sentence: why it did not complete; empty if it did.
        peak_bytes, steady_bytes: above the process before the session.
        peak_phase: the phase with the peak; empty without a measurement.
        estimated_peak_bytes, estimated_steady_bytes: the same as predicted from the file.
        duration_s: how long the job took.
        latency_s: only from a job that ran alone.
        is_new: whether the job is not in the store that the sweep is compared with.
        is_requested: whether the sweep names the job, done now or found in the store. The other
            jobs of the store are its history.
    """

    key: str
    digest: str
    onnxruntime: str
    started_s: float
    status: str
    sentence: str = ""
    peak_bytes: int | None = None
    steady_bytes: int | None = None
    peak_phase: str = ""
    estimated_peak_bytes: int | None = None
    estimated_steady_bytes: int | None = None
    duration_s: float | None = None
    latency_s: float | None = None
    is_new: bool = False
    is_requested: bool = True

    @property
    def is_failed(self) -> bool:
        """Whether the job did not complete."""
        return self.status != "completed"


class SweepStep(Record, frozen=True, kw_only=True):
    """A lasting change of a figure within a series, beyond the noise.

    Attributes:
        figure: the figure.
        before_key, key: the last point before the step and the first one after it.
        before_bytes, after_bytes: the medians of the points until the steps before and after.
        noise_bytes: the noise that the change exceeds.
        phase: the first phase whose peak (for `steady`: whose kept memory) changed by half as much
            or more; empty if none did, or phases are not known.
        is_model_changed: whether the content of the model changed at the step, too.
        is_new: whether the point after the step is not in the store that the sweep is compared
            with, a point before the step is, and a requested job has the figure after the step.
    """

    figure: SteppedFigure
    before_key: str
    key: str
    before_bytes: int
    after_bytes: int
    noise_bytes: int
    phase: str = ""
    is_model_changed: bool = False
    is_new: bool = False

    @property
    def bytes(self) -> int:
        """The change; above 0 if more memory is needed."""
        return self.after_bytes - self.before_bytes


class SweepSeries(Record, frozen=True, kw_only=True):
    """One model at fixed sizes and options on one class of machine, over releases and dates.

    Attributes:
        model, address: its name, and the path or URL that it was read from.
        machine: the class of machines.
        dims: the sizes, such as ``batch=4,seq=16``; may be empty.
        options: the session options; may be empty.
        weight_bytes: of the newest point that has them; None if no point does.
        avoidable_bytes: waste at steady state that the rules found in the newest point.
        points: by release and, within a release, by date.
        steps: in the order of the points.
    """

    model: str
    address: str
    machine: str
    dims: str = ""
    options: str = ""
    weight_bytes: int | None = None
    avoidable_bytes: int = 0
    points: tuple[SweepPoint, ...]
    steps: tuple[SweepStep, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a series without a point, and steps at points that are not there."""
        if not self.points:
            raise ValueError("a series has no point")
        if self.steps:
            keys = {point.key for point in self.points}
            if any(not {step.before_key, step.key} <= keys for step in self.steps):
                raise ValueError("a step is at a point that its series does not have")

    @property
    def newest(self) -> SweepPoint:
        """The last point that was measured or, without one, the last point."""
        measured = (point for point in reversed(self.points) if point.peak_bytes is not None)
        return next(measured, self.points[-1])

    @property
    def is_compared(self) -> bool:
        """Whether a new requested point and one that is not new were measured."""
        measured = [point for point in self.points if point.peak_bytes is not None]
        has_new = any(point.is_new and point.is_requested for point in measured)
        return has_new and not all(point.is_new for point in measured)

    @property
    def fails_now(self) -> bool:
        """Whether all new requested points failed, and an earlier point completed."""
        new_points = [point for point in self.points if point.is_new and point.is_requested]
        has_completed = any(not point.is_failed for point in self.points if not point.is_new)
        return bool(new_points) and all(point.is_failed for point in new_points) and has_completed

    @property
    def newest_requested(self) -> SweepPoint | None:
        """The last requested point that was measured or, without one, the last requested point."""
        requested = [point for point in self.points if point.is_requested]
        measured = (point for point in reversed(requested) if point.peak_bytes is not None)
        return next(measured, requested[-1] if requested else None)

    def judged_point(self, step: SweepStep) -> SweepPoint:
        """Return the first requested point that was measured after `step`.

        Without one, as in a step of the history, it is the point after the step.
        """
        later_points = self.points[self.points.index(self.point(step.key)) :]
        measured_points = (
            point for point in later_points if point.is_requested and point.peak_bytes is not None
        )
        return next(measured_points, later_points[0])

    def point(self, key: str) -> SweepPoint:
        """Return the point whose key is `key`.

        Raises:
            ValueError: there is none.
        """
        for point in self.points:
            if point.key == key:
                return point
        raise ValueError(f"the series has no point {key}")


class WastingModel(Record, frozen=True, kw_only=True):
    """A model of a group of findings.

    Attributes:
        model, address: its name, and the path or URL that it was read from.
        key: the job whose findings these are.
        steady_bytes, peak_bytes: the possible saving.
    """

    model: str
    address: str
    key: str
    steady_bytes: int
    peak_bytes: int


class FindingGroup(Record, frozen=True, kw_only=True):
    """The same waste in several models, each at its newest point.

    Attributes:
        rule: the rule that found it.
        model_count: the number of models.
        steady_bytes, peak_bytes: the possible saving of all models together.
        message, remedy: of the model that wastes most.
        models: those that waste most, the largest first.
    """

    rule: str
    model_count: int
    steady_bytes: int
    peak_bytes: int
    message: str
    remedy: str
    models: tuple[WastingModel, ...]


class ExceededBudget(Record, frozen=True, kw_only=True):
    """A job whose figures exceed the budget.

    Attributes:
        key: the job.
        sentences: the limits that are exceeded.
    """

    key: str
    sentences: tuple[str, ...]


class PlacedModel(Record, frozen=True, kw_only=True):
    """A model on a machine of a placement.

    Attributes:
        model: its name.
        key: the job whose figures are used.
        steady_bytes, peak_bytes: with the process before the session.
    """

    model: str
    key: str
    steady_bytes: int
    peak_bytes: int


class PlacementMachine(Record, frozen=True, kw_only=True):
    """A machine of a placement.

    Attributes:
        memory_bytes: its memory.
        needed_bytes: all steady figures and the largest difference of a peak from them.
        models: the models on it, the largest first.
    """

    memory_bytes: int
    needed_bytes: int
    models: tuple[PlacedModel, ...]


class Placement(Record, frozen=True, kw_only=True):
    """Which models fit together on which machine.

    Attributes:
        machines: the machines in the order in which they were given.
        margin: the share of each machine's memory that is left free.
        unplaced: the models that fit on none.
    """

    machines: tuple[PlacementMachine, ...]
    margin: float
    unplaced: tuple[PlacedModel, ...] = ()


class Sweep(SavableRecord, frozen=True, kw_only=True):
    """The answers of a store of sweeps.

    Attributes:
        store: the folder of the store.
        against: the store with which it is compared; empty without one.
        releases: the releases of onnxruntime, the oldest first.
        series: the series, by model.
        findings: the same waste in several models, the costliest first.
        noise_share: the noise of a figure as a share of the figure, from repeated jobs; None if the
            store has too few.
        placement: which models fit together; None if it was not asked for.
        exceeded: the jobs of the sweep that exceed the budget; empty without a budget.
        notes: sentences on limits of the answers.
    """

    schema: Literal["memdiag.sweep/1"] = SWEEP_SCHEMA
    store: str
    against: str = ""
    releases: tuple[str, ...] = ()
    series: tuple[SweepSeries, ...] = ()
    findings: tuple[FindingGroup, ...] = ()
    noise_share: float | None = None
    placement: Placement | None = None
    exceeded: tuple[ExceededBudget, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def points(self) -> Iterator[SweepPoint]:
        """All points, series by series."""
        return (point for series in self.series for point in series.points)

    @property
    def requested_jobs(self) -> Iterator[tuple[SweepSeries, SweepPoint]]:
        """The jobs that the sweep names, each with its series."""
        return (
            (series, point)
            for series in self.series
            for point in series.points
            if point.is_requested
        )

    @property
    def compares_nothing(self) -> bool:
        """Whether it has new jobs, and none of a model that is in the store for comparison."""
        has_new = bool(self.against) and any(
            point.is_new and point.is_requested for point in self.points
        )
        return has_new and not any(series.is_compared or series.fails_now for series in self.series)

    @property
    def over_budget(self) -> tuple[tuple[SweepSeries, SweepPoint, tuple[str, ...]], ...]:
        """The jobs that exceed the budget, each with the limits that it exceeds."""
        sentences = {job.key: job.sentences for job in self.exceeded}
        return tuple(
            (series, point, sentences[point.key])
            for series in self.series
            for point in series.points
            if point.key in sentences
        )

    @property
    def regressions(self) -> tuple[tuple[SweepSeries, SweepStep], ...]:
        """Upward steps that are not in the store with which the sweep is compared."""
        return tuple(
            (series, step)
            for series in self.series
            for step in series.steps
            if step.is_new and step.bytes > 0
        )
