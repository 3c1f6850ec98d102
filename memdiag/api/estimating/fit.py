"""The largest sizes of the free dimensions with which a session stays below a limit."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import floor

import msgspec

from memdiag.api.estimating.sizes import SizeGrid
from memdiag.records.estimate import Fit

MAX_DIM_SIZE = 1 << 20
"""The search ends at this size."""

PeakAt = Callable[[Mapping[str, int]], int | None]
"""A function that returns the peak at sizes; None where the shapes of the model are not known."""


NEAR = 0.03
"""How far from the predicted size a jump of the peak may come, as a share of that size."""

CHECKED_SIZES = 16
"""Sizes below the largest size that are checked to fit, too."""


@dataclass(frozen=True, kw_only=True)
class FitSearch:
    """The search for the largest sizes that fit into a limit.

    Attributes:
        grid: the sizes.
        limit_bytes: the limit.
        peak_at: the peak with the session options of the estimate.
        upper_at: the upper end of the interval with the session options of the estimate; None if
            the peaks are upper ends.
        remedies: the same with other options, by the names of these; the cheapest first.
    """

    grid: SizeGrid
    limit_bytes: int
    peak_at: PeakAt
    upper_at: PeakAt | None = None
    remedies: Mapping[str, PeakAt] = field(default_factory=dict)

    def all(self) -> Iterator[Fit]:
        """Yield the largest size of each dimension, and larger ones with other options.

        An option is listed if more fits with it than with those before it.
        """
        if not self.grid.free:
            yield from self._without_dimensions()
        for dimension in self.grid.free:
            usual = self._largest(dimension.name, self.peak_at, 1)
            yield self._with_certain_size(usual)
            start = usual.dims[dimension.name] + 1 if usual.fits else 1
            if start > MAX_DIM_SIZE or not usual.is_largest:
                continue
            for option, peak_at in self.remedies.items():
                found = self._largest(dimension.name, peak_at, start, (option,))
                if found.fits:
                    yield found
                    start = found.dims[dimension.name] + 1

    def _with_certain_size(self, fit: Fit) -> Fit:
        """Return `fit` with the largest size at which the upper end of the interval fits."""
        upper_at = self.upper_at
        if upper_at is None or not fit.fits:
            return fit

        def fits(size: int) -> bool:
            assert upper_at is not None
            peaks = (upper_at(self.grid.at({fit.dim: each})) for each in (size, _next_to(size)))
            return all(peak is None or peak <= self.limit_bytes for peak in peaks)

        largest = fit.dims[fit.dim]
        if fits(largest):
            return msgspec.structs.replace(fit, certain_size=largest)
        return msgspec.structs.replace(
            fit, certain_size=_last(fits, 1, largest) if fits(1) else None
        )

    def _without_dimensions(self) -> Iterator[Fit]:
        usual = self._fit("", {}, self.peak_at({}) or 0)
        yield usual
        for option, peak_at in self.remedies.items() if not usual.fits else ():
            found = self._fit("", {}, peak_at({}) or 0, (option,))
            if found.fits:
                yield found

    def _largest(
        self, name: str, peak_at: PeakAt, start: int, options: tuple[str, ...] = ()
    ) -> Fit:
        """Return the largest size of a dimension from `start` on; `start` if not even that fits."""
        peaks: dict[int, int | None] = {}

        def peak_of(size: int) -> int | None:
            if size not in peaks:
                peaks[size] = peak_at(self.grid.at({name: size}))
            return peaks[size]

        def fits(size: int) -> bool:
            # A jump of the peak may come at a smaller size than is predicted.
            peak, further = peak_of(size), peak_of(_next_to(size))
            return peak is not None and max(peak, further or 0) <= self.limit_bytes

        if not fits(start):
            return self._fit(name, self.grid.at({name: start}), peaks[start] or 0, options)
        low, step = start, 1
        while low + step <= MAX_DIM_SIZE and fits(low + step):
            low, step = low + step, 2 * step
        low = _last(fits, low, min(low + step, MAX_DIM_SIZE + 1))
        # An arena takes regions of powers of two: a size may need more than a larger one. What
        # needs more is less than twice as small.
        below = start
        for size in _spread(max(start, low // 2), low):
            if not fits(size):
                low = _last(fits, below, size)
                break
            below = size
        # The end may be the end of the search, or the largest size of the model's shapes.
        ended = low == MAX_DIM_SIZE or peaks[low + 1] is None
        found = self._fit(name, self.grid.at({name: low}), peaks[low] or 0, options, not ended)
        if ended:
            return found

        def fits_alone(size: int) -> bool:
            return (peak_of(size) or 0) <= self.limit_bytes

        next_size, end = low + 1, _next_to(low + 1)
        if fits_alone(next_size) and not fits_alone(end):
            next_size = _last(fits_alone, next_size, end) + 1
        peak = peak_of(next_size)
        if peak is None or fits_alone(next_size):
            return found
        return msgspec.structs.replace(found, next_size=next_size, next_peak_bytes=peak)

    def _fit(
        self,
        name: str,
        sizes: Mapping[str, int],
        peak: int,
        options: tuple[str, ...] = (),
        is_largest: bool = True,
    ) -> Fit:
        return Fit(
            dim=name,
            dims=dict(sizes),
            peak_bytes=peak,
            limit_bytes=self.limit_bytes,
            options=options,
            fits=peak <= self.limit_bytes,
            is_largest=is_largest,
        )


def _next_to(size: int) -> int:
    return floor((1 + NEAR) * size)


def _last(fits: Callable[[int], bool], low: int, high: int) -> int:
    """Return a size from `low`, which fits, to `high` that fits and whose successor does not."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _spread(low: int, high: int) -> Iterator[int]:
    """Yield at most `CHECKED_SIZES` sizes from `low` to `high`, evenly spread."""
    yield from sorted(
        {low + (high - low) * step // (CHECKED_SIZES - 1) for step in range(CHECKED_SIZES)}
    )
