"""The bench on which a changed model is judged beside the original."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from memdiag.errors import MeasurementError
from memdiag.records.fix import Figures, LatencyAt
from memdiag.runner.job import Feed, Job
from memdiag.runner.session_server import SessionServer
from memdiag.verify import memory
from memdiag.verify.expected import Expected
from memdiag.verify.latency import MAX_PAIRS, MIN_PAIRS, Race, race
from memdiag.verify.outputs import Bound, Difference

_TIMES = 3
_CONFIRMING_S = 60.0
"""How long a comparison may go on that has to confirm that a model is slower."""

_TURN_OVERHEAD_S = 0.15
_RUNS_OF_TURN = 4


class Trial(NamedTuple):
    """One set of inputs.

    Attributes:
        name: what it is called in reports.
        feeds: the files of its arrays.
        timed: whether latency is compared with it alone.
        sizes: of the free dimensions, in words; empty where none is free.
    """

    name: str
    feeds: tuple[Feed, ...]
    timed: bool
    sizes: str = ""


class _Case(NamedTuple):
    """Inputs that latency is compared with: one set, or several one after the other."""

    name: str
    feeds: int
    then: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What was found of a changed model; `problem` says in a few words what is wrong with it.

    `difference` is the largest of any output over all trials. `races` are by the trial's name.
    """

    problem: str | None
    difference: Difference | None = None
    races: tuple[tuple[str, Race], ...] = ()
    figures: Figures | None = None

    @property
    def latencies(self) -> tuple[LatencyAt, ...]:
        """The races as they are recorded."""
        return tuple(
            LatencyAt(
                inputs=name,
                before_s=race.before_s,
                after_s=race.after_s,
                ratio=race.ratio.median,
                low=race.ratio.low,
                high=race.ratio.high,
                pairs=race.ratio.pairs,
            )
            for name, race in self.races
        )


