"""A time axis on which every phase can be seen, however short it is beside the others."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from memdiag.reports.views.timeline import Band, Timeline

_SMALLEST_SHARE = 0.09  # of the width, for phases after `start`
_START_SHARE = 0.05  # nothing of the model happens in `start`: no more than this


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeScale:
    """A piecewise linear map from seconds to the share of the width, from 0 to 1.

    `stretched` tells whether its pieces differ in scale, which a reader must be told.
    """

    edges_s: tuple[float, ...]
    places: tuple[float, ...]
    stretched: bool

    def place(self, t_s: float) -> float:
        """Return where `t_s` lies, from 0 to 1."""
        index = min(max(bisect_right(self.edges_s, t_s) - 1, 0), len(self.edges_s) - 2)
        first, last = self.edges_s[index], self.edges_s[index + 1]
        share = (min(max(t_s, first), last) - first) / (last - first)
        return self.places[index] + share * (self.places[index + 1] - self.places[index])


def build(timeline: Timeline) -> TimeScale:
    """Return a scale that gives each stretch of phases a share of the width it can be seen in.

    Phases that take turns, such as `optimize` and `constant_fold`, share one stretch, so that
    within it time stays linear.
    """
    stretches = _stretches(timeline)
    floor = min(_SMALLEST_SHARE, 0.6 / len(stretches))
    total = sum(last - first for first, last, _ in stretches)
    after_start = sum(last - first for first, last, start in stretches if not start) or total
    shares = [
        min(_START_SHARE, (last - first) / total)
        if is_start and len(stretches) > 1
        else max(floor, (last - first) / after_start)
        for first, last, is_start in stretches
    ]
    # What the floor gave to the short ones is taken from what the long ones have above it.
    excess = sum(shares) - 1
    spare = sum(max(0.0, share - floor) for share in shares)
    if spare > 0:
        shares = [share - max(0.0, share - floor) * min(1.0, excess / spare) for share in shares]
    places = [0.0]
    for share in shares:
        places.append(places[-1] + share / sum(shares))
    speeds = [
        share / (last - first) for share, (first, last, _) in zip(shares, stretches, strict=True)
    ]
    return TimeScale(
        edges_s=(stretches[0][0], *(last for _, last, _ in stretches)),
        places=tuple(places),
        stretched=max(speeds) > 1.5 * min(speeds),
    )


def _stretches(timeline: Timeline) -> list[tuple[float, float, bool]]:
    """Return (start, end, is `start`) of each group of phases whose extents overlap."""
    first = timeline.start_s
    last = max(timeline.end_s, first + 1e-6)
    merged: list[tuple[float, float, bool]] = []
    for start, end, is_start in sorted(_extents(timeline.bands)):
        if merged and start < merged[-1][1]:
            before = merged.pop()
            merged.append((before[0], max(before[1], end), before[2] and is_start))
        elif end > start:
            merged.append((start, end, is_start))
    if not merged:
        return [(first, last, False)]
    merged[0] = (first, *merged[0][1:])
    merged[-1] = (merged[-1][0], last, merged[-1][2])
    # Spans follow each other without gaps; where a record has one, it belongs to what follows.
    return [
        (before[1], end, is_start)
        for before, (_, end, is_start) in zip([(0, first), *merged], merged, strict=False)
    ]


def _extents(bands: Sequence[Band]) -> list[tuple[float, float, bool]]:
    extents: dict[str, tuple[float, float, bool]] = {}
    for band in bands:
        start, end, _ = extents.get(band.phase, (band.start_s, band.end_s, False))
        extent = (min(start, band.start_s), max(end, band.end_s), band.phase == "start")
        extents[band.phase] = extent
    return list(extents.values())
