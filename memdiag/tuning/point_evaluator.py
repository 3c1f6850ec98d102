"""Measures combinations of options and compares them with the defaults."""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

import msgspec

from memdiag.errors import MemdiagError
from memdiag.model.model_file import open_model
from memdiag.records.fix import Point
from memdiag.records.measured_change import Figures
from memdiag.runner.job import Job, TimeLimitReached
from memdiag.tuning.points import is_probably_fast, over_budget_bytes
from memdiag.tuning.prepared_models import PreparedModels
from memdiag.tuning.tuning_options import TuningOption
from memdiag.verify.acceptance import exchanged_memory_text, saves_memory
from memdiag.verify.latency import CLEARLY_ABOVE, MIN_PAIRS, QUICK_PAIRS
from memdiag.verify.memory import job_error_reason
from memdiag.verify.model_evaluator import LatencyComparisons, ModelEvaluation, ModelEvaluator
from memdiag.verify.outputs import Bound

_FINAL_PAIRS = 64
"""The most pairs of the thorough comparison. Most end earlier; a busy machine needs more pairs."""

_EXPECTED_PAIRS = 32
_RESERVED_PAIRS = (2 * MIN_PAIRS, MIN_PAIRS)
_FINAL_PROCESSES = 3


@dataclass(kw_only=True)
class PointEvaluator:
    """Evaluates combinations of options as points, each verified like a fix.

    Attributes:
        model_evaluator: compares jobs with the defaults.
        bound: how far outputs may differ.
        scratch: a folder for files that options need.
        max_slowdown: the largest ratio of latencies that fits.
        budget: bytes above the baseline by kind (see `BUDGET_FIGURES`).
        before: the figures of the defaults.
        without_hidden_names: returns a text without the names of models that are not published.
    """

    model_evaluator: ModelEvaluator
    bound: Bound
    scratch: Path
    max_slowdown: float
    budget: dict[str, int]
    before: Figures = field(init=False)
    without_hidden_names: Callable[[str], str] = str
    _evaluations: dict[tuple[str, ...], ModelEvaluation] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._models = PreparedModels(self.scratch)
        self.before = self.model_evaluator.before

    @property
    def session_count(self) -> int:
        """Number of sessions that were started, sessions that save models included."""
        return self.model_evaluator.session_count + self._models.saved_count

    @property
    def measuring_s(self) -> float:
        """Approximate duration of measuring the memory of a point."""
        return self.model_evaluator.memory_s(1)

    @property
    def comparing_s(self) -> float:
        """Approximate duration of a quick comparison of a point."""
        return self.model_evaluator.comparison_s(QUICK_PAIRS)

    @property
    def confirming_s(self) -> float:
        """Approximate duration of confirming a point."""
        memory_s = self.model_evaluator.memory_s(2 * _FINAL_PROCESSES)
        return memory_s + self._final_comparison_s(_EXPECTED_PAIRS)

    def reserve_s(self, remaining_s: float) -> float:
        """Return how much of the remaining time to reserve for confirming a point.

        The reserve suffices to measure its memory and the memory of the defaults again, and to
        compare latency as precisely as half of the time allows. If the time is too short for that,
        it is for memory alone if that takes a quarter of the time at most, and otherwise 0.
        """
        if remaining_s == inf:
            return 0.0
        memory_s = self.model_evaluator.memory_s(2 * _FINAL_PROCESSES)
        for pairs in _RESERVED_PAIRS:
            all_s = memory_s + self._final_comparison_s(pairs)
            if all_s <= remaining_s / 2:
                return all_s
        return memory_s if memory_s <= remaining_s / 4 else 0.0

    def _final_comparison_s(self, pairs: int) -> float:
        evaluator = self.model_evaluator
        return evaluator.session_s + evaluator.comparison_s(pairs)

    def set_deadline(self, at: float) -> None:
        """End whatever runs at `at`, by `time.monotonic()`."""
        self.model_evaluator.job.limits.deadline.at = at

    def defaults(self) -> Point:
        """Return the point without options."""
        return msgspec.structs.replace(
            _unmeasured_point(self.model_evaluator.job, ()),
            figures=self.before,
            ratio=1.0,
            fits=self._is_within_budget(self.before),
        )

    def measure(self, chosen: tuple[TuningOption, ...]) -> Point:
        """Return the point of `chosen` with its memory, measured once."""
        job = _configured_job(self.model_evaluator.job, chosen)
        point = _unmeasured_point(job, chosen)
        try:
            prepared_job = self._models.prepare(job, chosen)
            disk_bytes = _program_disk_bytes(job, prepared_job)
            figures = self.model_evaluator.measure(prepared_job, 1, disk_bytes=disk_bytes)
        except MemdiagError as error:
            return self._point_with_problem(point, f"it does not run: {job_error_reason(error)}")
        return msgspec.structs.replace(point, figures=figures)

    def compare(self, point: Point, chosen: tuple[TuningOption, ...]) -> Point:
        """Return `point` (options `chosen`) with its outputs checked and a quick latency ratio.

        The ratio comes from few pairs of runs, which only reveal points that are clearly slower.
        Where no option usually costs time, only a ratio far above the allowed one counts as slower
        (`CLEARLY_ABOVE`): all pairs may be slower by chance while the machine is busy.
        """
        return self._compared_point(
            point, chosen, QUICK_PAIRS, is_quick=True, doubt=_doubt_factor(chosen)
        )

    def known_point(
        self, chosen: tuple[TuningOption, ...], figures: Figures, evaluation: ModelEvaluation
    ) -> Point:
        """Return the point of `chosen` that was measured once and compared quickly elsewhere.

        `figures` and `evaluation` are its memory and the comparison, as `measure` and `compare`
        would find them.
        """
        point = _unmeasured_point(_configured_job(self.model_evaluator.job, chosen), chosen)
        point = msgspec.structs.replace(point, figures=figures)
        return self._point_with_evaluation(point, chosen, evaluation, _doubt_factor(chosen))

    def confirm(self, point: Point, chosen: tuple[TuningOption, ...]) -> tuple[Point, bool]:
        """Return `point` measured thoroughly, and whether it still saves enough.

        The memory of the point and of the defaults is measured alternately, in several processes
        each, and then its latency is compared precisely. If the time for that runs out, the
        earlier ratio is kept, and the point counts as fast enough if `is_probably_fast`.
        """
        try:
            job = _configured_job(self.model_evaluator.job, chosen)
            prepared_job = self._models.prepare(job, chosen)
            before, after = self.model_evaluator.measure_both(
                prepared_job,
                _FINAL_PROCESSES,
                before_bytes=self.before.disk_bytes,
                after_bytes=_program_disk_bytes(job, prepared_job),
                known=self.before,
            )
        except MemdiagError as error:
            return self._point_with_problem(
                point, f"it does not run: {job_error_reason(error)}"
            ), False
        is_within_budget = self._is_within_budget(after)
        point = msgspec.structs.replace(point, figures=after)
        is_in_time = True
        self.model_evaluator.renew_original()
        try:
            point = self._compared_point(point, chosen, _FINAL_PAIRS)
        except TimeLimitReached:
            point, is_in_time = self._point_with_fit(point, chosen), False
        is_fast = point.counted_ratio is not None and point.counted_ratio <= self.max_slowdown
        if not is_in_time:
            is_fast = is_probably_fast(point, chosen, self.max_slowdown)
        if point.problem or not is_fast:
            return point, False
        is_needed = is_within_budget and not self._is_within_budget(before)
        is_faster = is_within_budget and point.largest_high is not None and point.largest_high < 1
        if not (is_needed or (self.budget and is_faster) or saves_memory(before, after)):
            if problem := exchanged_memory_text(before, after):
                point = msgspec.structs.replace(point, problem=problem, fits=False)
            return point, False
        self.before = before
        return point, True

    def evaluation(self, point: Point) -> ModelEvaluation | None:
        """Return the last comparison of `point`; None where it was not compared."""
        return self._evaluations.get(point.option_names)

    def _compared_point(
        self,
        point: Point,
        chosen: tuple[TuningOption, ...],
        pairs: int,
        *,
        is_quick: bool = False,
        doubt: float = 1.0,
    ) -> Point:
        try:
            job = self._models.prepare(_configured_job(self.model_evaluator.job, chosen), chosen)
        except MemdiagError as error:
            return self._point_with_problem(point, f"it does not run: {job_error_reason(error)}")
        evaluation = self.model_evaluator.evaluate(
            job,
            self.bound,
            pairs=pairs,
            limit=self.max_slowdown,
            is_quick=is_quick,
        )
        if evaluation.problem is not None:
            return self._point_with_problem(point, evaluation.problem)
        return self._point_with_evaluation(point, chosen, evaluation, doubt)

    def _point_with_evaluation(
        self,
        point: Point,
        chosen: tuple[TuningOption, ...],
        evaluation: ModelEvaluation,
        doubt: float,
    ) -> Point:
        """Return `point` with the latency of its comparison, which is kept."""
        self._evaluations[point.option_names] = evaluation
        point = self._point_with_latency(
            point, chosen, evaluation.comparisons, doubt * self.max_slowdown
        )
        return self._point_with_fit(point, chosen)

    def _point_with_latency(
        self,
        point: Point,
        chosen: Sequence[TuningOption],
        comparisons: LatencyComparisons,
        slower: float,
    ) -> Point:
        """Return `point` with its ratio, which is undecided unless it is certainly above `slower`.

        A median of at most the allowed ratio counts as fast enough. If the same kernels run on the
        same shapes, so does every ratio whose interval reaches the allowed one: it is noise.
        """
        name, slowest = max(
            comparisons, key=lambda entry: entry[1].counted_ratio(self.max_slowdown)
        )
        is_slower = any(comparison.is_slower(slower) for _, comparison in comparisons)
        is_above = any(latency.is_slower(self.max_slowdown) for _, latency in comparisons)
        same_kernels = not is_above and all(option.same_kernels for option in chosen)
        ratio = slowest.counted_ratio(self.max_slowdown)
        return msgspec.structs.replace(
            point,
            ratio=slowest.ratio.median,
            low=slowest.ratio.low,
            high=slowest.ratio.high,
            largest_high=max(latency.ratio.high for _, latency in comparisons),
            slowest_with=name,
            unnoticed=ratio < slowest.ratio.median,
            same_kernels=same_kernels,
            undecided=ratio > self.max_slowdown and not is_slower and not same_kernels,
        )

    def _point_with_fit(self, point: Point, chosen: tuple[TuningOption, ...]) -> Point:
        """Return `point` with `fits` set from its latency ratio and its memory."""
        is_fast = is_probably_fast(point, chosen, self.max_slowdown)
        fits = is_fast and point.figures is not None and self._is_within_budget(point.figures)
        return msgspec.structs.replace(point, fits=fits)

    def _point_with_problem(self, point: Point, problem: str) -> Point:
        """Return `point` with a problem whose text names no temporary model."""
        temporary_path = rf"{re.escape(f'{self.scratch}{os.sep}')}.*?\.(onnx|ort)(: )?"
        text = " ".join(re.sub(temporary_path, "", problem).split())
        text = self.without_hidden_names(text)
        return msgspec.structs.replace(point, problem=text, fits=False)

    def _is_within_budget(self, figures: Figures) -> bool:
        return not over_budget_bytes(figures, self.budget)


