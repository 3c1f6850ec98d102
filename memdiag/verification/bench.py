"""The bench on which a changed model is judged beside the original."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from memdiag.errors import MeasurementError
from memdiag.measurement.job import Feed, Job
from memdiag.measurement.server import Server
from memdiag.records.fix import Figures
from memdiag.verification import memory
from memdiag.verification.latency import Race, race
from memdiag.verification.outputs import Bound, Difference, compare

_TIMES = 3
_MORE = 4
_RANDOM = 1e-3
"""Outputs that differ by more between two runs of one session are random, not rounded."""

Saved = Mapping[str, Sequence[Path]]


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


class Bench:
    """Holds the original's session, its outputs and its figures; a context manager.

    `job` is the original's, `before` are its figures,
    `unstable` the outputs that are random.

    Raises:
        MeasurementError: the original cannot be run.
    """

    def __init__(self, job: Job, trials: Sequence[Trial], scratch: Path, disk_bytes: int) -> None:
        self.job = job
        self._trials = trials
        self._scratch = scratch
        self._count = 0
        self._exits = ExitStack()
        feeds = [trial.feeds for trial in trials]
        try:
            self._server = self._exits.enter_context(Server(replace(job, runs=None), feeds))
            self._outputs = self._save(self._server, "original")
            again = self._save(self._server, "original-again")
        except BaseException:
            self._exits.close()
            raise
        self.unstable = _unstable(self._outputs, again)
        self.onnxruntime = self._server.onnxruntime
        self.before = memory.figures(
            memory.look_in_turn([self._measured(job)], _TIMES)[0], disk_bytes=disk_bytes
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._exits.close()

    def judge(
        self,
        job: Job,
        bound: Bound,
        *,
        disk_bytes: int,
        times: int = 1,
        pairs: int = 15,
        limit: float | None = None,
    ) -> Verdict:
        """Return what is to be said of another model, or of other options for the same one.

        Its outputs are held to `bound`; its memory is measured `times` times, in fresh processes.
        Where it cannot be told yet whether it is slower by more than `limit`, it is run more often.
        """
        try:
            feeds = [trial.feeds for trial in self._trials]
            with Server(replace(job, runs=None), feeds) as server:
                if server.signature != self._server.signature:
                    return Verdict(problem="its inputs, outputs or metadata are others")
                self._count += 1
                found = self._differences(self._save(server, f"changed-{self._count}"))
                worst = max(found, key=lambda one: one.relative, default=None)
                if worst is not None and worst.relative > bound.relative:
                    return Verdict(problem=_problem(worst, bound), difference=worst)
                races = tuple(
                    (trial.name, self._race(server, index, pairs, limit))
                    for index, trial in enumerate(self._trials)
                    if trial.timed
                )
            seen = memory.look_in_turn([self._measured(job)], times)[0]
        except MeasurementError as error:
            return Verdict(problem=f"it does not run: {error}")
        figures = memory.figures(seen, disk_bytes=disk_bytes)
        return Verdict(problem=None, difference=worst, races=races, figures=figures)

    def measure_both(
        self, job: Job, times: int, *, before_bytes: int, after_bytes: int
    ) -> tuple[Figures, Figures]:
        """Return the figures of the original and of `job`, measured in turn.

        Raises:
            MeasurementError: one does not run.
        """
        jobs = [self._measured(self.job), self._measured(job)]
        one, other = memory.look_in_turn(jobs, times)
        return (
            memory.figures(one, disk_bytes=before_bytes),
            memory.figures(other, disk_bytes=after_bytes),
        )

    def _race(self, server: Server, index: int, pairs: int, limit: float | None) -> Race:
        found = race(self._server, server, index, pairs=pairs, limit=limit)
        if limit is None or not found.ratio.low <= limit < found.ratio.median:
            return found
        return race(self._server, server, index, pairs=_MORE * pairs, limit=limit)

    def _measured(self, job: Job) -> Job:
        # What runs with all inputs has touched all that it needs, and its arena has grown.
        sets = tuple(trial.feeds for trial in self._trials)
        return replace(job, feeds=sets[0], later_feeds=sets, runs=len(sets))

    def _save(self, server: Server, name: str) -> list[Saved]:
        return [
            server.save(index, self._scratch / f"{name}-{index}")
            for index in range(len(self._trials))
        ]

    def _differences(self, outputs: Sequence[Saved]) -> list[Difference]:
        return [
            difference
            for before, after in zip(self._outputs, outputs, strict=True)
            for difference in compare(before, after)
            if difference.output not in self.unstable
        ]


def _unstable(one: Sequence[Saved], other: Sequence[Saved]) -> frozenset[str]:
    """Return the outputs that differ between two runs of one session: nothing can be held to them.

    The same inputs gave other values, as random operators do.
    """
    return frozenset(
        difference.output
        for before, after in zip(one, other, strict=True)
        for difference in compare(before, after)
        if difference.relative > _RANDOM
    )


def _problem(worst: Difference, bound: Bound) -> str:
    if worst.relative == inf:
        return f"output {worst.output} {worst.reason or 'differs from zeros'}"
    return (
        f"output {worst.output} differs by {worst.relative:.1e} of its largest value"
        f" (bound {bound.relative:.1e}: {bound.why})"
    )
