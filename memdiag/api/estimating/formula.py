"""The peak as a formula of the free dimensions, fitted to the estimated points."""

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

import numpy as np

from memdiag.records.estimate import EstimatedPoint, Formula, FormulaTerm
from memdiag.records.phases import RUN_PHASES

MAX_POWER = 2
MAX_DEGREE = 3
MIN_TERM_SHARE = 0.002
"""Terms that are a smaller share of the peak at every point are left out."""

Powers = tuple[int, ...]


def fit_formula(points: Sequence[EstimatedPoint], names: Sequence[str]) -> Formula | None:
    """Return the peak as a formula of the dimensions `names`; None if there is nothing to fit.

    The phases before the runs do not depend on sizes: their peak is a bound, and the terms are
    those of the runs. Memory consists of parts that grow with sizes, so no term is negative.
    """
    if len(points) < 2 or not names:
        return None
    sizes = np.array([[point.dims[name] for name in names] for point in points], dtype=float)
    runs = np.array([_peak_in(point, is_run=True) for point in points])
    at_least = max(_peak_in(point, is_run=False) for point in points)
    powers = list(_candidates(sizes))
    found = _fitted(sizes, runs, powers)
    coefficients = {each: _rounded(value) for each, value in found.items()}
    values = _values(sizes, list(coefficients)) @ np.array(list(coefficients.values()))
    peaks = np.array([point.peak_bytes for point in points])
    error = np.abs(np.maximum(values, at_least) - peaks).max()
    return Formula(
        terms=tuple(
            FormulaTerm(
                coefficient=value,
                powers={name: power for name, power in zip(names, each, strict=True) if power},
            )
            for each, value in sorted(
                coefficients.items(), key=lambda item: (sum(item[0]), item[0])
            )
        ),
        at_least_bytes=round(at_least),
        largest_error_bytes=round(float(error)),
    )


def _peak_in(point: EstimatedPoint, *, is_run: bool) -> float:
    """Return the peak in the phases of the runs, or in the others.

    It is corrected as the peak of the point is, where that is a bound or corrected.
    """
    chosen = [each.peak_bytes for each in point.phases if (each.name in RUN_PHASES) == is_run]
    return max(chosen, default=0) * point.peak_bytes / max(1, point.peak.peak_bytes)


def _candidates(sizes: np.ndarray) -> Iterator[Powers]:
    """Yield the powers of the terms that the points can distinguish."""
    levels = [len(np.unique(column)) for column in sizes.T]
    choices = (range(min(MAX_POWER, count - 1) + 1) for count in levels)
    found = [powers for powers in product(*choices) if sum(powers) <= MAX_DEGREE]
    found.sort(key=lambda powers: (sum(powers), max(powers, default=0)))
    yield from found[: len(sizes)]


def _fitted(sizes: np.ndarray, wanted: np.ndarray, powers: list[Powers]) -> dict[Powers, float]:
    """Return the coefficients by least squares of the relative errors.

    Terms that are negative or small are left out, one at a time. The constant term stays.
    """
    while True:
        values = _values(sizes, powers)
        relative = values / np.maximum(wanted, 1)[:, None]
        scale = np.maximum(np.abs(relative).max(axis=0), 1e-300)
        solved, *_ = np.linalg.lstsq(relative / scale, np.ones(len(wanted)), rcond=None)
        shares = (relative * (solved / scale)).T  # of each term at each point
        lowest = [float(share[np.abs(share).argmax()]) for share in shares]
        negative = [i for i in range(len(powers)) if sum(powers[i]) and lowest[i] < 0]
        small = [i for i in range(len(powers)) if sum(powers[i]) and lowest[i] < MIN_TERM_SHARE]
        if not small:
            return dict(zip(powers, (solved / scale).tolist(), strict=True))
        worst = min(negative or small, key=lambda i: lowest[i])
        powers = [each for i, each in enumerate(powers) if i != worst]


def _values(sizes: np.ndarray, powers: Sequence[Powers]) -> np.ndarray:
    return np.array(
        [
            [prod(size**power for size, power in zip(row, each, strict=True)) for each in powers]
            for row in sizes
        ]
    )


def _rounded(value: float) -> float:
    """Return `value` as a whole number of bytes, or with four digits if it is small."""
    return float(round(value)) if abs(value) >= 1000 else float(f"{value:.4g}")
