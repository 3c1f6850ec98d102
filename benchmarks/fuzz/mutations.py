"""What is done to the fields of a valid model, by their meaning."""

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

from google.protobuf.message import DecodeError, EncodeError, Message
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    helper,
)

from benchmarks.fuzz.encoding import mutate_bytes, mutate_encoding, nest
from benchmarks.fuzz.models import DATA_FILE
from benchmarks.fuzz.target import (
    ATTRIBUTES,
    LOCATIONS,
    NAMES,
    OFFSETS,
    OPERATORS,
    Target,
    put,
    text_in,
    texts_in,
)

_STORED = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
_MAX_BYTES = 4_000_000  # a model that grew larger is not changed further


def mutate(bases: Sequence[ModelProto], random: Random) -> bytes:
    """Return a damaged model: one of `bases` after one to five changes of one or more kinds."""
    model = ModelProto()
    model.CopyFrom(random.choice(bases))
    way = random.random()
    if way < 0.8:
        for _ in range(random.choice((1, 1, 1, 2, 2, 3, 5))):
            with suppress(DecodeError):  # nested deeper than the library copies
                random.choice(_CHANGES)(Target(model, bases, random))
            if model.ByteSize() > _MAX_BYTES:
                break
    try:
        data: bytes = model.SerializeToString()
    except (EncodeError, ValueError):  # nested deeper, or larger, than the library writes
        data = bases[0].SerializeToString()
    if random.random() < 0.01:
        data = nest(data, random.choice((30, 200, 5000)))
    if 0.75 < way < 0.95:
        data = mutate_encoding(data, random)
    if way > 0.93:
        data = mutate_bytes(data, random)
    return data


def _rename(target: Target) -> None:
    """Change one text."""
    places = list(texts_in(target.messages))
    if places:
        put(*target.random.choice(places), target.name())


def _rename_everywhere(target: Target) -> None:
    """Change a text wherever it is, so that what it names is still found."""
    old, new = text_in(target.random, target.messages), target.name()
    for message, field, index in list(texts_in(target.messages)):
        value = getattr(message, field)
        if (value if index is None else value[index]) == old:
            put(message, field, index, new)


def _rename_all(target: Target) -> None:
    """Put a hostile name behind every name of a value or node."""
    end = target.random.choice(NAMES)
    for message, field, index in list(texts_in(target.messages)):
        if field in ("name", "input", "output"):
            value = getattr(message, field)
            put(message, field, index, (value if index is None else value[index]) + end)


def _change_list(target: Target) -> None:
    """Drop, repeat, reorder or empty a list of any field of any message."""
    places = [
        (message, field.name)
        for message in target.messages
        for field, value in message.ListFields()
        if not isinstance(value, Message | str | bytes | int | float)
    ]
    if not places:
        return
    message, field = target.random.choice(places)
    values = [copy.deepcopy(each) for each in getattr(message, field)]
    index = target.random.randrange(len(values))
    kind = target.random.randrange(5)
    if kind == 0:
        del values[index]
    elif kind == 1:
        values += [values[index]] * target.random.choice((1, 2, 20, 300))
    elif kind == 2:
        target.random.shuffle(values)
    elif kind == 3:
        values = values[:index]
    else:
        values.insert(target.random.randrange(len(values)), values.pop(index))
    message.ClearField(field)
    getattr(message, field).extend(values)


def _drop_field(target: Target) -> None:
    message = target.random.choice(target.messages)
    fields = [field.name for field, _ in message.ListFields()]
    if fields:
        message.ClearField(target.random.choice(fields))


def _change_number(target: Target) -> None:
    """Change a number in any field of any message."""
    message = target.random.choice(target.messages)
    fields = [pair for pair in message.ListFields() if pair[0].cpp_type in _RANGES]
    if not fields:
        return
    field, value = target.random.choice(fields)
    low, high = _RANGES[field.cpp_type]
    number = min(max(target.number(), low), high)
    if isinstance(value, int):
        setattr(message, field.name, number)
    elif value:
        value[target.random.randrange(len(value))] = number


_FIELD: Any = ModelProto.DESCRIPTOR.fields[0]
_RANGES = {
    _FIELD.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    _FIELD.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    _FIELD.CPPTYPE_UINT64: (0, 2**64 - 1),
}


def _dims(target: Target) -> None:
    dims = target.any(TensorProto).dims
    kind = target.random.randrange(4)
    if kind == 0 and dims:
        dims[target.random.randrange(len(dims))] = target.number()
    elif kind == 1:
        dims.extend([target.number()] * target.random.choice((1, 1, 2, 70)))
    elif kind == 2 and dims:
        del dims[target.random.randrange(len(dims)) :]
    else:
        swapped = list(reversed(dims))
        del dims[:]
        dims.extend(swapped)


