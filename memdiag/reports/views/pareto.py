"""The points of a tuning that a picture shows: memory against latency, and the Pareto fronts."""

from collections.abc import Sequence
from dataclasses import dataclass

from memdiag.records.fix import Fix, Point
from memdiag.reports.views.tuning import label, memory_in_words


@dataclass(frozen=True, slots=True, kw_only=True)
class ParetoPoint:
    """One point, drawn in two charts: steady memory and peak, each against latency.

    Attributes:
        number: counts the points on one of the fronts from the least steady memory on, 0 for
            others.
        on_steady_front: no other point is as good in both steady memory and latency, and better in
            one of them, as they are drawn.
        on_peak_front: the same for the peak and latency.
        ratio: measured latency beside that of the defaults.
        low: lower end of its interval, the ratio itself where there is none.
        high: upper end of its interval.
        drawn_ratio: the ratio that is drawn and that the fronts are of: 1 where the interval holds
            1, for then it is not known which is faster.
    """

    number: int
    on_steady_front: bool
    on_peak_front: bool
    label: str
    steady_bytes: int
    peak_bytes: int
    steady: str
    peak: str
    ratio: float
    low: float
    high: float
    drawn_ratio: float
    is_chosen: bool
    is_defaults: bool


def build(tuning: Fix) -> tuple[ParetoPoint, ...]:
    """Return the points of `tuning` that can be used and were compared: the fronts first."""
    usable = [one for one in tuning.points if one.figures and one.ratio and not one.problem]
    steady = _front([(_steady(one), _drawn(one)) for one in usable])
    peak = _front([(_peak(one), _drawn(one)) for one in usable])
    places = sorted(
        range(len(usable)),
        key=lambda place: (
            not (steady[place] or peak[place]),
            _steady(usable[place]),
            _drawn(usable[place]),
        ),
    )
    sizes = memory_in_words([usable[place] for place in places])
    shown = []
    for number, (place, (peak_text, steady_text)) in enumerate(
        zip(places, sizes, strict=True), start=1
    ):
        point = usable[place]
        ratio = point.ratio or 1.0
        shown.append(
            ParetoPoint(
                number=number if steady[place] or peak[place] else 0,
                on_steady_front=steady[place],
                on_peak_front=peak[place],
                label=label(point),
                steady_bytes=_steady(point),
                peak_bytes=_peak(point),
                steady=steady_text,
                peak=peak_text,
                ratio=ratio,
                low=ratio if point.low is None else point.low,
                high=ratio if point.high is None else point.high,
                drawn_ratio=_drawn(point),
                is_chosen=point.options == tuning.chosen,
                is_defaults=not point.options,
            )
        )
    return tuple(shown)


def _front(points: Sequence[tuple[int, float]]) -> list[bool]:
    """Return for each point whether none is as small in both figures and smaller in one."""
    return [
        not any(other[0] <= one[0] and other[1] <= one[1] and other != one for other in points)
        for one in points
    ]


def _steady(point: Point) -> int:
    assert point.figures is not None
    return point.figures.steady_bytes


def _peak(point: Point) -> int:
    assert point.figures is not None
    return point.figures.peak_bytes


def _drawn(point: Point) -> float:
    undecided = point.low is not None and point.high is not None and point.low <= 1 <= point.high
    return 1.0 if undecided else point.ratio or 1.0
