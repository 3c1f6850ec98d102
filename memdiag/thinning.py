"""Thinning of long series of samples, for charts, traces and records."""

from collections.abc import Sequence


def thinned_indices(values: Sequence[int], max_points: int) -> tuple[int, ...]:
    """Return the indices of the samples to keep: first, last, and the extremes of each bucket.

    Every peak is kept.
    """
    count = len(values)
    if count <= max_points:
        return tuple(range(count))
    buckets = max(1, max_points // 2)
    kept = {0, count - 1}
    for bucket in range(buckets):
        rows = range(bucket * count // buckets, (bucket + 1) * count // buckets)
        kept.add(min(rows, key=values.__getitem__))
        kept.add(max(rows, key=values.__getitem__))
    return tuple(sorted(kept))