def _data_type(target: Target) -> None:
    target.any(TensorProto).data_type = target.random.choice((*range(-1, 40), 10**6))


def _storage(target: Target) -> None:
    """Store a tensor in a second way, in another way, or partly."""
    tensor = target.any(TensorProto)
    kind = target.random.randrange(4)
    if kind == 0:
        tensor.raw_data = tensor.raw_data[: target.random.randrange(len(tensor.raw_data) + 1)]
    elif kind == 1:
        tensor.raw_data += bytes(target.random.choice((1, 3, 4096)))
    elif kind == 2:
        field = target.random.choice(_STORED)
        value: Any = b"\xff\n" if field == "string_data" else target.random.choice((0, 1, 127))
        getattr(tensor, field).extend([value] * target.random.choice((1, 16, 256)))
    else:
        tensor.data_location = target.random.choice((TensorProto.DEFAULT, TensorProto.EXTERNAL))


def _external(target: Target) -> None:
    """Let a tensor refer to a file, sensibly or not."""
    tensor = target.any(TensorProto)
    if target.random.random() < 0.7:
        tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    if target.random.random() < 0.5:
        del tensor.external_data[:]
    random = target.random
    for key, values, share in (
        ("location", LOCATIONS, 0.9),
        ("offset", OFFSETS, 0.6),
        ("length", OFFSETS, 0.6),
        ("checksum", NAMES, 0.1),
    ):
        if random.random() < share:
            sensible = {"location": DATA_FILE, "offset": "0"}.get(key)
            chosen = sensible if sensible and random.random() < 0.5 else random.choice(values)
            tensor.external_data.add(key=key, value=chosen)


def _external_entry(target: Target) -> None:
    """Change an entry of a tensor that is external already."""
    tensors = [each for each in target.messages if type(each) is TensorProto and each.external_data]
    if not tensors:
        return _external(target)
    entry = target.random.choice(list(target.random.choice(tensors).external_data))
    entry.value = target.random.choice(LOCATIONS if entry.key == "location" else OFFSETS)


def _attribute(target: Target) -> None:
    """Change the kind of an attribute, or give it the value of another kind."""
    attribute = target.any(AttributeProto)
    random = target.random
    kind = random.randrange(6)
    if kind == 0:
        attribute.type = random.choice(AttributeProto.AttributeType.values())
    elif kind == 1:
        name = attribute.name
        attribute.CopyFrom(target.other(AttributeProto))
        attribute.name = name
    elif kind == 2:
        attribute.MergeFrom(target.other(AttributeProto))
    elif kind == 3:
        attribute.i = target.number()
        attribute.ints.extend([target.number()] * random.choice((0, 1, 4)))
    elif kind == 4:
        attribute.ref_attr_name = target.name()
    else:
        attribute.s = target.name().encode()
        attribute.f = random.choice((float("nan"), float("inf"), -0.0, 1e38))


def _attribute_added(target: Target) -> None:
    number = target.number()
    values: tuple[Any, ...] = (number, [number, target.number()], [], 0.5, target.name(), [1] * 300)
    value = target.random.choice(values)
    attribute = AttributeProto(name=target.random.choice(ATTRIBUTES), type=AttributeProto.INTS)
    if value != []:
        attribute = helper.make_attribute(attribute.name, value)
    target.any(NodeProto).attribute.append(attribute)


def _operator(target: Target) -> None:
    node = target.any(NodeProto)
    chosen = target.random.random()
    if chosen < 0.7:
        node.domain, node.op_type = target.random.choice(OPERATORS)
    elif chosen < 0.9:
        other = target.other(NodeProto)
        node.domain, node.op_type = other.domain, other.op_type
    else:
        node.domain = target.name()


def _wiring(target: Target) -> None:
    """Let a node read or make something else, much more, or nothing."""
    node = target.any(NodeProto)
    names = target.random.choice((node.input, node.output))
    kind = target.random.randrange(5)
    if kind == 0 and names:
        names[target.random.randrange(len(names))] = target.name()
    elif kind == 1:
        names.extend([target.name()] * target.random.choice((1, 3, 500)))
    elif kind == 2:
        del names[target.random.randrange(len(names) + 1) :]
    elif kind == 3:
        node.input.extend(node.output)
    else:
        names.insert(0, "")


def _grafted(target: Target) -> None:
    """Add something of another model."""
    graph, random = target.any(GraphProto), target.random
    kind = random.randrange(6)
    if kind == 0:
        graph.node.insert(random.randrange(len(graph.node) + 1), target.other(NodeProto))
    elif kind == 1:
        graph.initializer.append(target.other(TensorProto))
    elif kind == 2:
        target.model.functions.extend(random.choice(target.bases).functions)
    elif kind == 3:
        graph.MergeFrom(target.other(GraphProto))
    elif kind == 4:
        target.any(NodeProto).attribute.append(target.other(AttributeProto))
    else:
        target.any(TypeProto).MergeFrom(target.other(TypeProto))


