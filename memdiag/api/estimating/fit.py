"""The largest size of a free dimension with which a process stays below a memory limit."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from math import floor
from typing import NamedTuple

from memdiag.api.estimating.sizes import SizeGrid
from memdiag.records.estimate import EstimatedPoint, Fit

MAX_DIM_SIZE = 1 << 20
"""The search ends at this size."""

NEAR, USUALLY_NEAR = 0.06, 0.03
"""How far from the predicted size a jump of the peak may come, and usually comes, as shares of that
size (docs/estimates.md)."""

CHECKED_SIZES = 16
"""Number of sizes below the largest one that must also fit."""


class ProcessPeaks(NamedTuple):
    """The peak of a whole process at one size: the interval, and the most probable figure."""

    low: int
    usual: int
    high: int


PeaksAt = Callable[[Mapping[str, int]], ProcessPeaks | None]
"""A function that returns the peaks at sizes; None if shapes of the model are unknown there."""


def peaks_of(point: EstimatedPoint, baseline_bytes: int) -> ProcessPeaks:
    """Return the peaks in bytes of a process with its inputs, which took `baseline_bytes` before
    the session."""
    outside_bytes = baseline_bytes + point.input_bytes if baseline_bytes else 0
    # The size of a bounded value is not known: no figure below the largest is probable.
    usual = point.high_bytes if point.is_bounded else point.usual_bytes
    return ProcessPeaks(
        *(outside_bytes + size for size in (point.low_bytes, usual, point.high_bytes))
    )


def searched_dimensions(grid: SizeGrid) -> tuple[str, ...]:
    """Return the dimensions whose largest size is searched.

    It is the first dimension with several sizes; without one it is the batch, which may be an axis
    of several inputs; without a batch it is the first free dimension.
    """
    several_sizes = [(name,) for name, sizes in grid.steps.items() if len(sizes) > 1]
    batch = tuple(dimension.name for dimension in grid.free if dimension.role == "batch")
    first_free_names = tuple(dimension.name for dimension in grid.free[:1])
    return several_sizes[0] if several_sizes else batch or first_free_names


def find_fit(grid: SizeGrid, limit_bytes: int, peaks_at: PeaksAt) -> Fit:
    """Return the largest size that fits into `limit_bytes`; the sizes of other dimensions are those
    of the first point.

    The arena of the runtime grows in jumps, which may come at a size a little smaller or larger
    than predicted. So a size surely fits only if a size that is larger by `NEAR` fits, too.
    """
    dims = searched_dimensions(grid)
    sizes = grid.at({})
    other_sizes = {name: size for name, size in sizes.items() if name not in dims}
    if not dims:
        return Fit(limit_bytes=limit_bytes)

    @cache
    def peaks_at_size(size: int) -> ProcessPeaks | None:
        return peaks_at(grid.at(dict.fromkeys(dims, size)))

    def fits_surely(size: int) -> bool:
        peaks, further = peaks_at_size(size), peaks_at_size(floor((1 + NEAR) * size))
        return peaks is not None and max(peaks.high, (further or peaks).high) <= limit_bytes

    def fits_probably(size: int) -> bool:
        peaks, further = peaks_at_size(size), peaks_at_size(floor((1 + USUALLY_NEAR) * size))
        return peaks is not None and max(peaks.usual, (further or peaks).usual) <= limit_bytes

    def may_fit(size: int) -> bool:
        peaks, nearer = peaks_at_size(size), peaks_at_size(max(1, floor(size / (1 + NEAR))))
        return peaks is not None and min(peaks.low, (nearer or peaks).low) <= limit_bytes

    start = max(1, sizes[dims[0]])
    probably_fitting_size = largest_fitting_size(fits_probably, start)
    surely_fitting_size = (
        largest_fitting_size(fits_surely, start)
        if probably_fitting_size is None
        else largest_fitting_size(fits_surely, probably_fitting_size, probably_fitting_size)
    )
    # A size that surely fits also fits probably.
    probably_fitting_size = max(
        (size for size in (probably_fitting_size, surely_fitting_size) if size is not None),
        default=None,
    )
    too_large = 1 + _last_fitting_size(may_fit, probably_fitting_size or start)
    is_known = too_large <= MAX_DIM_SIZE and peaks_at_size(too_large) is not None
    smallest = min(grid.steps.get(dims[0], (1,)))
    peaks = peaks_at_size(probably_fitting_size or smallest) or ProcessPeaks(0, 0, 0)
    return Fit(
        limit_bytes=limit_bytes,
        dims=dims,
        others=other_sizes,
        surely=surely_fitting_size,
        probably=probably_fitting_size,
        too_large=too_large if is_known else None,
        low_bytes=peaks.low,
        usual_bytes=peaks.usual,
        high_bytes=peaks.high,
    )


def largest_fitting_size(
    fits: Callable[[int], bool], start: int, end: int = MAX_DIM_SIZE
) -> int | None:
    """Return the largest size up to `end` that fits, as do all sizes below; None if 1 does not fit.

    The search begins at `start`.
    """
    low = _end_of_fitting(fits, start, end)
    # An arena takes regions of powers of two, so a size may need more memory than a larger size.
    # The larger size is then less than twice the smaller one.
    last_fitting = 0
    for size in _spread_sizes(low // 2 + 1, low):
        if not fits(size):
            return last_that_fits(fits, last_fitting, size) or None
        last_fitting = size
    return low or None


def _last_fitting_size(fits: Callable[[int], bool], start: int) -> int:
    """Return the last size that fits, even if smaller sizes do not; 0 if none fits."""
    low = _end_of_fitting(fits, start, MAX_DIM_SIZE)
    while low < MAX_DIM_SIZE:
        larger_fitting_sizes = [
            size for size in _spread_sizes(low + 1, min(2 * low + 1, MAX_DIM_SIZE)) if fits(size)
        ]
        if not larger_fitting_sizes:
            break
        low = _end_of_fitting(fits, larger_fitting_sizes[-1], MAX_DIM_SIZE)
    return low


def _end_of_fitting(fits: Callable[[int], bool], start: int, end: int) -> int:
    """Return a size up to `end` that fits and whose successor does not, by bisection from `start`;
    0 if there is none."""
    if not fits(start):
        return last_that_fits(fits, 0, start)
    low, step = start, 1
    while low + step <= end and fits(low + step):
        low, step = low + step, 2 * step
    return last_that_fits(fits, low, min(low + step, end + 1))


def last_that_fits(fits: Callable[[int], bool], low: int, high: int) -> int:
    """Return a size from `low`, which fits, to `high` that fits and whose successor does not."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _spread_sizes(low: int, high: int) -> Iterator[int]:
    """Yield at most `CHECKED_SIZES` sizes from `low` to `high`, evenly spread."""
    yield from sorted(
        {low + (high - low) * step // (CHECKED_SIZES - 1) for step in range(CHECKED_SIZES)}
    )
