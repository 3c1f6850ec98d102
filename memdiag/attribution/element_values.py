"""Elementwise values of a weight, unchanged or converted, computed on demand in any axis order."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from memdiag.attribution.layout import LayoutHints, Quantization
from memdiag.attribution.virtual_copy import CombineFunction
from memdiag.model.tensor_types import Array

_FP32_DTYPE = np.dtype(np.float32)


@dataclass(frozen=True)
class ElementValues:
    """An array of values that are computed element by element from equally shaped views.

    Attributes:
        sources: the views.
        dtype: element type of the values.
        combine: function of the views' elements; None if the only view is used unchanged.
        parameters: differences from the weight's own values, for the record; empty if none.
    """

    sources: tuple[Array, ...]
    dtype: np.dtype[Any]
    combine: CombineFunction | None = None
    parameters: dict[str, str] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of each source and of the result."""
        return self.sources[0].shape

    def viewed(self, view: Callable[[Array], Array]) -> "ElementValues":
        """Return the values with `view` (a function that moves no data) applied to each source."""
        return replace(self, sources=tuple(view(source) for source in self.sources))


def unchanged_values(weight: Array) -> ElementValues:
    """Return the values of `weight` without conversion."""
    return ElementValues((weight,), weight.dtype)


def cast_values(weight: Array) -> Iterator[ElementValues]:
    """Yield the values of `weight` converted to fp32, if it is float16 or bfloat16."""
    if weight.dtype == np.float16 or weight.dtype.name == "bfloat16":
        yield ElementValues((weight,), _FP32_DTYPE, _widen_to_fp32, {"from": weight.dtype.name})


def dequantized_values(weight: Array, hints: LayoutHints) -> Iterator[ElementValues]:
    """Yield ``(weight - zero_point) * scale`` in fp32 for each quantization that fits the weight.

    Formula and rounding of both steps are as in ONNX's DequantizeLinear. With scales per block,
    the values have one more axis, because the blocked axis is divided.
    """
    if weight.dtype not in (np.int8, np.uint8, np.int32):
        return
    for quantization in hints.quantizations:
        views = _quantized_views(weight, quantization)
        if views is not None:
            combine = _dequantize_values if len(views) == 3 else _scale_values
            yield ElementValues(views, _FP32_DTYPE, combine, {"from": weight.dtype.name})


def fp32_values(weight: Array, hints: LayoutHints) -> Iterator[ElementValues]:
    """Yield the arrays in fp32 of the weight's shape that a kernel may read for `weight`."""
    if weight.dtype == np.float32:
        yield unchanged_values(weight)
    yield from cast_values(weight)
    yield from (
        values for values in dequantized_values(weight, hints) if values.shape == weight.shape
    )


def _quantized_views(weight: Array, quantization: Quantization) -> tuple[Array, ...] | None:
    scale, zero_point = quantization.scale, quantization.zero_point
    if scale.dtype != np.float32 or (zero_point is not None and zero_point.shape != scale.shape):
        return None
    parts = [part for part in (zero_point, scale) if part is not None]
    if scale.size == 1:
        parts = [np.broadcast_to(part.reshape(()), weight.shape) for part in parts]
        return weight, *parts
    if scale.ndim == weight.ndim > 1 and all(
        extent in (1, length) for extent, length in zip(scale.shape, weight.shape, strict=True)
    ):
        return weight, *(np.broadcast_to(part, weight.shape) for part in parts)
    axis = quantization.axis + weight.ndim if quantization.axis < 0 else quantization.axis
    if not 0 <= axis < weight.ndim:
        return None
    before, length, after = weight.shape[:axis], weight.shape[axis], weight.shape[axis + 1 :]
    if scale.shape == (length,):
        inner = (1,) * len(after)
        return weight, *(np.broadcast_to(part.reshape(-1, *inner), weight.shape) for part in parts)
    block = quantization.block_size
    if block < 1 or length % block or scale.shape != (*before, length // block, *after):
        return None
    divided = weight.reshape(*before, length // block, block, *after)
    return divided, *(
        np.broadcast_to(np.expand_dims(part, axis + 1), divided.shape) for part in parts
    )


def _widen_to_fp32(values: Array) -> Array:
    return values.astype(np.float32)


def _scale_values(values: Array, scale: Array) -> Array:
    return np.multiply(values, scale, dtype=np.float32)


def _dequantize_values(values: Array, zero: Array, scale: Array) -> Array:
    difference = np.subtract(values, zero, dtype=np.int32)
    return np.multiply(difference, scale, dtype=np.float32, casting="same_kind")
