"""Combinations of options, tried out beside the defaults on a bench."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

import msgspec

from memdiag.api.tuning.files import TuneFiles
from memdiag.api.tuning.points import excess
from memdiag.errors import MemdiagError
from memdiag.model.model_file import open_model
from memdiag.records.fix import Figures, Point
from memdiag.remedies.option import Option
from memdiag.runner.job import Job, TimeLimitReached
from memdiag.verify.bench import Bench, Verdict
from memdiag.verify.judgement import Races, saves
from memdiag.verify.latency import MIN_PAIRS
from memdiag.verify.outputs import Bound

_QUICK_PAIRS = 4
_FINAL_PAIRS = 32
_FINAL_TIMES = 3


@dataclass(kw_only=True)
class Attempts:
    """Makes points of combinations of options, each verified like a fix.

    `limit` is the largest ratio of latencies that fits.
    """

    bench: Bench
    bound: Bound
    scratch: Path
    disk_bytes: int
    limit: float
    budget: dict[str, int]
    before: Figures = field(init=False)
    _verdicts: dict[tuple[str, ...], Verdict] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._files = TuneFiles(self.scratch)
        self.before = self.bench.before

    @property
    def session_count(self) -> int:
        """How many sessions were started: on the bench, and to save models."""
        return self.bench.session_count + self._files.saved_count

    @property
    def weighing_s(self) -> float:
        """Roughly how long the memory of a point is measured."""
        return self.bench.estimate_s(times=0, pairs=0)

    @property
    def confirming_s(self) -> float:
        """Roughly how long a point is confirmed."""
        return self.bench.estimate_s(times=_FINAL_TIMES, pairs=_FINAL_PAIRS)

    def reserve_s(self, remaining_s: float) -> float:
        """Return how much of the remaining time to keep for confirming a point.

        Enough to measure the memory of it and of the defaults again and to compare latency briefly,
        or for memory alone, where that leaves most of the time for the search; otherwise nothing.
        """
        if remaining_s == inf:
            return 0.0
        memory_s = 2 * _FINAL_TIMES * self.bench.process_s
        all_s = memory_s + self.bench.estimate_s(times=0, pairs=MIN_PAIRS)
        if all_s <= remaining_s / 2:
            return all_s
        return memory_s if memory_s <= remaining_s / 4 else 0.0

    def end_at(self, moment: float) -> None:
        """Have whatever runs end at `moment`, by `time.monotonic()`."""
        self.bench.job.deadline.at = moment

    def defaults(self) -> Point:
        """Return the point without options."""
        return msgspec.structs.replace(
            _point(self.bench.job, ()), figures=self.before, ratio=1.0, fits=self._fits(self.before)
        )

    def weigh(self, chosen: tuple[Option, ...]) -> Point:
        """Return the point of `chosen` with its memory, measured once, and nothing else."""
        settings = _configured(self.bench.job, chosen)
        point = _point(settings, chosen)
        try:
            job = self._files.ready(settings, chosen)
            figures = self.bench.measure(job, 1, disk_bytes=_disk_bytes(job))
        except MemdiagError as error:
            return self._refused(point, f"it does not run: {error}")
        return msgspec.structs.replace(point, figures=figures)

    def judge(self, point: Point, chosen: tuple[Option, ...]) -> Point:
        """Return `point`, the one of `chosen`, with its outputs checked and a quick latency ratio.

        The ratio is from few pairs of runs: it tells only points that are clearly slower.
        """
        return self._judged(point, chosen, _QUICK_PAIRS, is_quick=True)

    def confirm(self, point: Point, chosen: tuple[Option, ...]) -> tuple[Point, bool]:
        """Return `point` measured thoroughly, and whether it still is worth having.

        Its memory and that of the defaults are measured in turn, in several processes each, and
        then its latency is compared exactly. Where the time for that runs out, the latency ratio of
        `point` stays as it is.
        """
        try:
            job = self._files.ready(_configured(self.bench.job, chosen), chosen)
            before, after = self.bench.measure_both(
                job, _FINAL_TIMES, before_bytes=self.disk_bytes, after_bytes=_disk_bytes(job)
            )
        except MemdiagError as error:
            return self._refused(point, f"it does not run: {error}"), False
        fits = self._fits(after)
        point = msgspec.structs.replace(point, figures=after, fits=fits)
        try:
            point = self._judged(point, chosen, _FINAL_PAIRS)
        except TimeLimitReached:
            point = self._timed(point)
        if point.problem or point.ratio is None or point.ratio > self.limit:
            return point, False
        is_needed = fits and not self._fits(before)
        is_faster = fits and point.high is not None and point.high < 1
        if not (is_needed or (self.budget and is_faster) or saves(before, after)):
            return point, False
        self.before = before
        return point, True

    def verdict(self, point: Point) -> Verdict | None:
        """Return what was found of `point` the last time; None where it was not compared."""
        return self._verdicts.get(point.options)

    def _judged(
        self, point: Point, chosen: tuple[Option, ...], pairs: int, *, is_quick: bool = False
    ) -> Point:
        try:
            job = self._files.ready(_configured(self.bench.job, chosen), chosen)
        except MemdiagError as error:
            return self._refused(point, f"it does not run: {error}")
        verdict = self.bench.judge(
            job,
            self.bound,
            disk_bytes=0,
            times=0,
            pairs=pairs,
            limit=self.limit,
            is_quick=is_quick,
        )
        if verdict.problem is not None:
            return self._refused(point, verdict.problem)
        self._verdicts[point.options] = verdict
        return self._raced(point, verdict.races)

    def _raced(self, point: Point, races: Races) -> Point:
        name, slowest = max(
            ((name, race.ratio) for name, race in races),
            key=lambda one: one[1].median,
            default=("", None),
        )
        ratios = [race.ratio for _, race in races]
        is_slower = any(one.low > self.limit for one in ratios)
        return self._timed(
            msgspec.structs.replace(
                point,
                ratio=slowest.median if slowest else 1.0,
                low=slowest.low if slowest else None,
                high=slowest.high if slowest else None,
                slowest_with=name,
                undecided=not is_slower and any(one.high > self.limit for one in ratios),
            )
        )

    def _timed(self, point: Point) -> Point:
        """Return `point` with whether it fits, by its latency ratio and its memory."""
        fits = point.ratio is not None and point.ratio <= self.limit
        fits = fits and point.figures is not None and self._fits(point.figures)
        return msgspec.structs.replace(point, fits=fits)

    def _refused(self, point: Point, problem: str) -> Point:
        """Return `point` with a problem, in words that name no file of ours."""
        words = " ".join(problem.replace(f"{self.scratch}/", "").split())
        return msgspec.structs.replace(point, problem=words, fits=False)

    def _fits(self, figures: Figures) -> bool:
        return not excess(figures, self.budget)


def _configured(job: Job, chosen: Sequence[Option]) -> Job:
    for one in chosen:
        job = one.added_to(job)
    return job


def _disk_bytes(job: Job) -> int:
    with open_model(job.model) as file:
        return sum(path.stat().st_size for path in file.files)


def _point(job: Job, chosen: Sequence[Option]) -> Point:
    """Return the point of `chosen`, of whose settings `job` is made, before anything is known."""
    return Point(
        options=tuple(one.name for one in chosen),
        session_options=dict(job.options),
        environment=dict(job.environment),
        run_options=dict(job.run_options),
        disabled_optimizers=tuple(job.disabled_optimizers),
        shared_arena=job.shared_arena,
        saved_options={name: text for one in chosen for name, text in one.saved.items()},
        load_from=job.load_from,
        shares_weights=any(one.shares_weights for one in chosen),
        figures=None,
        ratio=None,
        low=None,
        high=None,
        on_front=False,
        fits=False,
        problem="",
    )
