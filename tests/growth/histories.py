"""Moments of a host and a GPU, slopes and observations, with defaults for what is not stated."""

from collections.abc import Collection, Iterable
from typing import Any

from memdiag.growth.observation import GrowthObservation
from memdiag.records.growth import DeviceMoment, Moment, OwnerBytes, Slope
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


CONTEXT_BYTES = 560 * MIB
RESERVED_BYTES = 12 * MIB  # by the driver
ALL_SOURCES = frozenset({"NVML", "CUPTI", "arena", "cudaMemGetInfo"})


def device_moment(
    *,
    arena: int = 128 * MIB,
    empty: int = 128 * MIB,
    cublas: int = 128 * MIB,
    rest: int = 0,
    others: int = 0,
    sources: Collection[str] = ALL_SOURCES,
) -> DeviceMoment:
    """Return what `sources` report of a GPU on which the parts have these bytes.

    Args:
        arena: chunks of the arena in use.
        empty: free chunks of it.
        cublas: allocations of cuBLAS.
        rest: further allocations.
        others: the memory of other processes.
        sources: those that report.
    """
    allocated = arena + empty + cublas + rest
    process = CONTEXT_BYTES + allocated
    return DeviceMoment(
        used_bytes=process + RESERVED_BYTES + others if "cudaMemGetInfo" in sources else None,
        process_bytes=process if "NVML" in sources else None,
        allocated_bytes=allocated if "CUPTI" in sources else None,
        libraries={"cuBLAS": cublas, "cuDNN": 0} if "CUPTI" in sources else None,
        arena_used_bytes=arena if "arena" in sources else None,
        arena_free_bytes=empty if "arena" in sources else None,
    )