def _function(target: Target) -> None:
    """Let functions call themselves or each other, have the same name, or none."""
    model, random = target.model, target.random
    if not model.functions:
        model.functions.extend(next(each for each in target.bases if each.functions).functions)
        model.opset_import.add(domain="local", version=1)
    function = random.choice(list(model.functions))
    kind = random.randrange(5)
    if kind == 0 and function.node:
        node = random.choice(list(function.node))
        node.domain, node.op_type = function.domain, function.name
    elif kind == 1:
        function.name = random.choice(list(model.functions)).name
    elif kind == 2:
        node = target.any(NodeProto)
        node.domain, node.op_type = function.domain, function.name
        node.overload = function.overload
    elif kind == 3:
        function.domain = random.choice(("", "ai.onnx", "com.microsoft", target.name()))
        function.name = random.choice(OPERATORS)[1]
    else:
        function.overload = target.name()


def _nested(target: Target) -> None:
    """Put a graph into If in If in If."""
    graph = GraphProto()
    graph.CopyFrom(target.any(GraphProto))
    depth = target.random.choice((1, 2, 10, 25))
    for _ in range(depth):
        node = NodeProto(op_type="If", input=[target.name()], output=["y"])
        both = target.random.random() < 1 / depth
        for name in ("then_branch", "else_branch")[: 1 + both]:
            node.attribute.add(name=name, type=AttributeProto.GRAPH).g.CopyFrom(graph)
        graph = GraphProto(name=target.name(), node=[node])
        if graph.ByteSize() > _MAX_BYTES:
            return
    if graph.ByteSize() < _MAX_BYTES:
        target.model.graph.node.extend(graph.node)


def _type(target: Target) -> None:
    """Change the type of a value: its element, its shape, or its kind."""
    value, random = target.any(TypeProto), target.random
    kind = random.randrange(4)
    if kind == 0:
        value.tensor_type.elem_type = random.choice((*range(-1, 40), 10**6))
    elif kind == 1:
        dim = value.tensor_type.shape.dim.add()
        if random.random() < 0.5:
            dim.dim_value = target.number()
        else:
            dim.dim_param = target.name()
    elif kind == 2:
        for _ in range(random.choice((1, 2, 30))):
            inner = TypeProto()
            inner.CopyFrom(value)
            random.choice((value.sequence_type, value.optional_type)).elem_type.CopyFrom(inner)
    else:
        value.map_type.key_type = random.choice((8, 7, -5))
        value.map_type.value_type.tensor_type.elem_type = 1


def _versions(target: Target) -> None:
    model, random = target.model, target.random
    kind = random.randrange(4)
    if kind == 0:
        model.ir_version = target.number()
    elif kind == 1 and model.opset_import:
        random.choice(list(model.opset_import)).version = random.choice((1, 6, 9, 13, 24, 99, -1))
    elif kind == 2:
        model.opset_import.add(domain=target.name(), version=target.number())
    elif model.opset_import:
        del model.opset_import[random.randrange(len(model.opset_import))]


def _initializer_as_input(target: Target) -> None:
    graph = target.any(GraphProto)
    for tensor in graph.initializer[: target.random.choice((1, 2, 100))]:
        graph.input.append(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)[:64])
        )


def _bomb(target: Target) -> None:
    """Add a node whose folded result is very large."""
    graph, random = target.any(GraphProto), target.random
    sizes = [target.number() for _ in range(random.choice((1, 2, 3, 8)))]
    name = random.choice(("Expand", "Tile", "ConstantOfShape", "Range", "Reshape", "Resize", "Pad"))
    first = [] if name == "ConstantOfShape" else [text_in(random, target.messages) or "w0"]
    graph.initializer.append(helper.make_tensor("bomb", TensorProto.INT64, [len(sizes)], sizes))
    graph.node.add(op_type=name, input=[*first, "bomb"], output=["bombed"])
    for index in range(random.choice((0, 1, 40))):
        last = f"bombed{index or ''}"
        graph.node.add(op_type="Concat", input=[last] * 2, output=[f"bombed{index + 1}"])
        graph.node[-1].attribute.append(helper.make_attribute("axis", 0))


_CHANGES: tuple[Callable[[Target], None], ...] = (
    *(_rename, _rename_everywhere, _rename_all, _change_list, _change_list, _drop_field),
    *(_change_number, _change_number, _dims, _dims, _data_type, _storage, _external, _external),
    *(_external_entry, _attribute, _attribute, _attribute_added, _operator, _operator, _wiring),
    *(_wiring, _grafted, _grafted, _function, _nested, _type, _versions, _initializer_as_input),
    *(_bomb,),
)
