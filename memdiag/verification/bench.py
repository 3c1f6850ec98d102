"""The bench on which a changed model is judged beside the original."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from memdiag.errors import MeasurementError
from memdiag.measurement.job import Feed, Job
from memdiag.measurement.server import Server
from memdiag.records.fix import Figures, LatencyAt
from memdiag.verification import memory
from memdiag.verification.expected import Expected
from memdiag.verification.latency import LEAST_PAIRS, Race, race
from memdiag.verification.outputs import Bound, Difference

_TIMES = 3
_MORE = 4

_Races = dict[int, Race]


class Trial(NamedTuple):
    """One set of inputs: what it is called, the files that it lies in, whether it is timed."""

    name: str
    feeds: tuple[Feed, ...]
    timed: bool


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
        self._server = self._session(job)
        try:
            self._expected = Expected(self._server, len(trials), scratch)
            self.before = self.measure(job, _TIMES, disk_bytes=disk_bytes)
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

    def judge(
        self,
        job: Job,
        bound: Bound,
        *,
        disk_bytes: int,
        times: int = 1,
        pairs: int = 15,
        limit: float | None = None,
        least_pairs: int = LEAST_PAIRS,
    ) -> Verdict:
        """Return what is to be said of another model, or of other options for the same one.

        Its outputs are held to `bound`; its memory is measured `times` times, in fresh processes,
        which may be never. It is run in turn with the original `pairs` times, or from `least_pairs`
        on until it can be told whether it is slower by more than `limit`. Where it seems to be, new
        sessions have to confirm it, which are run more often.
        """
        try:
            with self._session(job) as server:
                problem, worst = self._expected.met(server, bound)
                if problem is not None:
                    return Verdict(problem=problem, difference=worst)
                timed = [index for index, trial in enumerate(self._trials) if trial.timed]
                races = self._races(server, timed, pairs, limit, least_pairs)
            if limit is not None:
                slow = [index for index, one in races.items() if one.ratio.median > limit]
                races |= self._raced_afresh(job, slow, _MORE * pairs, limit) if slow else {}
            figures = self.measure(job, times, disk_bytes=disk_bytes) if times else None
        except MeasurementError as error:
            return Verdict(problem=f"it does not run: {error}")
        named = tuple((self._trials[index].name, one) for index, one in races.items())
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

    def _races(
        self, server: Server, wanted: Iterable[int], pairs: int, limit: float | None, least: int
    ) -> _Races:
        """Return the races with the trials of the indices `wanted`."""
        return {
            index: race(self._server, server, index, pairs=pairs, limit=limit, least_pairs=least)
            for index in wanted
        }

    def _raced_afresh(self, job: Job, wanted: Iterable[int], pairs: int, limit: float) -> _Races:
        """Race with new sessions: of two of one model one may be faster as long as it lives."""
        self._server.close()
        self._server = self._session(self.job)
        with self._session(job) as server:
            return self._races(server, wanted, pairs, limit, LEAST_PAIRS)

    def _session(self, job: Job) -> Server:
        self.session_count += 1
        return Server(replace(job, runs=None), [trial.feeds for trial in self._trials])

    def _measured(self, job: Job) -> Job:
        # What runs with all inputs has touched all that it needs, and its arena has grown.
        sets = tuple(trial.feeds for trial in self._trials)
        return replace(job, feeds=sets[0], later_feeds=sets, runs=len(sets))
