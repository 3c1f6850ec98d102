"""The points of a tuning that a picture shows: memory against latency, and the Pareto front."""

from dataclasses import dataclass

from memdiag.records.fix import Fix, Point
from memdiag.reporters.views.tuning import label, memory_in_words


@dataclass(frozen=True, slots=True, kw_only=True)
class ParetoPoint:
    """One point; `number` counts those on the front from the least memory on, 0 for others.

    The front is that of peak, steady memory and latency; `on_line` are those of it to which no
    other is superior in the two that are drawn, steady memory and latency.

    `ratio` is its latency beside that of the defaults, `low` to `high` its interval; both are the
    ratio itself where there is none.
    """

    number: int
    on_line: bool
    label: str
    steady_bytes: int
    steady: str
    peak: str
    ratio: float
    low: float
    high: float
    is_chosen: bool
    is_defaults: bool


def build(tuning: Fix) -> tuple[ParetoPoint, ...]:
    """Return the points of `tuning` that can be used and were compared: the front first."""
    usable = [one for one in tuning.points if one.figures and one.ratio and not one.problem]
    front = sorted((one for one in usable if one.on_front), key=_place)
    others = sorted((one for one in usable if not one.on_front), key=_place)
    shown = []
    fastest = float("inf")
    for place, (point, sizes) in enumerate(
        zip((*front, *others), memory_in_words((*front, *others)), strict=True)
    ):
        ratio, on_front = point.ratio or 1.0, place < len(front)
        number, on_line = (place + 1, ratio < fastest) if on_front else (0, False)
        shown.append(_shown(point, number, tuning, *sizes, on_line=on_line))
        fastest = min(fastest, ratio)
    return tuple(shown)


def _place(point: Point) -> tuple[int, float]:
    assert point.figures is not None
    return point.figures.steady_bytes, point.ratio or 1.0


def _shown(
    point: Point, number: int, tuning: Fix, peak: str, steady: str, *, on_line: bool
) -> ParetoPoint:
    assert point.figures is not None
    ratio = point.ratio or 1.0
    return ParetoPoint(
        number=number,
        on_line=on_line,
        label=label(point),
        steady_bytes=point.figures.steady_bytes,
        steady=steady,
        peak=peak,
        ratio=ratio,
        low=ratio if point.low is None else point.low,
        high=ratio if point.high is None else point.high,
        is_chosen=point.options == tuning.chosen,
        is_defaults=not point.options,
    )
