"""Moments, slopes and observations of growth, with defaults for what a test does not state."""

from collections.abc import Iterable
from typing import Any

from memdiag.growth.observation import GrowthObservation
from memdiag.records.growth import Moment, OwnerBytes, Slope
from memdiag.units import MIB


def moment(run: int, resident_bytes: int = 60 * MIB, **fields: Any) -> Moment:
    """Return a moment after `run` of 100 runs a second."""
    return Moment(**{"run": run, "time_s": run / 100, "resident_bytes": resident_bytes, **fields})


def owned_moment(run: int, resident_bytes: int, slack_bytes: int = 0, **fields: Any) -> Moment:
    """Return a moment with slack in the arena; the rest is in the heap."""
    owners = [OwnerBytes(kind="other_heap", bytes=resident_bytes - slack_bytes)]
    if slack_bytes:
        owners.append(OwnerBytes(kind="arena", bytes=slack_bytes))
    read: dict[str, Any] = {"owners": tuple(owners), "heap_bytes": 0, "arena_used_bytes": 0}
    return moment(run, resident_bytes, **(read | fields))


def observed(moments: Iterable[Moment], **fields: Any) -> GrowthObservation:
    """Return the observation of a program, whose warm-up ends at the second moment."""
    stated: dict[str, Any] = {"unit": "run", "warm_up": 1, "caller_keeps_nothing": False}
    return GrowthObservation(moments=tuple(moments), **(stated | fields))


def exact_slope(bytes_per_unit: float) -> Slope:
    """Return a slope whose interval has no width."""
    return Slope(bytes_per_unit=bytes_per_unit, low=bytes_per_unit, high=bytes_per_unit)
