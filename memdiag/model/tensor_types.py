"""Element types of ONNX (number, name, size, numpy type), and types of tensors with shapes."""

from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import TensorShapeProto, TypeProto, helper

Array = NDArray[Any]
"""An array of any element type."""


MAX_TENSOR_BYTES = 1 << 60
"""More than any machine has. A damaged model may have a tensor of more bytes than a float holds."""


class ElementType(NamedTuple):
    """One element type of ONNX.

    Attributes:
        number: ONNX's number of the type.
        name: ONNX's name of the type in lower case.
        bits: the size of an element; 0 for strings.
        dtype: the numpy type of its arrays. If numpy lacks the type, one with the same bits: uint16
            for bfloat16, uint8 for float8 and for packed elements of less than a byte.
        native: whether numpy has the type. If not, ONNX Runtime accepts an array only together with
            the number (``OrtValue.ortvalue_from_numpy_with_onnx_type``).
        field: the typed field of TensorProto.
    """

    number: int
    name: str
    bits: int
    dtype: np.dtype[Any]
    native: bool
    field: str

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Return the bytes of a dense tensor of `shape`; elements of less than a byte are
        packed."""
        return (prod(shape) * self.bits + 7) // 8


def _element_type_entry(
    number: int, name: str, bits: int, dtype: str, field: str = "int32_data", native: bool = True
) -> ElementType:
    return ElementType(number, name, bits, np.dtype(dtype), native, field)


# TensorProto.DataType of ONNX 1.23, in order; the typed fields as onnx.proto assigns them.
_ELEMENT_TYPE_LIST = (
    _element_type_entry(1, "float", 32, "<f4", "float_data"),
    _element_type_entry(2, "uint8", 8, "u1"),
    _element_type_entry(3, "int8", 8, "i1"),
    _element_type_entry(4, "uint16", 16, "<u2"),
    _element_type_entry(5, "int16", 16, "<i2"),
    _element_type_entry(6, "int32", 32, "<i4"),
    _element_type_entry(7, "int64", 64, "<i8", "int64_data"),
    _element_type_entry(8, "string", 0, "O", "string_data"),
    _element_type_entry(9, "bool", 8, "?"),
    _element_type_entry(10, "float16", 16, "<f2"),
    _element_type_entry(11, "double", 64, "<f8", "double_data"),
    _element_type_entry(12, "uint32", 32, "<u4", "uint64_data"),
    _element_type_entry(13, "uint64", 64, "<u8", "uint64_data"),
    _element_type_entry(14, "complex64", 64, "<c8", "float_data"),
    _element_type_entry(15, "complex128", 128, "<c16", "double_data"),
    _element_type_entry(16, "bfloat16", 16, "<u2", native=False),
    _element_type_entry(17, "float8e4m3fn", 8, "u1", native=False),
    _element_type_entry(18, "float8e4m3fnuz", 8, "u1", native=False),
    _element_type_entry(19, "float8e5m2", 8, "u1", native=False),
    _element_type_entry(20, "float8e5m2fnuz", 8, "u1", native=False),
    _element_type_entry(21, "uint4", 4, "u1", native=False),
    _element_type_entry(22, "int4", 4, "u1", native=False),
    _element_type_entry(23, "float4e2m1", 4, "u1", native=False),
    _element_type_entry(24, "float8e8m0", 8, "u1", native=False),
    _element_type_entry(25, "uint2", 2, "u1", native=False),
    _element_type_entry(26, "int2", 2, "u1", native=False),
    _element_type_entry(27, "float6e2m3", 6, "u1", native=False),
    _element_type_entry(28, "float6e3m2", 6, "u1", native=False),
)
ELEMENT_TYPES = {element.number: element for element in _ELEMENT_TYPE_LIST}
ELEMENT_TYPES_BY_NAME = {element.name: element for element in _ELEMENT_TYPE_LIST}
STRING_ELEMENT = ELEMENT_TYPES_BY_NAME["string"]
HALVES = ("float16", "bfloat16")


class TensorType(NamedTuple):
    """The type of a tensor.

    Attributes:
        dtype: ONNX's name of the element type in lower case.
        shape: the sizes, None for free dimensions; None if the rank is unknown.
    """

    dtype: str
    shape: tuple[int | None, ...] | None

    @property
    def nbytes(self) -> int | None:
        """The bytes of a dense tensor, at most `MAX_TENSOR_BYTES`; None if a size is unknown."""
        shape = known_shape(self)
        if shape is None:
            return None
        return min(MAX_TENSOR_BYTES, ELEMENT_TYPES_BY_NAME[self.dtype].nbytes(shape))

    @classmethod
    def read(cls, kind: TypeProto) -> "TensorType | None":
        """Return the tensor type that a TypeProto describes; None without a known element type."""
        if not kind.HasField("tensor_type"):
            return None
        tensor = kind.tensor_type
        element = ELEMENT_TYPES.get(tensor.elem_type)
        if element is None:
            return None
        if not tensor.HasField("shape"):
            return cls(element.name, None)
        sizes = [
            size.dim_value if size.dim_value > 0 or _is_zero(size) else None
            for size in tensor.shape.dim
        ]
        return cls(element.name, tuple(sizes))

    def proto(self) -> TypeProto:
        """Return this type as a TypeProto."""
        number = ELEMENT_TYPES_BY_NAME[self.dtype].number
        proto: TypeProto = helper.make_tensor_type_proto(number, self.shape)
        return proto


def type_name_of(array: Array) -> str:
    """Return ONNX's name of the element type of `array`, such as ``float``; else NumPy's name."""
    if array.dtype.kind in "OSU":
        return STRING_ELEMENT.name
    dtype = array.dtype.newbyteorder("=")
    native_elements = (element for element in ELEMENT_TYPES.values() if element.native)
    return next((element.name for element in native_elements if element.dtype == dtype), str(dtype))


def known_shape(kind: TensorType | None) -> tuple[int, ...] | None:
    """Return the sizes of a tensor; None if its type, its rank or a size is unknown."""
    if kind is None or kind.shape is None or None in kind.shape:
        return None
    return shape_with_zeros(kind.shape)


def shape_with_zeros(shape: tuple[int | None, ...]) -> tuple[int, ...]:
    """Return `shape` with 0 for each unknown size."""
    return tuple(size or 0 for size in shape)


def _is_zero(size: TensorShapeProto.Dimension) -> bool:
    return size.HasField("dim_value") and not size.dim_value
