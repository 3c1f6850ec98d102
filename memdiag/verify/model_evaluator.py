"""Evaluates changed models against the original: outputs, latency and memory."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import NamedTuple, Self

from memdiag.defaults import CUDA_PROVIDER
from memdiag.errors import MeasurementError
from memdiag.records.device import Device
from memdiag.records.measured_change import Figures, LatencyAt
from memdiag.runner.job import Feed, Job
from memdiag.runner.session_server import SessionServer
from memdiag.session_options import THREADS_OPTION
from memdiag.verify.latency import (
    FEWEST_PAIRS,
    MAX_COMPARISON_S,
    MAX_PAIRS,
    MIN_PAIRS,
    QUICK_PAIRS,
    LatencyComparison,
    compare_latency,
    comparison_duration_s,
)
from memdiag.verify.memory import JobError, MeasuredProcess, measure_interleaved, median_figures
from memdiag.verify.outputs import Bound, Difference, unstable_output_notes
from memdiag.verify.reference_outputs import ReferenceOutputs
from memdiag.verify.step_estimate import DurationRatio

_ORIGINAL_PROCESSES = 3
_MAX_PROCESS_SHARE = 1 / 20
"""Share of the remaining time that a process of the original may take if another is to follow."""

_CONFIRMING_S = 60.0
"""Maximum duration of a comparison that has to confirm that a model is slower."""


_QUICK_COMPARISON_S = 5.0
"""Duration after which a quick comparison in limited time has enough pairs."""

_QUICK_COMPARISON_SHARE = 1 / 10
"""Share of limited time that a quick comparison with all inputs in turn may take."""

_NO_SPINNING = {
    "session.intra_op.allow_spinning": "0",
    "session.inter_op.allow_spinning": "0",
}


class InputSet(NamedTuple):
    """One set of inputs.

    Attributes:
        name: the name in reports.
        feeds: the files of its arrays.
        timed: whether latency is compared with this set alone.
        sizes: the sizes of the free dimensions as text; empty where none is free.
    """

    name: str
    feeds: tuple[Feed, ...]
    timed: bool
    sizes: str = ""


class _TimedInputs(NamedTuple):
    """Inputs with which latency is compared.

    Attributes:
        name: the name in reports.
        feeds: the index of the first set.
        then: the indices of the sets that follow in each run; empty for one set alone.
    """

    name: str
    feeds: int
    then: tuple[int, ...] = ()


LatencyComparisons = Sequence[tuple[str, LatencyComparison]]
"""Latency comparisons with the original by the name of the inputs."""


@dataclass(frozen=True, kw_only=True)
class ModelEvaluation:
    """Result of evaluating a changed model.

    Attributes:
        problem: why the model cannot replace the original, in a few words; None if it can.
        difference: the largest difference of any output over all inputs.
        comparisons: latency comparisons by the name of the inputs.
    """

    problem: str | None
    difference: Difference | None = None
    comparisons: LatencyComparisons = ()

    @property
    def latencies(self) -> tuple[LatencyAt, ...]:
        """The comparisons as they are recorded."""
        return tuple(
            LatencyAt(
                inputs=name,
                before_s=comparison.before_s,
                after_s=comparison.after_s,
                ratio=comparison.ratio.median,
                low=comparison.ratio.low,
                high=comparison.ratio.high,
                pairs=comparison.ratio.pairs,
                clock=comparison.clock,
            )
            for name, comparison in self.comparisons
        )


class _OriginalFailed(MeasurementError):
    """The session of the original failed, which is no fault of the model that is compared."""


class ModelEvaluator:
    """Compares changed models with the original, whose session stays open; a context manager.

    Args:
        job: the job of the original.
        input_sets: the inputs that models are compared with.
        scratch: a folder for outputs.
        disk_bytes: the size of the original's files.

    Attributes:
        job: the job of the original.
        before: the figures of the original.
        unstable: names of outputs that are random.
        onnxruntime: the release that models run on.
        session_count: number of sessions that were started.
        session_s: the duration of the creation of the original's session, in its process.
        device: the GPU whose memory the figures are; None if they are those of the host.

    Raises:
        MeasurementError: the original cannot be run.
    """

    def __init__(
        self,
        job: Job,
        input_sets: Sequence[InputSet],
        scratch: Path,
        disk_bytes: int,
    ) -> None:
        self.job = job
        self.session_count = 0
        self.device: Device | None = None
        self._device_notes: tuple[str, ...] = ()
        self._input_sets = input_sets
        self._timed = tuple(_timed_inputs(input_sets))
        self._quick_timed = _quick_timed_inputs(self._timed, input_sets)
        self._comparing = DurationRatio()
        started = time.monotonic()
        self._server = self._started_session(job)
        self._needs_restart = False
        try:
            self.session_s = time.monotonic() - started
            self.onnxruntime = self._server.onnxruntime
            self._reference = ReferenceOutputs(self._server, len(input_sets), scratch)
            self.before = self._measured_original(disk_bytes)
        except BaseException:
            self._server.close()
            raise
        self.unstable = self._reference.unstable

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.close()

    @property
    def further_sizes(self) -> tuple[str, ...]:
        """The sizes of inputs after the first ones, as text."""
        return tuple(dict.fromkeys(inputs.sizes for inputs in self._input_sets))[1:]

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what is not compared."""
        return (*unstable_output_notes(self.unstable), *self._device_notes)

    def memory_s(self, processes: int) -> float:
        """Return the expected duration of measuring the memory of so many processes."""
        return processes * self._process_s

    def comparison_s(self, pairs: int) -> float:
        """Return the expected duration of `evaluate`, from the comparisons that were made so far.

        Confirmations in new sessions, which slow models need, are not included.
        """
        comparing_s = sum(self._inputs_comparison_s(inputs, pairs) for inputs in self._timed)
        return self.session_s + sum(self._reference.run_s) + self._comparing.ratio * comparing_s

    @property
    def quickest_s(self) -> float:
        """The expected duration of the shortest `evaluate`: a quick one of a slow model in limited
        time."""
        pairs_s = self._inputs_comparison_s(self._timed[0], FEWEST_PAIRS)
        return self.session_s + sum(self._reference.run_s) + self._comparing.ratio * pairs_s

    def applicable_bound(self, bound: Bound) -> Bound:
        """Return `bound`; on a GPU at least that of kernels which round factors to TF32."""
        cuda_options = self.job.session.provider_options.get(CUDA_PROVIDER, {})
        rounds = self.job.records_device and cuda_options.get("use_tf32") != "0"
        return bound.with_tf32() if rounds else bound

    def renew_original(self) -> None:
        """Compare with a new session of the original from now on.

        One session of a model may be slower than another for its whole life. Such a session of the
        original favours each model that is compared with it, so that the best model is confirmed
        with another session.
        """
        self._needs_restart = True

    def evaluate(
        self,
        job: Job,
        bound: Bound,
        *,
        pairs: int = 15,
        limit: float | None = None,
        is_quick: bool = False,
    ) -> ModelEvaluation:
        """Compare outputs and latency of another model, or of other options, with the original.

        Outputs may differ by `bound`. Latency is compared in up to `pairs` pairs of runs with each
        of the timed inputs, and with a `limit` only until it is decided whether the model is slower
        by more than that. A model that seems to be slower is compared again in new sessions, and
        that result counts. It is by CPU time, unless the model has another number of threads or
        runs on a GPU: one session of a model may be faster than another of the same model for its
        whole life, and CPU time depends less on what else the machine does. If the wall clock shows
        in two pairs of sessions that the model is slower, it is slower, whatever its CPU time.
        Inputs after the first with which the model is slower are not compared.

        With `is_quick` only the first timed inputs are compared and, if there is time, the inputs
        of the other sizes in turn; nothing is confirmed in new sessions.

        Near a time limit the comparisons share the remaining time: a few pairs decide more often
        than none.

        If the session of the original has ended, which is no fault of the other model, everything
        is compared once more.

        Raises:
            TimeLimitReached: the job's deadline passed.
        """
        bound = self.applicable_bound(bound)
        is_again = False
        while True:
            try:
                return self._single_evaluation(
                    job, bound, pairs=pairs, limit=limit, is_quick=is_quick
                )
            except MeasurementError as error:
                has_original_failed = isinstance(error, _OriginalFailed) or (
                    not self._needs_restart and self._server.has_ended
                )
                # The original's session may answer late.
                self._needs_restart = True
                if is_again or not has_original_failed:
                    failure = "cannot be compared" if has_original_failed else "does not run"
                    return ModelEvaluation(problem=f"it {failure}: {error}")
                is_again = True
            except BaseException:
                # The answer to an interrupted request would be read as that to the next request.
                self._needs_restart = True
                raise

    def _single_evaluation(
        self, job: Job, bound: Bound, *, pairs: int, limit: float | None, is_quick: bool
    ) -> ModelEvaluation:
        """Compare once, as `evaluate` does.

        Raises:
            MeasurementError: the session of the model or of the original failed.
        """
        may_confirm = limit is not None and not is_quick
        comparison_by_inputs: dict[_TimedInputs, LatencyComparison] = {}
        worst: Difference | None = None
        remaining_inputs = self._quick_inputs() if is_quick else self._timed
        while remaining_inputs:
            if self._needs_restart:
                self._restart_original()
            with self._started_session(job) as server:
                if not comparison_by_inputs:
                    problem, worst = self._reference.check(server, bound)
                    if problem is not None:
                        return ModelEvaluation(problem=problem, difference=worst)
                new_comparisons = self._timed_comparisons(
                    server,
                    remaining_inputs,
                    pairs=pairs,
                    limit=limit,
                    is_quick=is_quick,
                    may_confirm=may_confirm,
                )
            remaining_inputs = remaining_inputs[len(new_comparisons) :]
            if limit is not None and may_confirm:
                new_comparisons |= self._confirmed_comparisons(job, new_comparisons, limit)
            comparison_by_inputs |= new_comparisons
            if limit is not None and any(
                timed.is_slower(limit) for timed in new_comparisons.values()
            ):
                break
        comparisons = tuple(
            (inputs.name, comparison) for inputs, comparison in comparison_by_inputs.items()
        )
        return ModelEvaluation(problem=None, difference=worst, comparisons=comparisons)

    def measure(self, job: Job, times: int, *, disk_bytes: int) -> Figures:
        """Return the figures of `job` alone, from `times` fresh processes.

        Raises:
            MeasurementError: it does not run.
        """
        self._leave_device()
        self.session_count += times
        (measurements,) = measure_interleaved([self._memory_job(job)], times)
        return median_figures(measurements, disk_bytes=disk_bytes)

    def measure_both(
        self,
        job: Job,
        times: int,
        *,
        before_bytes: int,
        after_bytes: int,
        before: Job | None = None,
        known: Figures | None = None,
    ) -> tuple[Figures, Figures]:
        """Return the figures of `before` (None: the original) and of `job`, measured alternately.

        `known` are figures of `before` from an earlier measurement (None: of the original), which
        are returned if it no longer runs: that is no fault of `job`, as memory may be short.

        Raises:
            MeasurementError: `job` does not run.
        """
        jobs = [self._memory_job(before or self.job), self._memory_job(job)]
        self._leave_device()
        self.session_count += times * len(jobs)
        try:
            old, new = measure_interleaved(jobs, times)
        except JobError as error:
            if error.job is not jobs[0]:
                raise
            return known or self.before, self.measure(job, times, disk_bytes=after_bytes)
        return (
            median_figures(old, disk_bytes=before_bytes),
            median_figures(new, disk_bytes=after_bytes),
        )

    def _measured_original(self, disk_bytes: int) -> Figures:
        """Return the figures of the original; from fewer processes where the time is short."""
        job, measured = self._memory_job(self.job), list[MeasuredProcess]()
        self._leave_device()
        started = time.monotonic()
        while len(measured) < _ORIGINAL_PROCESSES:
            measured += measure_interleaved([job], 1)[0]
            self.session_count += 1
            self._process_s = (time.monotonic() - started) / len(measured)
            if self._process_s > _MAX_PROCESS_SHARE * self.job.limits.deadline.remaining_s:
                break
        self._keep_device(measured[0])
        return median_figures(measured, disk_bytes=disk_bytes)

    def _keep_device(self, process: MeasuredProcess) -> None:
        """Keep the GPU of a measured process, and what is to be said of its figures."""
        if process.device is None:
            return
        self.device = process.device.device
        self._device_notes = (process.device.note,)

    def _leave_device(self) -> None:
        """End the original's session before memory is measured on a GPU.

        What is in use there is read of all processes together.
        """
        if self.job.records_device:
            self._server.close()
            self._needs_restart = True

    def _timed_comparisons(
        self,
        server: SessionServer,
        timed: Sequence[_TimedInputs],
        *,
        pairs: int,
        limit: float | None,
        is_quick: bool,
        may_confirm: bool,
    ) -> dict[_TimedInputs, LatencyComparison]:
        """Compare with each of the timed inputs, up to the first that seems to be slower."""
        is_limited = self.job.limits.deadline.at < inf
        comparisons: dict[_TimedInputs, LatencyComparison] = {}
        for number, inputs in enumerate(timed):
            parts = len(timed) - number + may_confirm
            with self._comparing.timed(self._inputs_comparison_s(inputs, pairs)):
                comparisons[inputs] = compare_latency(
                    self._server,
                    server,
                    inputs.feeds,
                    then=inputs.then,
                    pairs=pairs,
                    limit=limit,
                    max_s=self._max_comparison_s(
                        _QUICK_COMPARISON_S if is_quick and is_limited else MAX_COMPARISON_S, parts
                    ),
                    min_pairs=self._min_pairs(is_quick=is_quick),
                )
            if limit is not None and comparisons[inputs].is_slower(limit):
                break
        return comparisons

    def _confirmed_comparisons(
        self, job: Job, first_comparisons: Mapping[_TimedInputs, LatencyComparison], limit: float
    ) -> dict[_TimedInputs, LatencyComparison]:
        """Compare again, in new sessions, with the inputs with which a model seems to be slower.

        The clearest case comes first. Once one case is confirmed, the others are left out.

        CPU time is the sum of all threads: it hardly shows work that one of many threads does while
        the others wait. If a model is clearly slower by the wall clock and not by CPU time, the
        wall clock decides, in further sessions.
        """
        slow_inputs = [
            inputs
            for inputs, comparison in first_comparisons.items()
            if comparison.is_slower(limit) or comparison.is_undecided(limit)
        ]
        if not slow_inputs:
            return {}
        slow_inputs.sort(key=lambda inputs: -first_comparisons[inputs].ratio.low)
        self._server.close()
        self._needs_restart = True
        # The CPU only waits for a GPU.
        if self.job.records_device or _job_thread_option(job) != _job_thread_option(self.job):
            return self._new_session_comparisons(job, slow_inputs, limit, by_cpu=False)
        comparisons = self._new_session_comparisons(job, slow_inputs, limit, by_cpu=True)
        if any(comparison.is_slower(limit) for comparison in comparisons.values()):
            return comparisons
        hidden_inputs = [
            inputs for inputs in slow_inputs if first_comparisons[inputs].is_slower(limit)
        ]
        if hidden_inputs:
            by_wall = self._new_session_comparisons(job, hidden_inputs, limit, by_cpu=False)
            comparisons |= {
                inputs: wall for inputs, wall in by_wall.items() if wall.is_slower(limit)
            }
        return comparisons

    def _new_session_comparisons(
        self, job: Job, slow_inputs: Sequence[_TimedInputs], limit: float, *, by_cpu: bool
    ) -> dict[_TimedInputs, LatencyComparison]:
        """Compare with `slow_inputs` in new sessions, up to the first inputs with slower runs."""
        comparisons: dict[_TimedInputs, LatencyComparison] = {}
        with (
            self._original_session(cpu_time=by_cpu) as original,
            self._started_session(job, cpu_time=by_cpu) as changed,
        ):
            for number, inputs in enumerate(slow_inputs):
                try:
                    comparison = compare_latency(
                        original,
                        changed,
                        inputs.feeds,
                        then=inputs.then,
                        pairs=MAX_PAIRS,
                        limit=limit,
                        max_s=self._max_comparison_s(_CONFIRMING_S, len(slow_inputs) - number),
                        min_pairs=self._min_pairs(is_quick=False),
                    )
                except MeasurementError as error:
                    if original.has_ended:
                        raise _OriginalFailed(str(error)) from error
                    raise
                comparisons[inputs] = comparison._replace(clock="cpu" if by_cpu else "wall")
                if comparisons[inputs].is_slower(limit):
                    break
        return comparisons

    def _min_pairs(self, *, is_quick: bool) -> int:
        """Return how many pairs are run however long they take: fewer if time is limited."""
        if self.job.limits.deadline.at == inf:
            return MIN_PAIRS
        return FEWEST_PAIRS if is_quick else QUICK_PAIRS

    def _quick_inputs(self) -> tuple[_TimedInputs, ...]:
        """Return the inputs of a quick comparison: the first, and others if there is time."""
        first, *other_inputs = self._quick_timed
        most_s = _QUICK_COMPARISON_SHARE * self.job.limits.deadline.remaining_s
        return first, *(
            inputs
            for inputs in other_inputs
            if self._inputs_comparison_s(inputs, FEWEST_PAIRS) <= most_s
        )

    def _max_comparison_s(self, most_s: float, parts: int) -> float:
        """Return how long a comparison may take: `most_s`, or 1/`parts` of the time left."""
        return min(most_s, max(0.0, self.job.limits.deadline.remaining_s) / parts)

    def _inputs_comparison_s(self, inputs: _TimedInputs, pairs: int) -> float:
        """Return the expected duration of a comparison of latency, from the original's runs."""
        indices = (inputs.feeds, *inputs.then)
        return comparison_duration_s(
            [self._reference.run_s[index] for index in indices], pairs=pairs
        )

    def _restart_original(self) -> None:
        """Replace the original's session."""
        self._server.close()
        self._needs_restart = True
        self._server = self._original_session()
        self._needs_restart = False

    def _original_session(self, *, cpu_time: bool = False) -> SessionServer:
        """Start another session of the original.

        Raises:
            _OriginalFailed: it cannot be created.
        """
        try:
            return self._started_session(self.job, cpu_time=cpu_time)
        except MeasurementError as error:
            raise _OriginalFailed(str(error)) from error

    def _started_session(self, job: Job, *, cpu_time: bool = False) -> SessionServer:
        self.session_count += 1
        if cpu_time:  # Threads that spin while they wait take CPU time, too.
            options = {**job.session.options, **_NO_SPINNING}
            job = replace(job, session=replace(job.session, options=options))
        feeds = [inputs.feeds for inputs in self._input_sets]
        return SessionServer(replace(job, runs=None), feeds, cpu_time=cpu_time)

    def _memory_job(self, job: Job) -> Job:
        """Return `job` with runs of all inputs: its arena has grown after them.

        With run options, memory may be freed at the end of each run (the shrinkage of the arena),
        and malloc may keep it from the second run on: such a job runs with all inputs twice.
        """
        feeds = tuple(inputs.feeds for inputs in self._input_sets)
        times = 2 if job.session.run_options else 1
        return replace(job, feeds=feeds[0], later_feeds=feeds, runs=times * len(feeds))


