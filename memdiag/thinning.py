"""Thinning of long series of samples, for charts, traces and records."""

from collections.abc import Sequence


def thinned_indices(values: Sequence[int], max_points: int) -> tuple[int, ...]:
    """Return the indices of the samples to keep: first, last, and the extremes of each bucket.

    Every peak is kept.
    """
    count = len(values)
    if count <= max_points:
        return tuple(range(count))
    bucket_count = max(1, max_points // 2)
    kept_indices = {0, count - 1}
    for bucket in range(bucket_count):
        indices = range(bucket * count // bucket_count, (bucket + 1) * count // bucket_count)
        kept_indices.add(min(indices, key=values.__getitem__))
        kept_indices.add(max(indices, key=values.__getitem__))
    return tuple(sorted(kept_indices))
