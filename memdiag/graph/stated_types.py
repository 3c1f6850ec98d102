"""The types that a model states itself: where it states those of all values, none is inferred.

Optimizers and exporters that infer shapes themselves write them down.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from onnx import TensorShapeProto, TypeProto, ValueInfoProto

from memdiag.graph.dimensions import put_in
from memdiag.graph.scopes import Scope
from memdiag.graph.value_tables import ValueSet


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
    if not _may_state_all(scope):
        return False
    wanted, known = ValueSet(), ValueSet()
    left = sum(wanted.add(scope, name) for name in _to_be_stated(scope))
    for value in _values(scope):
        name = value.name
        if _is_whole(value.type, symbols):
            left -= (scope, name) in wanted and known.add(scope, name)
        elif name in scope.producers or ((scope, name) in wanted and (scope, name) not in known):
            return False
    return not left


def _may_state_all(scope: Scope) -> bool:
    """Return whether a graph states as many types as it must, at least."""
    wanted = sum(1 for node in scope.nodes if node.op_type != "Constant")
    return wanted <= len(scope.body.output_values) + scope.body.inner_value_count


def _to_be_stated(scope: Scope) -> Iterator[str]:
    for node in scope.nodes:
        if node.op_type != "Constant":  # those are weights, whose types are known
            yield from filter(None, node.output)
    if scope.parent is not None:
        yield from scope.inputs


def _values(scope: Scope) -> Iterator[ValueInfoProto]:
    yield from scope.body.input_values
    yield from scope.body.inner_values()
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
