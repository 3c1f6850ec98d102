"""Comparing the outputs of two models value by value, against a bound with a reason."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

import numpy as np

from memdiag.model.tensor_types import Array

SavedOutputs = Mapping[str, Sequence[Path]]
"""The files of a model's outputs, by name."""

MAX_RUN_TO_RUN_ROUNDING = 1e-3
"""Outputs that differ by more between two runs of one session are random, not rounded."""

_MIN_SUMMED_PRODUCTS = 64
_HALF_UNITS = 2
"""Rounding units of fp16. In models with 1 to 24 layers, sessions with different optimizations
differed by at most 0.3 units of the largest value."""

_TF32_UNITS = 2
_TF32_UNIT = 2.0**-10
"""TF32 has the 10 bits of fp16 after the point. As many units are allowed as for fp16."""

_GIVEN_REASON = "--max-difference"

_VALUES_PER_CHUNK = 1 << 22


@dataclass(frozen=True, kw_only=True)
class Bound:
    """Maximum difference of outputs.

    Attributes:
        relative: the allowed difference relative to the largest absolute value of an output; 0
            where the change only moves data.
        why: the reason for the bound.
        may_be_given: whether the user may give another bound (``--max-difference``).
    """

    relative: float
    why: str
    may_be_given: bool = False

    @classmethod
    def exact(cls) -> "Bound":
        """Return the bound of a change that leaves every operation unchanged."""
        return cls(relative=0.0, why="the change only moves data, so outputs must be equal")

    @classmethod
    def given(cls, relative: float) -> "Bound":
        """Return the bound that a user gave."""
        return cls(relative=relative, why=_GIVEN_REASON, may_be_given=True)

    def with_tf32(self) -> "Bound":
        """Return the bound on a GPU, where kernels round the factors of products to TF32.

        Two sessions of one model may get different kernels, of which only one rounds: the CUDA
        provider permits TF32 unless `use_tf32` is 0, and cuDNN chooses a kernel by its time. A
        bound that a user gave stays as it is.
        """
        relative = _TF32_UNITS * _TF32_UNIT
        if self.why == _GIVEN_REASON or self.relative >= relative:
            return self
        why = "products of factors that kernels on the GPU may round to TF32"
        return replace(self, relative=relative, why=why)

    @classmethod
    def reordered(cls, reduction: int, *, is_half: bool = False) -> "Bound":
        """Return the bound for sums of up to `reduction` products that are added in another order.

        Reordering a sum of K products in fp32 changes it by at most about K rounding units of the
        sum of their magnitudes (Higham, "Accuracy and Stability of Numerical Algorithms", 2002,
        section 4.2). Outputs may differ by K units of the largest value, K at least 64.

        If values are rounded to fp16 between operators (`is_half`), another order or a removed Cast
        changes in which direction they are rounded: outputs may differ by two units of fp16.
        """
        terms = max(reduction, _MIN_SUMMED_PRODUCTS)
        epsilon = float(np.finfo(np.float32).eps)
        half_bound = _HALF_UNITS * float(np.finfo(np.float16).eps)
        if is_half and half_bound > terms * epsilon:
            return cls(relative=half_bound, why="values rounded to fp16 between operators")
        return cls(relative=terms * epsilon, why=f"sums of {terms:,} fp32 products reordered")


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The largest difference of an output.

    Attributes:
        output: the output's name.
        relative: the difference relative to the original's largest value; infinite where the
            outputs cannot be compared.
        reason: why they cannot be compared.
    """

    output: str
    relative: float
    reason: str = ""


def compare_outputs(before: SavedOutputs, after: SavedOutputs) -> tuple[Difference, ...]:
    """Return the difference of each output from arrays saved in ``.npy`` files."""
    differences = []
    for name, files in before.items():
        new_files = after.get(name)
        if new_files is None or len(new_files) != len(files):
            reason = "is missing" if new_files is None else "has another number of parts"
            differences.append(Difference(output=name, relative=inf, reason=reason))
            continue
        parts = [
            output_difference(
                name, np.load(old_file, mmap_mode="r"), np.load(new_file, mmap_mode="r")
            )
            for old_file, new_file in zip(files, new_files, strict=True)
        ]
        no_difference = Difference(output=name, relative=0.0)
        differences.append(max(parts, key=lambda part: part.relative, default=no_difference))
    return tuple(differences)


def unstable_outputs(
    first: Sequence[SavedOutputs], second: Sequence[SavedOutputs]
) -> frozenset[str]:
    """Return the outputs that differ between two runs of one session, as random operators do."""
    return frozenset(
        difference.output
        for before, after in zip(first, second, strict=True)
        for difference in compare_outputs(before, after)
        if difference.relative > MAX_RUN_TO_RUN_ROUNDING
    )


def unstable_output_notes(names: Collection[str]) -> tuple[str, ...]:
    """Return the note that these outputs are not compared; none without names."""
    if not names:
        return ()
    return (f"outputs that are random are not compared: {', '.join(sorted(names))}",)


def output_difference(name: str, before: Array, after: Array) -> Difference:
    """Return the difference of one output's arrays.

    Floating point values are compared relative to the largest finite magnitude of `before`; NaN and
    infinities must be at the same places. Everything else must be equal.
    """
    # The width of a string type is the width of the longest string.
    if before.dtype != after.dtype and {before.dtype.kind, after.dtype.kind} != {"U"}:
        reason = f"has the type {after.dtype} instead of {before.dtype}"
        return Difference(output=name, relative=inf, reason=reason)
    if before.shape != after.shape:
        reason = f"has the shape {after.shape} instead of {before.shape}"
        return Difference(output=name, relative=inf, reason=reason)
    if before.dtype.kind not in "fc":
        wrong_count = int(np.count_nonzero(np.asarray(before != after)))
        reason = f"{wrong_count:,} of {before.size:,} values differ" if wrong_count else ""
        return Difference(output=name, relative=inf if wrong_count else 0.0, reason=reason)
    return _float_difference(name, before.reshape(-1), after.reshape(-1))


def _float_difference(name: str, before: Array, after: Array) -> Difference:
    largest = largest_difference = 0.0
    wide_type = np.complex128 if before.dtype.kind == "c" else np.float64
    # In chunks: an output of gigabytes costs megabytes.
    for start in range(0, len(before), _VALUES_PER_CHUNK):
        old_values = np.asarray(before[start : start + _VALUES_PER_CHUNK]).astype(wide_type)
        new_values = np.asarray(after[start : start + _VALUES_PER_CHUNK]).astype(wide_type)
        is_finite = np.isfinite(old_values)
        if not np.array_equal(old_values[~is_finite], new_values[~is_finite], equal_nan=True):
            return Difference(output=name, relative=inf, reason="NaN or infinity moved")
        if not np.isfinite(new_values[is_finite]).all():
            return Difference(output=name, relative=inf, reason="finite values became infinite")
        if is_finite.any():
            largest = max(largest, float(np.abs(old_values[is_finite]).max()))
            largest_difference = max(
                largest_difference,
                float(np.abs(old_values[is_finite] - new_values[is_finite]).max()),
            )
    if not largest_difference:
        return Difference(output=name, relative=0.0)
    return Difference(output=name, relative=largest_difference / largest if largest else inf)
