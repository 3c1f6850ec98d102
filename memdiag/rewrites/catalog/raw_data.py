"""Store weights in typed fields as plain bytes.

A typed field stores small elements as a 32-bit number each. The bytes are made from the numbers
that are in memory with the graph already, and take half or a quarter of their size. Initializers,
Constant nodes and tensors in attributes, of graphs and functions, are replaced; their values are
the same to the bit.

There is no drawback.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import onnx_ir as ir
from onnx import TensorProto

from memdiag.model.tensor_data import packed_bytes, stored_bytes
from memdiag.model.tensor_types import ELEMENT_TYPES, STRING_ELEMENT
from memdiag.records.finding import Finding
from memdiag.rewrites.edited_weights import Tensor
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.rewrites.rewrite import Rewrite

REWRITE = Rewrite(
    name="raw-data",
    summary="store weights as bytes instead of one number an element",
    arithmetic="same",
)


class _TypedTensor(NamedTuple):
    """A tensor in a typed field.

    Attributes:
        tensor: the tensor.
        replace: puts another tensor in its place.
    """

    tensor: TensorProto
    replace: Callable[[Tensor], None]


def check(editor: ModelEditor, finding: Finding) -> str | None:
    """Return why none of the weights can be stored as bytes."""
    if any(_typed_tensors(editor, finding)):
        return None
    return "none of the weights is stored as numbers in a typed field"


def apply(editor: ModelEditor, finding: Finding) -> bool:
    """Store the weights in typed fields as bytes; return whether there were any."""
    tensors = list(_typed_tensors(editor, finding))
    for typed_tensor in tensors:
        typed_tensor.replace(ir.serde.deserialize_tensor(_raw_tensor(typed_tensor.tensor)))
    return bool(tensors)


def _typed_tensors(editor: ModelEditor, finding: Finding) -> Iterator[_TypedTensor]:
    for name in dict.fromkeys(finding.weights):
        value = editor.value(name)
        if value is not None and value.is_initializer():
            yield from _typed_field_tensors(
                value.const_value, partial(_set_initializer_tensor, value)
            )
        elif value is not None and (node := value.producer()) is not None:
            yield from _typed_attribute_tensors(node, "value")
        elif value is None:
            label, _, attribute = name.rpartition(".")
            node_with_attribute = editor.node(label)
            if node_with_attribute is not None:
                yield from _typed_attribute_tensors(node_with_attribute, attribute)


def _typed_attribute_tensors(node: ir.Node, name: str) -> Iterator[_TypedTensor]:
    """Yield the tensor of an attribute of `node`; not of an attribute with several tensors."""
    attribute = node.attributes.get(name)
    if node.graph is None or attribute is None or attribute.is_ref():
        return
    if attribute.type == ir.AttributeType.TENSOR:
        yield from _typed_field_tensors(
            attribute.as_tensor(), partial(_set_attribute_tensor, node, attribute)
        )


def _typed_field_tensors(
    tensor: Tensor | None, replace: Callable[[Tensor], None]
) -> Iterator[_TypedTensor]:
    proto = tensor.raw if isinstance(tensor, ir.serde.TensorProtoTensor) else None
    if proto is None or proto.HasField("raw_data"):
        return
    element = ELEMENT_TYPES.get(proto.data_type)
    if element is None or element is STRING_ELEMENT:
        return
    if stored_bytes(proto, element) == element.nbytes(tuple(proto.dims)) > 0:
        yield _TypedTensor(proto, replace)


def _raw_tensor(tensor: TensorProto) -> TensorProto:
    raw = TensorProto(
        name=tensor.name,
        doc_string=tensor.doc_string,
        data_type=tensor.data_type,
        dims=tensor.dims,
        raw_data=packed_bytes(tensor, ELEMENT_TYPES[tensor.data_type]),
    )
    raw.metadata_props.extend(tensor.metadata_props)
    return raw


def _set_initializer_tensor(value: ir.Value, tensor: Tensor) -> None:
    value.const_value = tensor


def _set_attribute_tensor(node: ir.Node, attribute: ir.Attr, tensor: Tensor) -> None:
    node.attributes.add(ir.AttrTensor(attribute.name, tensor, doc_string=attribute.doc_string))
