"""The search of a tuning: every option alone, then what helps together, then the choice."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

import msgspec

from memdiag.api.pace import Pace
from memdiag.api.tuning.attempts import Attempts
from memdiag.api.tuning.points import (
    choice,
    compared,
    cost,
    excess,
    fronted,
    is_less,
    is_step,
)
from memdiag.records.fix import Figures, Point
from memdiag.remedies.option import Option
from memdiag.runner.job import TimeLimitReached
from memdiag.units import format_duration

Names = frozenset[str]


_PLAUSIBLE_RATIO = 2.0
"""Options are compared last whose first runs took longer than the limit by this factor: these runs
scatter, for each is a single one in a fresh process."""


@dataclass(kw_only=True)
class Search:
    """The points that were measured so far, the defaults first, and which of them is chosen.

    `always` are options that are part of every point but the first. The memory of each option is
    measured first, in the order of `usable`. Outputs and latency are compared only where enough
    memory would be saved, quickly, the largest saving first; the choice is compared exactly.
    At `end`, by `clock`, all is over: options are tried until there is just the time left to
    measure the choice thoroughly. `interrupted` says that Ctrl-C ended the search, `timed_out` that
    the time did.
    """

    attempts: Attempts
    usable: Sequence[Option]
    always: tuple[Option, ...]
    budget: Mapping[str, int]
    limit: float
    say: Callable[[str], None]
    end: float = inf
    clock: Callable[[], float] = time.monotonic
    interrupted: bool = False
    timed_out: bool = False
    _points: dict[Names, Point] = field(default_factory=dict)
    _chosen: dict[Names, tuple[Option, ...]] = field(default_factory=dict)
    _refuted: set[Names] = field(default_factory=set)
    _confirmed: Names | None = None
    _deadline: float = field(init=False, default=inf)
    _pace: Pace = field(init=False)

    def run(self) -> None:
        """Search until nothing more helps, the time is over, or Ctrl-C comes."""
        self._keep(self.attempts.defaults(), ())
        self._deadline = self.end - self.attempts.reserve_s(self.end - self.clock())
        self._pace = Pace(first_s=self.attempts.weighing_s, end=self.end, clock=self.clock)
        try:
            self._explore()
            self.attempts.end_at(self.end)
            self._confirm()
        except KeyboardInterrupt:
            self.interrupted = True
        except TimeLimitReached:
            self.timed_out = True

    @property
    def points(self) -> tuple[Point, ...]:
        """All points, in the order in which they were tried."""
        offered = self._offered()
        points = [
            msgspec.structs.replace(point, offered=True) if names in offered else point
            for names, point in self._points.items()
        ]
        return tuple(fronted(points))

    @property
    def chosen(self) -> Point:
        """The point to take: the one that was confirmed, or the best so far."""
        if self._confirmed is not None:
            return next(one for one in self.points if {*one.options} == self._confirmed)
        standing = [
            point
            for point in self.points
            if not point.options or frozenset(point.options) not in self._refuted
        ]
        return choice(standing, self.budget, self.limit)

    def options_of(self, point: Point) -> tuple[Option, ...]:
        """Return the options of `point`."""
        return self._chosen[frozenset(point.options)]

    @property
    def is_confirmed(self) -> bool:
        """Whether the chosen point was measured thoroughly, which the defaults are at the start."""
        return self._confirmed is not None or not self.chosen.options

    def cheaper_but_slower(self) -> Point | None:
        """Return the fastest point that would keep within the budget if it were not too slow."""
        slow = [
            (ratio, point)
            for point, figures, ratio in compared(self.points)
            if ratio > self.limit and not excess(figures, self.budget)
        ]
        return min(slow, key=lambda one: one[0])[1] if slow else None

    def undecided(self) -> Point | None:
        """Return the point that would be chosen if those in doubt were known to be fast enough.

        None where that is none of them, or the chosen one.
        """
        best = self._best_if_fast()
        return best if best.undecided and best.options != self.chosen.options else None

    def _offered(self) -> set[Names]:
        """Return the points that save memory but whose latency was not compared in time."""
        if not (self.timed_out or self.interrupted):
            return set()
        base = self._base()
        return {
            names
            for names, point in self._points.items()
            if point.figures is not None
            and point.ratio is None
            and not point.problem
            and is_less(point.figures, base)
        }

    def untried(self) -> tuple[str, ...]:
        """Return the names of the options whose memory was not measured."""
        tried = {name for names in self._points for name in names}
        return tuple(one.name for one in self.usable if one.name not in tried)

    def _best_if_fast(self) -> Point:
        """Return the point to choose if every undecided one turned out to be fast enough."""
        standing = [
            msgspec.structs.replace(point, ratio=min(point.ratio, self.limit))
            if point.undecided and point.ratio is not None
            else point
            for point in self.points
            if not point.options or frozenset(point.options) not in self._refuted
        ]
        best = choice(standing, self.budget, self.limit)
        return next(point for point in self.points if point.options == best.options)

    def _explore(self) -> None:
        """Try each option alone, then what helps together."""
        try:
            if self.always:
                self._try((), self.attempts.before)
            base = self._base()
            self._try_alone(base)
            for start, limit in self._starts(base):
                best = self._shrink(self._grow(start, limit), limit)
                if limit < inf:
                    self._gather(best, limit)
        except TimeLimitReached:
            self.timed_out = True

    def _try_alone(self, base: Figures) -> None:
        """Try each option alone.

        Comparing takes longest: memory is measured first, and what saves most is compared first.
        Where time is limited, a third of it goes to memory, and options left over come last.
        """
        weighed: list[Option] = []
        started = self.clock()
        weighing_end = started + (self._deadline - started) / 3
        for one in self.usable:
            if self.clock() >= weighing_end:
                break
            self._weigh((one,))
            weighed.append(one)
        for one in sorted(weighed, key=lambda one: (self._seems_slow(one), self._cost_alone(one))):
            self._try((one,), base)
            self._check_deadline()
        for one in self.usable:
            self._try((one,), base)

    def _seems_slow(self, one: Option) -> bool:
        """Return whether the few runs in which memory was measured were slow."""
        figures = self._points[_names((*self.always, one))].figures
        before_s = self.attempts.before.latency_s
        if figures is None or figures.latency_s is None or before_s is None:
            return False
        return figures.latency_s > _PLAUSIBLE_RATIO * self.limit * before_s

    def _starts(self, base: Figures) -> Iterator[tuple[tuple[Option, ...], float]]:
        """Yield what to grow from, and how slow it may become.

        The best single option; the best of those that cannot stand beside it; and the best however
        slow it is, for the front shows what patience would buy.
        """
        best = self._best_alone(self.usable, base, self.limit)
        yield best, self.limit
        others = [one for one in self.usable if any(_clash(one, each) for each in best)]
        if rival := self._best_alone(others, base, self.limit):
            yield rival, self.limit
        slow = self._best_alone(self.usable, base, inf)
        if slow not in (best, rival):
            yield slow, inf

    def _best_alone(
        self, among: Sequence[Option], base: Figures, limit: float
    ) -> tuple[Option, ...]:
        """Return the option that takes the least, in a tuple; an empty one where none helps."""
        found = [
            (cost(figures), one)
            for one in among
            if (figures := self._figures((one,), limit)) is not None and is_less(figures, base)
        ]
        return (min(found, key=lambda each: each[0])[1],) if found else ()

    def _grow(self, best: tuple[Option, ...], limit: float) -> tuple[Option, ...]:
        """Add each option in turn, the most saving first, and keep those that save more."""
        least = self._figures(best) or self._base()
        for one in sorted(self.usable, key=self._cost_alone):
            if one in best or any(_clash(one, each) for each in best):
                continue
            self._try((*best, one), least)
            found = self._figures((*best, one), limit)
            if found is not None and is_less(found, least):
                best, least = (*best, one), found
        return best

    def _shrink(self, best: tuple[Option, ...], limit: float) -> tuple[Option, ...]:
        """Leave out each option in turn, and those for good without which it is as good."""
        for one in best if len(best) > 2 else ():
            fewer = tuple(each for each in best if each is not one)
            least = self._figures(best)
            figures = self._weigh(fewer).figures
            if least is None or figures is None or is_less(least, figures):
                continue
            self._judge(fewer)
            if self._figures(fewer, limit) is not None:
                best = fewer
        return best

    def _gather(self, best: tuple[Option, ...], limit: float) -> None:
        """Add what saves a little each: it may be worth it together."""
        taken = self._figures(best) or self._base()
        for one in self._small_savings(best, limit):
            if any(_clash(one, each) for each in best):
                continue
            added = (*best, one)
            figures = self._weigh(added).figures
            if figures is not None and is_step(figures, taken):
                self._judge(added)
                if self._figures(added, limit) is not None:
                    best, taken = added, figures

    def _small_savings(self, best: tuple[Option, ...], limit: float) -> list[Option]:
        """Return what saves something alone and is not known to be wrong or too slow."""
        base = self._base()
        found = []
        for one in self.usable:
            alone = self._weigh((one,))
            beside = self._points.get(_names((*self.always, *best, one)), alone)
            if one in best or _fails(alone, limit) or _fails(beside, limit):
                continue
            if alone.figures is not None and is_step(alone.figures, base):
                found.append(one)
        return sorted(found, key=self._cost_alone)

    def _confirm(self) -> None:
        """Measure the best plausible point thoroughly; where it does not stand, the next one."""
        while (point := self._best_if_fast()).options:
            names = frozenset(point.options)
            chosen = self._chosen[names]
            about_s = max(0.0, min(self.attempts.confirming_s, self.end - self.clock()))
            self.say(f"verifying {_words(chosen)} (about {format_duration(about_s)})")
            self._points[names], stands = self.attempts.confirm(point, chosen)
            if stands:
                self._confirmed = names
                return
            self._refuted.add(names)

    def _try(self, added: tuple[Option, ...], beside: Figures) -> None:
        """Measure what `added` take; if that is less than `beside`, outputs and latency as well.

        So are they where it keeps within a budget that the defaults exceed, however narrowly.
        """
        figures = self._weigh(added).figures
        if figures is None:
            return
        exceeded = excess(self.attempts.before, self.budget)
        if is_less(figures, beside) or (exceeded and not excess(figures, self.budget)):
            self._judge(added)

    def _weigh(self, added: tuple[Option, ...]) -> Point:
        chosen = (*self.always, *added)
        known = self._points.get(_names(chosen))
        if known is not None:
            return known
        self._check_deadline()
        alone = [one for one in self.usable if _names((*self.always, one)) not in self._points]
        left = f"{len(alone)} options left" if alone else f"{len(self._points)} points so far"
        self.say(f"trying {_words(chosen)} ({left}, {self._pace.step(len(alone))})")
        return self._keep(self.attempts.weigh(chosen), chosen)

    def _judge(self, added: tuple[Option, ...]) -> None:
        chosen = (*self.always, *added)
        point = self._points[_names(chosen)]
        if point.ratio is None and not point.problem:
            self._keep(self.attempts.judge(point, chosen), chosen)

    def _check_deadline(self) -> None:
        # Where nothing is chosen yet, nothing has to be measured thoroughly in the end.
        end = self._deadline if self.chosen.options else self.end
        self.attempts.end_at(end)
        if self.clock() >= end:
            raise TimeLimitReached

    def _keep(self, point: Point, chosen: tuple[Option, ...]) -> Point:
        self._points[_names(chosen)], self._chosen[_names(chosen)] = point, chosen
        return point

    def _base(self) -> Figures:
        """Return what the options are to improve on."""
        return self._figures(()) or self.attempts.bench.before

    def _figures(self, added: tuple[Option, ...], limit: float = inf) -> Figures | None:
        """Return the figures of a point that can be used and is not slower than `limit`."""
        point = self._points.get(_names((*self.always, *added)))
        if point is None or point.ratio is None or _fails(point, limit):
            return None
        return point.figures

    def _cost_alone(self, one: Option) -> float:
        point = self._points[_names((*self.always, one))]
        return cost(point.figures) if point.figures is not None and not point.problem else inf


def _fails(point: Point, limit: float) -> bool:
    """Return whether `point` cannot be used, or is slower than `limit` as far as can be told."""
    is_slow = point.ratio is not None and point.ratio > limit and not point.undecided
    return bool(point.problem) or is_slow


def _clash(one: Option, other: Option) -> bool:
    return one.name in other.excludes or other.name in one.excludes


def _names(chosen: Sequence[Option]) -> Names:
    return frozenset(one.name for one in chosen)


def _words(chosen: Sequence[Option]) -> str:
    return " + ".join(one.name for one in chosen)