class Bench:
    """Holds the original's session, its outputs and its figures; a context manager.

    `job` is the original's, `before` are its figures, `unstable` the outputs that are random.
    `session_count` is how many sessions were started.

    Raises:
        MeasurementError: the original cannot be run.
    """

    def __init__(self, job: Job, trials: Sequence[Trial], scratch: Path, disk_bytes: int) -> None:
        self.job = job
        self.session_count = 0
        self._trials = trials
        self._cases = tuple(_cases(trials))
        self._quick_cases = tuple(dict.fromkeys((self._cases[0], self._cases[-1])))
        self._server = self._session(job)
        self._is_lost = False
        try:
            self._expected = Expected(self._server, len(trials), scratch)
            started = time.monotonic()
            self.before = self.measure(job, _TIMES, disk_bytes=disk_bytes)
            self._process_s = (time.monotonic() - started) / _TIMES
        except BaseException:
            self._server.close()
            raise
        self.unstable = self._expected.unstable
        self.onnxruntime = self._server.onnxruntime

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.close()

    @property
    def process_s(self) -> float:
        """Mean duration of measuring the original's memory once, in seconds."""
        return self._process_s

    def estimate_s(self, *, times: int, pairs: int) -> float:
        """Return roughly how long `times` measurements of both models take, and a judgement."""
        turn_s = _TURN_OVERHEAD_S + _RUNS_OF_TURN * (self.before.latency_s or 0)
        comparing_s = 2 * pairs * len(self._cases) * turn_s
        return (2 * times + 1) * self._process_s + comparing_s

    def judge(
        self,
        job: Job,
        bound: Bound,
        *,
        disk_bytes: int,
        times: int = 1,
        pairs: int = 15,
        limit: float | None = None,
        least_pairs: int = MIN_PAIRS,
        is_quick: bool = False,
    ) -> Verdict:
        """Return what is to be said of another model, or of other options for the same one.

        Its outputs are held to `bound`; its memory is measured `times` times, in fresh processes,
        which may be never. It is run in turn with the original `pairs` times, or from `least_pairs`
        on until it can be told whether it is slower by more than `limit`. Where it seems to be, new
        sessions are compared until it can be told, `MAX_PAIRS` times at most, for a minute at most;
        their result counts, for of two sessions of one model one may be faster as long as it lives.

        With `is_quick` only the first inputs are raced, and all in turn where sizes differ; nothing
        is confirmed with new sessions, and the races end with the first that is clearly lost.

        Raises:
            TimeLimitReached: the job's deadline passed.
        """
        try:
            if self._is_lost:
                self._renew()
            with self._session(job) as server:
                problem, worst = self._expected.met(server, bound)
                if problem is not None:
                    return Verdict(problem=problem, difference=worst)
                races = {}
                for case in self._quick_cases if is_quick else self._cases:
                    races[case] = self._race(
                        server, case, pairs=pairs, limit=limit, least_pairs=least_pairs
                    )
                    if is_quick and limit is not None and races[case].ratio.low > limit:
                        break
            slow = [
                case
                for case, one in races.items()
                if limit is not None and one.ratio.median > limit and not is_quick
            ]
            if slow:
                self._renew()
                with self._session(job) as server:
                    for case in slow:
                        races[case] = self._race(
                            server, case, pairs=MAX_PAIRS, limit=limit, budget_s=_CONFIRMING_S
                        )
            figures = self.measure(job, times, disk_bytes=disk_bytes) if times else None
        except MeasurementError as error:
            return Verdict(problem=f"it does not run: {error}")
        except BaseException:
            # Interrupted within a request, whose answer would be taken for that to the next one.
            self._is_lost = True
            raise
        named = tuple((case.name, one) for case, one in races.items())
        return Verdict(problem=None, difference=worst, races=named, figures=figures)

    def measure(self, job: Job, times: int, *, disk_bytes: int) -> Figures:
        """Return the figures of `job` alone, from `times` fresh processes.

        Raises:
            MeasurementError: it does not run.
        """
        self.session_count += times * job.sessions
        seen = memory.look_in_turn([self._measured(job)], times)[0]
        return memory.figures(seen, disk_bytes=disk_bytes)

    def measure_both(
        self,
        job: Job,
        times: int,
        *,
        before_bytes: int,
        after_bytes: int,
        before: Job | None = None,
    ) -> tuple[Figures, Figures]:
        """Return the figures of `before`, the original's where None, and of `job`, taken in turn.

        Raises:
            MeasurementError: one does not run.
        """
        jobs = [self._measured(before or self.job), self._measured(job)]
        self.session_count += times * sum(each.sessions for each in jobs)
        one, other = memory.look_in_turn(jobs, times)
        return (
            memory.figures(one, disk_bytes=before_bytes),
            memory.figures(other, disk_bytes=after_bytes),
        )

    def _race(self, server: SessionServer, case: _Case, **how: Any) -> Race:
        return race(self._server, server, case.feeds, then=case.then, **how)

    def _renew(self) -> None:
        """Replace the original's session."""
        self._server.close()
        self._is_lost = True
        self._server = self._session(self.job)
        self._is_lost = False

    def _session(self, job: Job) -> SessionServer:
        self.session_count += 1
        return SessionServer(replace(job, runs=None), [trial.feeds for trial in self._trials])

    def _measured(self, job: Job) -> Job:
        # What runs with all inputs has touched all that it needs, and its arena has grown.
        sets = tuple(trial.feeds for trial in self._trials)
        return replace(job, feeds=sets[0], later_feeds=sets, runs=len(sets))


def _cases(trials: Sequence[Trial]) -> Iterator[_Case]:
    """Yield what latency is compared with: each timed set, and all where sizes differ, in turn."""
    for index, trial in enumerate(trials):
        if trial.timed:
            yield _Case(trial.name, index)
    sizes = list(dict.fromkeys(trial.sizes for trial in trials))
    if len(sizes) > 1:
        name = f"{', '.join(sizes)} in turn"
        yield _Case(name, 0, tuple(range(1, len(trials))))
