"""The types that a model states itself: where it states those of all values, none is inferred.

Optimizers and exporters that infer shapes themselves write them down.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from onnx import TensorShapeProto, TypeProto, ValueInfoProto

from memdiag.graph.dimensions import put_in
from memdiag.graph.scopes import Scope


def states_all(scopes: Iterable[Scope]) -> bool:
    """Return whether graphs, the main one first, state the types of all that their nodes make.

    Sizes are numbers then, or free dimensions of the main graph's inputs.
    """
    symbols: set[str] = set()
    for scope in scopes:
        if scope.parent is None:
            symbols = {
                size.dim_param
                for value in scope.body.input_values
                for size in value.type.tensor_type.shape.dim
                if size.dim_param
            }
        if not _states_all(scope, symbols):
            return False
    return True


def stated(scope: Scope, sizes: Mapping[str, int]) -> Iterator[ValueInfoProto]:
    """Yield what the graph of `scope` states of its values, with `sizes` for free dimensions."""
    for value in _values(scope):
        copy = ValueInfoProto()
        copy.CopyFrom(value)
        put_in(copy, sizes)
        yield copy


def _states_all(scope: Scope, symbols: Collection[str]) -> bool:
    # Constants are weights, whose types are known.
    nodes = [node for node in scope.nodes if node.op_type != "Constant"]
    if len(nodes) > len(scope.body.output_values) + scope.body.inner_value_count:
        return False
    wanted = {name for node in nodes for name in node.output if name}
    if scope.parent is not None:
        wanted.update(scope.inputs)
    for value in _values(scope):
        if _is_whole(value.type, symbols):
            wanted.discard(value.name)
        elif value.name in wanted or value.name in scope.producers:
            return False
    return not wanted


def _values(scope: Scope) -> Iterator[ValueInfoProto]:
    yield from scope.body.input_values
    yield from (value for _, value in scope.body.inner_values())
    yield from scope.body.output_values


def _is_whole(kind: TypeProto, symbols: Collection[str]) -> bool:
    """Return whether a type says all that is to be known: of what is no tensor, its kind."""
    if not kind.HasField("tensor_type"):
        return kind.WhichOneof("value") is not None
    tensor = kind.tensor_type
    sizes = tensor.shape.dim
    return bool(tensor.elem_type and tensor.HasField("shape")) and all(
        _is_known(size, symbols) for size in sizes
    )


def _is_known(size: TensorShapeProto.Dimension, symbols: Collection[str]) -> bool:
    if size.HasField("dim_value"):
        return size.dim_value >= 0
    return size.dim_param in symbols
