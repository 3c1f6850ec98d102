"""The correction of estimated points by measured ones."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from memdiag.records.estimate import Calibration, EstimatedPoint
from memdiag.records.phases import RUN_PHASES

MeasurePeak = Callable[[Mapping[str, int]], int]
"""A function that runs the model at sizes and returns the peak, in bytes above the process before
it."""


class LinearCorrection(NamedTuple):
    """A linear correction.

    Attributes:
        slope, offset: the corrected size is `slope` times the estimated size, plus `offset` bytes.
    """

    slope: float
    offset: float

    def corrected(self, size: int) -> int:
        """Return the corrected size in bytes."""
        return max(0, round(self.slope * size + self.offset))


NO_CORRECTION = LinearCorrection(1.0, 0.0)

_JUMP_NOTE = (
    "a line through the smallest and the largest measured point misses the one between them by more"
    " than the estimate does: only measured points are corrected"
)


class PointCorrections(NamedTuple):
    """What measurements change in estimated points.

    Attributes:
        line: the correction of points that were not measured.
        measured: the points that were measured, with their estimates.
    """

    line: LinearCorrection = NO_CORRECTION
    measured: tuple[Calibration, ...] = ()

    @property
    def notes(self) -> list[str]:
        """What a reader must know about the correction."""
        return [_JUMP_NOTE] if self.line == NO_CORRECTION and len(self.measured) > 2 else []

    def applied_to(self, point: EstimatedPoint) -> EstimatedPoint:
        """Return `point` as it was measured or, if it was not measured, corrected by the line.

        A point with values of unknown size, which count as nothing, is not corrected: what these
        values take does not follow from other sizes.
        """
        for calibration in self.measured:
            if calibration.dims == point.dims:
                return _measured_point(point, calibration.measured_bytes)
        if self.line == NO_CORRECTION or point.unknown_values:
            return point
        return _point_with_peak(point, self.line.corrected(point.peak_bytes))


def calibrate_points(points: Sequence[EstimatedPoint], measure: MeasurePeak) -> PointCorrections:
    """Return what measurements of up to three of `points` change.

    The points with the smallest and the largest peak are measured, and a point between them. The
    correction is the line through the two outer points. The point between them tests the line: if
    it is further from the line than from its estimate, as after a jump that was not predicted,
    nothing is corrected.
    """
    points_by_peak = sorted(points, key=lambda point: (point.peak_bytes, *point.dims.values()))
    outer_by_id = {id(point): point for point in (points_by_peak[0], points_by_peak[-1])}
    outer_points = list(outer_by_id.values())
    held_out = [points_by_peak[len(points_by_peak) // 2]] if len(points_by_peak) > 2 else []
    bytes_by_point = {id(point): measure(point.dims) for point in (*outer_points, *held_out)}
    line = _correction_line(
        [(point.peak_bytes, bytes_by_point[id(point)]) for point in outer_points]
    )
    for point in held_out:
        measured_bytes = bytes_by_point[id(point)]
        error = abs(line.corrected(point.peak_bytes) - measured_bytes)
        if error > abs(point.peak_bytes - measured_bytes):
            line = NO_CORRECTION
    calibrations = tuple(
        Calibration(
            dims=point.dims,
            estimated_bytes=point.peak_bytes,
            corrected_bytes=line.corrected(point.peak_bytes),
            measured_bytes=bytes_by_point[id(point)],
            is_held_out=point in held_out,
        )
        for point in (*outer_points, *held_out)
    )
    return PointCorrections(line, calibrations)


def _correction_line(pairs: Sequence[tuple[int, int]]) -> LinearCorrection:
    """Return the line through the first and the last of `pairs` of estimated and measured bytes.

    With one pair, or if the estimates do not differ, only the offset is corrected.
    """
    (first, first_measured), (last, last_measured) = pairs[0], pairs[-1]
    if last == first or last_measured <= first_measured:
        return LinearCorrection(1.0, (first_measured + last_measured) / 2 - (first + last) / 2)
    slope = (last_measured - first_measured) / (last - first)
    return LinearCorrection(slope, first_measured - slope * first)


def _measured_point(point: EstimatedPoint, peak: int) -> EstimatedPoint:
    """Return `point` with the measured `peak`, in bytes.

    If there are values of unknown size, they are what the peak has beyond the estimate. The peak is
    in the runs then.
    """
    phase = point.peak_phase
    runs = [
        estimated_phase.name
        for estimated_phase in point.phases
        if estimated_phase.name in RUN_PHASES
    ]
    if point.unknown_values and peak > point.peak_bytes and runs:
        phase = runs[-1]
    return msgspec.structs.replace(
        _point_with_peak(point, peak), peak_phase=phase, is_measured=True
    )


def _point_with_peak(point: EstimatedPoint, peak: int) -> EstimatedPoint:
    """Return `point` with the peak `peak`, and the other figures in proportion."""
    ratio = peak / max(1, point.peak_bytes)
    return msgspec.structs.replace(
        point,
        peak_bytes=peak,
        steady_bytes=min(peak, round(ratio * point.steady_bytes)),
        low_bytes=round(ratio * point.low_bytes),
        usual_bytes=peak,
        # A measured peak includes the memory that malloc keeps.
        high_bytes=round(ratio * point.pinned_high_bytes),
        pinned_high_bytes=round(ratio * point.pinned_high_bytes),
    )
