"""Weights in typed fields are stored as plain bytes.

A typed field holds small elements as a 32-bit number each. The bytes are made of the numbers that
are in memory with the graph already, and take half or a quarter of their size. Initializers,
Constant nodes and tensors that are attributes, of graphs and functions, are written anew; their
values are the same to the bit.

It hurts nothing.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import onnx_ir as ir
from onnx import TensorProto

from memdiag.model.tensor_data import packed_bytes, stored_bytes
from memdiag.model.tensor_types import ELEMENT_TYPES, STRING
from memdiag.records.finding import Finding
from memdiag.remedies.constants import Tensor
from memdiag.remedies.draft import Draft
from memdiag.remedies.rewrite import Rewrite

REWRITE = Rewrite(
    name="raw-data",
    summary="store weights as bytes instead of one number an element",
    rules=("typed-fields",),
    arithmetic="same",
)


class _Place(NamedTuple):
    """A tensor in a typed field, and how to put another in its place."""

    tensor: TensorProto
    put: Callable[[Tensor], None]


def check(draft: Draft, finding: Finding) -> str | None:
    """Return why none of the weights can be stored as bytes."""
    if any(_places(draft, finding)):
        return None
    return "none of it is numbers in a typed field"


def apply(draft: Draft, finding: Finding) -> bool:
    """Store as bytes what is in typed fields."""
    places = list(_places(draft, finding))
    for place in places:
        place.put(ir.serde.deserialize_tensor(_raw(place.tensor)))
    return bool(places)


def _places(draft: Draft, finding: Finding) -> Iterator[_Place]:
    for name in dict.fromkeys(finding.weights):
        value = draft.value(name)
        if value is not None and value.is_initializer():
            yield from _typed(value.const_value, partial(_set_value, value))
        elif value is not None and (node := value.producer()) is not None:
            yield from _in_attribute(node, "value")
        elif value is None:
            label, _, attribute = name.rpartition(".")
            holder = draft.node(label)
            if holder is not None:
                yield from _in_attribute(holder, attribute)


def _in_attribute(node: ir.Node, name: str) -> Iterator[_Place]:
    """Yield the tensor that is an attribute of `node`; not one of several in an attribute."""
    attribute = node.attributes.get(name)
    if node.graph is None or attribute is None or attribute.is_ref():
        return
    if attribute.type == ir.AttributeType.TENSOR:
        yield from _typed(attribute.as_tensor(), partial(_set_attribute, node, attribute))


def _typed(tensor: Tensor | None, put: Callable[[Tensor], None]) -> Iterator[_Place]:
    proto = tensor.raw if isinstance(tensor, ir.serde.TensorProtoTensor) else None
    if proto is None or proto.HasField("raw_data"):
        return
    element = ELEMENT_TYPES.get(proto.data_type)
    if element is None or element is STRING:
        return
    if stored_bytes(proto, element) == element.nbytes(tuple(proto.dims)) > 0:
        yield _Place(proto, put)


def _raw(tensor: TensorProto) -> TensorProto:
    made = TensorProto(
        name=tensor.name,
        doc_string=tensor.doc_string,
        data_type=tensor.data_type,
        dims=tensor.dims,
        raw_data=packed_bytes(tensor, ELEMENT_TYPES[tensor.data_type]),
    )
    made.metadata_props.extend(tensor.metadata_props)
    return made


def _set_value(value: ir.Value, tensor: Tensor) -> None:
    value.const_value = tensor


def _set_attribute(node: ir.Node, attribute: ir.Attr, tensor: Tensor) -> None:
    node.attributes.add(ir.AttrTensor(attribute.name, tensor, doc_string=attribute.doc_string))
