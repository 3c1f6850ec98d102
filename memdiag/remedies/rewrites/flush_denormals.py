"""Set denormal weights to zero, so that no processor leaves its fast path for them.

A denormal float is smaller than 1.18e-38 (a double than 2.3e-308), and that is the largest change
of any weight; the sign stays. Outputs change by less than that times what the weights are
multiplied by. The weights are written anew, slice by slice.

It hurts nothing but that values are others, and that a weight which lay in a file of its own, or
was shared with another model, is copied. What becomes denormal only when BatchNormalization is
folded into a convolution stays.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from memdiag.model.denormals import MANTISSA_BITS
from memdiag.records.finding import Finding
from memdiag.remedies.computed import computed, give, octets, weight_problem
from memdiag.remedies.constants import Tensor, tensor_of
from memdiag.remedies.draft import Draft
from memdiag.remedies.rewrite import Rewrite

REWRITE = Rewrite(
    name="flush-denormals",
    summary="set denormal weights to zero, a change of at most 1.18e-38 for each float",
    rules=("denormal-weights",),
    arithmetic="changed",
    safe=False,
)

Bits = NDArray[np.unsignedinteger]


def check(draft: Draft, finding: Finding) -> str | None:
    """Return why no weight can be flushed; None if one can."""
    reasons = [_problem(draft.value(name)) for name in finding.weights]
    if not reasons:
        return "it names no weight"
    return None if "" in reasons else reasons[0]


def apply(draft: Draft, finding: Finding) -> bool:
    """Flush the weights; return whether one had denormals."""
    changed = False
    for weight in finding.weights:
        value = draft.value(weight)
        if _problem(value):
            continue
        assert value is not None
        tensor = tensor_of(value)
        assert tensor is not None
        slices = partial(flushed, tensor)
        sizes, name = tensor.shape.numpy(), value.name or ""
        give(value, computed(slices, tensor.dtype, sizes, name, like=tensor))
        changed = True
    return changed


def flushed(tensor: Tensor) -> Iterator[Bits]:
    """Yield the bits of `tensor` with zeros of the same sign for denormals, in slices."""
    for bits in _bits(tensor):
        magnitude, first_normal = _magnitudes(tensor, bits)
        yield np.where(magnitude < first_normal, bits ^ magnitude, bits)


def _problem(value: ir.Value | None) -> str:
    """Return why the weight cannot be flushed, or need not be; empty if it can."""
    problem = weight_problem(value)
    if problem:
        return problem
    assert value is not None
    tensor = tensor_of(value)
    assert tensor is not None
    if tensor.dtype.name.lower() not in MANTISSA_BITS:
        return f"{tensor.dtype.name.lower()} has no values that the processor takes for denormal"
    if not any(_has_denormals(tensor, bits) for bits in _bits(tensor)):
        return "no value of the weight itself is denormal"
    return ""


def _has_denormals(tensor: Tensor, bits: Bits) -> bool:
    magnitude, first_normal = _magnitudes(tensor, bits)
    return bool(np.any((magnitude > 0) & (magnitude < first_normal)))


def _magnitudes(tensor: Tensor, bits: Bits) -> tuple[Bits, int]:
    """Return the bits without their signs, and those of the smallest normal number."""
    kind = bits.dtype.type
    largest = (1 << 8 * bits.itemsize - 1) - 1
    return bits & kind(largest), 1 << MANTISSA_BITS[tensor.dtype.name.lower()]


def _bits(tensor: Tensor) -> Iterator[Bits]:
    width = np.dtype(f"<u{tensor.dtype.bitwidth // 8}")
    return (piece.view(width) for piece in octets(tensor))