def _doubt_factor(chosen: Sequence[TuningOption]) -> float:
    """Return by which factor a quick ratio has to exceed the allowed one to count as slower."""
    return 1.0 if any(option.costs_time for option in chosen) else CLEARLY_ABOVE


def _configured_job(job: Job, chosen: Sequence[TuningOption]) -> Job:
    for option in chosen:
        job = option.added_to(job)
    return job


def _program_disk_bytes(job: Job, prepared_job: Job) -> int:
    """Return the size of the files that the program of a point needs.

    They are those of the model that it is given, and of the model that it writes once from that.
    """
    paths: set[Path] = set()
    for model in {job.model, prepared_job.model}:
        with open_model(model) as model_file:
            paths |= {path.resolve() for path in model_file.files}
    return sum(path.stat().st_size for path in paths)


def _unmeasured_point(job: Job, chosen: Sequence[TuningOption]) -> Point:
    """Return the point of `chosen`, which `job` was configured with, without any measurement."""
    return Point(
        option_names=tuple(option.name for option in chosen),
        session_options=dict(job.session.options),
        environment=dict(job.session.environment),
        run_options=dict(job.session.run_options),
        providers=tuple(job.session.providers),
        provider_options={
            name: dict(values) for name, values in job.session.provider_options.items()
        },
        disabled_optimizers=tuple(job.session.disabled_optimizers),
        shared_arena=job.session.shared_arena,
        saved_options={
            name: text for option in chosen for name, text in option.save_options.items()
        },
        figures=None,
        ratio=None,
        low=None,
        high=None,
        on_front=False,
        fits=False,
        problem="",
    )
