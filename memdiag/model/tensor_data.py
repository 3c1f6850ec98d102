"""Values of tensors in a model's proto: raw bytes, typed fields, sparse tensors, attributes."""

from collections.abc import Iterator

import numpy as np
from onnx import AttributeProto, SparseTensorProto, TensorProto

from memdiag.errors import ModelError
from memdiag.model.tensor_types import (
    ELEMENT_TYPES,
    ELEMENT_TYPES_BY_NAME,
    STRING_ELEMENT,
    Array,
    ElementType,
)
from memdiag.model.wire import MAX_VARINT_BYTES

_VARINT_CONTINUES = 0x80
"""Bytes of a varint from this value on are followed by another byte of the same number."""

_PART_BYTES = 1 << 18
"""Bytes that are decoded at once: while decoded, they take thirty times as much."""

# The attributes with which a Constant node may give plain numbers: the field, the result's type.
CONSTANT_FIELDS = {
    "value_float": ("f", "float"),
    "value_floats": ("floats", "float"),
    "value_int": ("i", "int64"),
    "value_ints": ("ints", "int64"),
    "value_string": ("s", "string"),
    "value_strings": ("strings", "string"),
}


def element_type(number: int, *, where: str) -> ElementType:
    """Return the element type with ONNX's `number`. Errors begin with `where`.

    Raises:
        ModelError: ONNX has no such type.
    """
    try:
        return ELEMENT_TYPES[number]
    except KeyError:
        raise ModelError(
            f"{where} has the element type {number}, which memdiag does not know. "
            "Export the model again."
        ) from None


def stored_bytes(tensor: TensorProto, element: ElementType) -> int:
    """Return the size of a tensor's data in bytes, without decoding it.

    Numbers in typed fields count as the dense data that they decode to.
    """
    if tensor.HasField("raw_data"):
        return len(tensor.raw_data)
    if element is STRING_ELEMENT:
        return sum(map(len, tensor.string_data))
    return dense_bytes(len(getattr(tensor, element.field)), element)


def dense_bytes(count: int, element: ElementType) -> int:
    """Return the size of the dense data that `count` numbers of a typed field decode to."""
    if element.name.startswith("complex"):
        return count * element.bits // 16
    if element.bits < 8 and element.bits != 6:
        return count  # each int32 is a byte of packed elements
    return (count * element.bits + 7) // 8


def packed_bytes(tensor: TensorProto, element: ElementType) -> bytes:
    """Return the dense little-endian bytes of a tensor whose data is in the proto; no strings."""
    if tensor.HasField("raw_data"):
        return tensor.raw_data
    values = getattr(tensor, element.field)
    if element.field in ("float_data", "double_data"):
        kind = "<f4" if element.field == "float_data" else "<f8"
        return np.fromiter(values, kind, len(values)).tobytes()
    kind = "<u8" if element.field == "uint64_data" else "<i8"
    wide = np.fromiter(values, kind, len(values))
    return narrowed_elements(wide, element).tobytes()


def narrowed_elements(numbers: Array, element: ElementType) -> Array:
    """Return `numbers` of a typed field as the elements that they encode, in unsigned integers."""
    if element.bits == 6:
        return _pack_six(numbers.astype(np.uint8))
    return numbers.astype(f"<u{max(element.bits // 8, 1)}")


def count_varints(packed: Array) -> int:
    """Return the number of varints in the bytes of a packed field."""
    return sum(
        int(np.count_nonzero(part < _VARINT_CONTINUES)) for part in _packed_field_parts(packed)
    )


