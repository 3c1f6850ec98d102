"""Types of tensors as far as they are known, and ONNX's way to write them."""

from typing import NamedTuple

from onnx import TensorShapeProto, TypeProto, helper

from memdiag.graph.element_types import ELEMENT_TYPES, ELEMENT_TYPES_BY_NAME


class TensorType(NamedTuple):
    """A tensor's element type by ONNX's name, and its shape; None where it is not known."""

    dtype: str
    shape: tuple[int | None, ...] | None

    @property
    def nbytes(self) -> int | None:
        """Its bytes, where the whole shape is known."""
        if self.shape is None or None in self.shape:
            return None
        return ELEMENT_TYPES_BY_NAME[self.dtype].nbytes(tuple(size or 0 for size in self.shape))

    @classmethod
    def read(cls, kind: TypeProto) -> "TensorType | None":
        """Return what ONNX says of a type; None where it is no tensor's or says too little."""
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
        """Return the type as ONNX has it."""
        number = ELEMENT_TYPES_BY_NAME[self.dtype].number
        proto: TypeProto = helper.make_tensor_type_proto(number, self.shape)
        return proto


def _is_zero(size: TensorShapeProto.Dimension) -> bool:
    return size.HasField("dim_value") and not size.dim_value
