"""Comparing what two models compute, value by value, against a bound that says where it is from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

Saved = Mapping[str, Sequence[Path]]
"""The files of a model's outputs, by name."""

RANDOM = 1e-3
"""Outputs that differ by more between two runs of one session are random, not rounded."""

_LEAST_REDUCTION = 64
_SLICE = 1 << 22


@dataclass(frozen=True, kw_only=True)
class Bound:
    """How far outputs may differ, relative to the largest absolute value of an output.

    `relative` is 0 where the change only moves data. `why` says where the bound is from.
    """

    relative: float
    why: str

    @classmethod
    def exact(cls) -> "Bound":
        """Return the bound of a change that leaves every operation as it is."""
        return cls(relative=0.0, why="the change only moves data, so outputs must be equal")

    @classmethod
    def reordered(cls, reduction: int) -> "Bound":
        """Return the bound for sums of up to `reduction` products that are added in another order.

        Reordering a sum of K products in fp32 changes it by at most about K rounding units of the
        sum of their magnitudes (Higham, "Accuracy and Stability of Numerical Algorithms", 2002,
        section 4.2). Outputs are held to K units of the largest value, K at least 64.
        """
        terms = max(reduction, _LEAST_REDUCTION)
        epsilon = float(np.finfo(np.float32).eps)
        return cls(relative=terms * epsilon, why=f"sums of {terms:,} fp32 products reordered")


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The largest difference of an output, relative to the largest value of the original's.

    `relative` is infinite where the outputs cannot be compared at all; `reason` then says why.
    """

    output: str
    relative: float
    reason: str = ""


def compare(before: Saved, after: Saved) -> tuple[Difference, ...]:
    """Return the difference of each output, by the arrays saved in ``.npy`` files."""
    found = []
    for name, files in before.items():
        others = after.get(name)
        if others is None or len(others) != len(files):
            reason = "is missing" if others is None else "has another number of parts"
            found.append(Difference(output=name, relative=inf, reason=reason))
            continue
        parts = [
            difference(name, np.load(one, mmap_mode="r"), np.load(other, mmap_mode="r"))
            for one, other in zip(files, others, strict=True)
        ]
        found.append(max(parts, key=_size, default=Difference(output=name, relative=0.0)))
    return tuple(found)


def unstable(one: Sequence[Saved], other: Sequence[Saved]) -> frozenset[str]:
    """Return the outputs that differ between two runs of one session: nothing can be held to them.

    The same inputs gave other values, as random operators do.
    """
    return frozenset(
        difference.output
        for before, after in zip(one, other, strict=True)
        for difference in compare(before, after)
        if difference.relative > RANDOM
    )


def difference(name: str, before: Array, after: Array) -> Difference:
    """Return the difference of one output's arrays.

    Floating point values are compared relative to the largest finite magnitude of `before`; NaN
    must meet NaN and infinity the same infinity. Everything else must be equal.
    """
    # Strings are as wide as the longest of them.
    if before.dtype != after.dtype and {before.dtype.kind, after.dtype.kind} != {"U"}:
        reason = f"has the type {after.dtype} instead of {before.dtype}"
        return Difference(output=name, relative=inf, reason=reason)
    if before.shape != after.shape:
        reason = f"has the shape {after.shape} instead of {before.shape}"
        return Difference(output=name, relative=inf, reason=reason)
    if before.dtype.kind not in "fc":
        wrong = int(np.count_nonzero(np.asarray(before != after)))
        reason = f"{wrong:,} of {before.size:,} values differ" if wrong else ""
        return Difference(output=name, relative=inf if wrong else 0.0, reason=reason)
    return _of_floats(name, before.reshape(-1), after.reshape(-1))


def _of_floats(name: str, before: Array, after: Array) -> Difference:
    largest = furthest = 0.0
    wide = np.complex128 if before.dtype.kind == "c" else np.float64
    # In slices, so that an output of gigabytes costs megabytes.
    for start in range(0, len(before), _SLICE):
        one = np.asarray(before[start : start + _SLICE]).astype(wide)
        other = np.asarray(after[start : start + _SLICE]).astype(wide)
        finite = np.isfinite(one)
        if not np.array_equal(one[~finite], other[~finite], equal_nan=True):
            return Difference(output=name, relative=inf, reason="NaN or infinity moved")
        if not np.isfinite(other[finite]).all():
            return Difference(output=name, relative=inf, reason="finite values became infinite")
        if finite.any():
            largest = max(largest, float(np.abs(one[finite]).max()))
            furthest = max(furthest, float(np.abs(one[finite] - other[finite]).max()))
    if not furthest:
        return Difference(output=name, relative=0.0)
    return Difference(output=name, relative=furthest / largest if largest else inf)


def _size(difference: Difference) -> float:
    return difference.relative