def decode_varints(packed: Array, element: ElementType, *, where: str) -> Array:
    """Return the dense data, as bytes, of the varints in a packed typed field.

    Raises:
        ModelError: the bytes are not varints.
    """
    dtype = np.dtype("u1" if element.bits == 6 else f"<u{max(element.bits // 8, 1)}")
    numbers = np.empty(count_varints(packed), dtype)
    filled = 0
    for part in _packed_field_parts(packed):
        ends = np.flatnonzero(part < _VARINT_CONTINUES) + 1
        starts = np.concatenate(([0], ends[:-1]))
        lengths = ends - starts
        if not len(ends) or ends[-1] != len(part) or lengths.max() > MAX_VARINT_BYTES:
            raise ModelError(f"{where} has numbers that are damaged; download or export it again.")
        values = np.zeros(len(ends), np.uint64)
        for index in range(int(lengths.max())):
            longer = lengths > index
            digits = (part[starts[longer] + index] & 0x7F).astype(np.uint64)
            values[longer] |= digits << np.uint64(7 * index)
        numbers[filled : filled + len(values)] = values
        filled += len(values)
    return (_pack_six(numbers) if element.bits == 6 else numbers).view(np.uint8)


def _packed_field_parts(packed: Array) -> Iterator[Array]:
    """Yield the bytes of a packed field in parts that end at the end of a varint."""
    start = 0
    while start < len(packed):
        end = min(start + _PART_BYTES, len(packed))
        while end < len(packed) and packed[end - 1] >= _VARINT_CONTINUES:
            end += 1
        yield packed[start:end]
        start = end


def array_from_bytes(data: memoryview, element: ElementType, shape: tuple[int, ...]) -> Array:
    """Return `data` as an array of `shape`; flat and packed for elements of less than a byte."""
    array = np.frombuffer(data, element.dtype)
    return array if element.bits < 8 else array.reshape(shape)


def inline_array(tensor: TensorProto) -> Array | None:
    """Return the values of a tensor whose data is in the proto; None for other tensors.

    Also return None for strings, types that numpy lacks, and damaged tensors.
    """
    element = ELEMENT_TYPES.get(tensor.data_type)
    shape = tuple(tensor.dims)
    if (
        element is None
        or element is STRING_ELEMENT
        or not element.native
        or min(shape, default=0) < 0
    ):
        return None
    if tensor.data_location == TensorProto.EXTERNAL:
        return None
    if stored_bytes(tensor, element) != element.nbytes(shape):
        return None
    return array_from_bytes(memoryview(packed_bytes(tensor, element)), element, shape)


def constant_array(attribute: AttributeProto) -> tuple[ElementType, Array]:
    """Return element type and values of a Constant's attribute, one of `CONSTANT_FIELDS`."""
    field, name = CONSTANT_FIELDS[attribute.name]
    element = ELEMENT_TYPES_BY_NAME[name]
    value = getattr(attribute, field)
    if isinstance(value, float | int | bytes):
        return element, np.array(value, element.dtype)
    if element is STRING_ELEMENT:
        return element, np.array(list(value), element.dtype)
    # A list of them would take five times as much.
    return element, np.fromiter(value, element.dtype, len(value))


def dense_array(sparse: SparseTensorProto, values: Array, indices: Array, *, where: str) -> Array:
    """Return a sparse tensor as a dense array.

    Args:
        sparse: the tensor.
        values: its values, [NNZ].
        indices: flat indices into the dense tensor, [NNZ], or indices by axis, [NNZ, rank].
        where: the beginning of the error message.

    Raises:
        ModelError: the indices do not fit the shape, or the array does not fit in memory.
    """
    shape = tuple(sparse.dims)
    try:
        dense = np.zeros(shape, values.dtype)
        if indices.ndim == 2:
            dense[tuple(indices.T)] = values
        else:
            dense.reshape(-1)[indices] = values
    except (IndexError, ValueError, MemoryError) as error:
        raise ModelError(f"{where} is sparse and its indices do not fit its shape.") from error
    return dense


def _pack_six(codes: Array) -> Array:
    """Return 6-bit codes as a bit stream, the first code in the lowest bits (onnx.proto)."""
    bits = np.unpackbits(codes.reshape(-1, 1), axis=1, count=6, bitorder="little")
    return np.packbits(bits.reshape(-1), bitorder="little")
