"""Points and searches with figures that are made up: nothing is measured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from memdiag.records.fix import Point
from memdiag.records.measured_change import Figures
from memdiag.tuning.option_search import OptionSearch
from memdiag.tuning.point_evaluator import PointEvaluator
from memdiag.tuning.points import over_budget_bytes
from memdiag.tuning.tuning_options import TuningOption
from memdiag.units import MIB

Names = frozenset[str]
LIMIT = 1.05


def figures(
    peak: float, steady: float | None = None, *, anonymous: float | None = None, spread: float = 0
) -> Figures:
    """Return figures in MiB, those of the peak where others are not given."""
    return Figures(
        peak_bytes=round(peak * MIB),
        peak_spread_bytes=round(spread * MIB),
        steady_bytes=round((peak if steady is None else steady) * MIB),
        steady_spread_bytes=0,
        anonymous_bytes=round((peak if anonymous is None else anonymous) * MIB),
        file_and_shared_bytes=0,
        load_s=0.1,
        latency_s=0.01,
        disk_bytes=1,
    )


def made_up_point(*options: str, **fields: Any) -> Point:
    """Return a point of `options` with nothing measured but what `fields` say."""
    empty: dict[str, Any] = {
        "session_options": {},
        "environment": {},
        "run_options": {},
        "disabled_optimizers": (),
        "shared_arena": False,
        "saved_options": {},
        "figures": None,
        "ratio": None,
        "low": None,
        "high": None,
        "on_front": False,
        "fits": False,
        "problem": "",
    }
    return Point(option_names=options, **(empty | fields))


def no_change(names: Names) -> dict[str, Any]:
    return {}


@dataclass
class Scripted:
    """Stands for `PointEvaluator`: memory in MiB and latency ratio follow from options' names.

    Attributes:
        seen: fields that a comparison of these options gives besides, or raises.
        confirmed: the same for the confirmation; ``stands`` says whether the point is confirmed.
        untrue: the points that are not confirmed.
        compared: the options of all comparisons.
        seconds: the time that has passed, one for each measurement of options.
    """

    size: Callable[[Names], float]
    ratio: Callable[[Names], float] = lambda names: 1.0
    budget: Mapping[str, int] = field(default_factory=dict)
    untrue: Sequence[Names] = ()
    seen: Callable[[Names], dict[str, Any]] = no_change
    confirmed: Callable[[Names], dict[str, Any]] = no_change
    compared: list[Names] = field(default_factory=list)
    seconds: float = 0
    deadline: float = inf

    measuring_s: float = 1.0
    comparing_s: float = 0.0
    confirming_s: float = 0.0

    def reserve_s(self, remaining_s: float) -> float:
        return 0.0

    def set_deadline(self, at: float) -> None:
        self.deadline = at

    @property
    def before(self) -> Figures:
        return figures(self.size(frozenset()))

    @property
    def model_evaluator(self) -> SimpleNamespace:
        return SimpleNamespace(before=self.before)

    def defaults(self) -> Point:
        return msgspec.structs.replace(self.measure(()), ratio=1.0, fits=self._fits(self.before))

    def measure(self, chosen: tuple[TuningOption, ...]) -> Point:
        names = [one.name for one in chosen]
        self.seconds += bool(chosen)
        return made_up_point(*names, figures=figures(self.size(frozenset(names))))

    def compare(self, point: Point, chosen: tuple[TuningOption, ...]) -> Point:
        names = frozenset(point.option_names)
        changes = self.seen(names)
        self.compared.append(names)
        assert point.figures is not None
        ratio = self.ratio(names)
        fits = ratio <= LIMIT and self._fits(point.figures)
        found = {"ratio": ratio, "low": ratio, "high": ratio, "largest_high": ratio, "fits": fits}
        return msgspec.structs.replace(point, **(found | changes))

    def confirm(self, point: Point, chosen: tuple[TuningOption, ...]) -> tuple[Point, bool]:
        names = frozenset(point.option_names)
        changes = {"stands": names not in self.untrue} | self.confirmed(names)
        stands = changes.pop("stands")
        return msgspec.structs.replace(point, **changes), stands

    def _fits(self, taken: Figures) -> bool:
        return not over_budget_bytes(taken, self.budget)


def option(name: str, *excludes: str, **fields: Any) -> TuningOption:
    return TuningOption(name=name, does="x.", hurts="x.", excludes=excludes, **fields)


def options(text: str) -> list[TuningOption]:
    """Return the options named in `text`, each with those that it excludes: ``a b:a c:a,b``."""
    pairs = (name.partition(":") for name in text.split())
    return [option(name, *excluded.split(",") if excluded else ()) for name, _, excluded in pairs]


def new_search(
    scripted: Scripted, usable: str | Sequence[TuningOption], **settings: Any
) -> OptionSearch:
    """Return a search that has not begun."""
    return OptionSearch(
        point_evaluator=cast(PointEvaluator, scripted),
        usable=options(usable) if isinstance(usable, str) else [*usable],
        budget=scripted.budget,
        max_slowdown=LIMIT,
        report_progress=lambda words: None,
        clock=lambda: scripted.seconds,
        **settings,
    )


def searched(
    scripted: Scripted, usable: str | Sequence[TuningOption], **settings: Any
) -> OptionSearch:
    search = new_search(scripted, usable, **settings)
    search.run()
    return search


def less(**saved: float) -> Callable[[Names], float]:
    """100 MiB, less what each option saves on its own."""
    return lambda names: 100 - sum(saved.get(name, 0) for name in names)