def _job_thread_option(job: Job) -> str | None:
    return job.session.options.get(THREADS_OPTION)


def _timed_inputs(input_sets: Sequence[InputSet]) -> Iterator[_TimedInputs]:
    """Yield each timed input set and, if the sets differ in sizes, all sets in turn."""
    for index, inputs in enumerate(input_sets):
        if inputs.timed:
            yield _TimedInputs(inputs.name, index)
    if len({inputs.sizes for inputs in input_sets}) > 1:
        yield _TimedInputs("all inputs in turn (sum)", 0, tuple(range(1, len(input_sets))))


def _quick_timed_inputs(
    timed: Sequence[_TimedInputs], input_sets: Sequence[InputSet]
) -> tuple[_TimedInputs, ...]:
    """Return the first of `timed`, and the inputs of other sizes in turn; else also the last."""
    sizes = input_sets[0].sizes
    other_indices = [
        index for index, inputs in enumerate(input_sets) if inputs.timed and inputs.sizes != sizes
    ]
    if not other_indices:
        return tuple(dict.fromkeys((timed[0], timed[-1])))
    first, *further_indices = other_indices
    name = "the other sizes in turn (sum)" if further_indices else input_sets[first].name
    return timed[0], _TimedInputs(name, first, tuple(further_indices))
