"""Set denormal weights to zero, so that no processor leaves its fast path for them.

A denormal float is smaller than 1.18e-38 (a double than 2.3e-308), which is the largest change of
any weight; the sign stays. Outputs change by less than that times the factors of the weights.

The drawback is that values change, and that a weight in external data, maybe shared with another
model, is copied. Values that become denormal only when BatchNormalization is folded into a
convolution stay.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from memdiag.model.denormals import MANTISSA_BITS
from memdiag.records.finding import Finding
from memdiag.rewrites.computed_tensor import computed_tensor, iter_tensor_chunks
from memdiag.rewrites.edited_weights import Tensor, constant_tensor, set_tensor, tensor_problem
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.rewrites.rewrite import Rewrite, first_problem

REWRITE = Rewrite(
    name="flush-denormals",
    summary="set denormal weights to zero, a change of at most 1.18e-38 for each float",
    arithmetic="changed",
    safe=False,
)

FloatBits = NDArray[np.unsignedinteger]


def check(editor: ModelEditor, finding: Finding) -> str | None:
    """Return why no weight can be flushed; None if one can."""
    problems = (_flushed_weight_problem(editor.value(name)) for name in finding.weights)
    return first_problem(problems, otherwise="it names no weight")


def apply(editor: ModelEditor, finding: Finding) -> bool:
    """Flush the weights; return whether one had denormals."""
    changed = False
    for weight in finding.weights:
        value = editor.value(weight)
        if _flushed_weight_problem(value):
            continue
        assert value is not None
        tensor = constant_tensor(value)
        assert tensor is not None
        chunks = partial(flushed_bits, tensor)
        sizes, name = tensor.shape.numpy(), value.name or ""
        set_tensor(value, computed_tensor(chunks, tensor.dtype, sizes, name, like=tensor))
        changed = True
    return changed


def flushed_bits(tensor: Tensor) -> Iterator[FloatBits]:
    """Yield the bits of `tensor` in chunks, with zeros of the same sign for denormals."""
    for bits in _tensor_bits(tensor):
        magnitude, first_normal = _magnitude_bits(tensor, bits)
        yield np.where(magnitude < first_normal, bits ^ magnitude, bits)


def _flushed_weight_problem(value: ir.Value | None) -> str:
    """Return why the weight cannot or need not be flushed; empty if it can."""
    problem = tensor_problem(value)
    if problem:
        return problem
    assert value is not None
    tensor = constant_tensor(value)
    assert tensor is not None
    if tensor.dtype.name.lower() not in MANTISSA_BITS:
        return f"{tensor.dtype.name.lower()} has no values that the processor treats as denormal"
    if not any(_has_denormals(tensor, bits) for bits in _tensor_bits(tensor)):
        return "no value of the weight itself is denormal"
    return ""


def _has_denormals(tensor: Tensor, bits: FloatBits) -> bool:
    magnitude, first_normal = _magnitude_bits(tensor, bits)
    return bool(np.any((magnitude > 0) & (magnitude < first_normal)))


def _magnitude_bits(tensor: Tensor, bits: FloatBits) -> tuple[FloatBits, int]:
    """Return the bits without signs, and the bits of the smallest normal number."""
    kind = bits.dtype.type
    largest = (1 << 8 * bits.itemsize - 1) - 1
    return bits & kind(largest), 1 << MANTISSA_BITS[tensor.dtype.name.lower()]


def _tensor_bits(tensor: Tensor) -> Iterator[FloatBits]:
    width = np.dtype(f"<u{tensor.dtype.bitwidth // 8}")
    return (chunk.view(width) for chunk in iter_tensor_chunks(tensor))
