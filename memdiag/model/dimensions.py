"""Sizes of a model's inputs: fixed, set by name, given by an array, or free."""

import ast
import operator
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import NamedTuple

from onnx import TensorShapeProto, TypeProto, ValueInfoProto

from memdiag.errors import UsageError

_ARITHMETIC_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_EXPRESSION_TEXT = re.compile(r"[\w +*/()-]+", re.ASCII)

MAX_DIMENSION_SIZE = (1 << 63) - 1
"""The largest size of a dimension (TensorShapeProto of ONNX)."""


class InputAxis(NamedTuple):
    """One axis of an input.

    Attributes:
        input: the name of the input.
        position, rank: the index of the axis, and the number of axes of the input.
        size: the fixed size; None if the axis is free.
        symbol: the name of a free dimension; empty without one.
    """

    input: str
    position: int
    rank: int
    size: int | None
    symbol: str

    @property
    def key(self) -> str:
        """The name by which ``--dim`` sets the size of the axis: its symbol, or ``input:axis``."""
        return self.symbol or f"{self.input}:{self.position}"


def tensor_type(kind: TypeProto) -> TypeProto.Tensor | None:
    """Return the tensor type in `kind`, or in the element of a sequence or optional type.

    Return None for maps and sparse tensors.
    """
    for _ in range(3):
        if kind.HasField("tensor_type"):
            return kind.tensor_type
        if kind.HasField("sequence_type"):
            kind = kind.sequence_type.elem_type
        elif kind.HasField("optional_type"):
            kind = kind.optional_type.elem_type
    return None


def _dimension_symbol(size: TensorShapeProto.Dimension) -> str:
    """Return the name of a dimension; empty without one, or if it is ``?``, which exporters
    write."""
    return "" if size.dim_param == "?" else size.dim_param


def fill_in_sizes(value: ValueInfoProto, sizes: Mapping[str, int]) -> None:
    """Replace the free dimensions in the shape of a value by the `sizes` that name them.

    A size that no tensor can have, such as twice the largest one, leaves its dimension free.
    """
    if not value.type.HasField("tensor_type"):
        return
    for position, size in enumerate(value.type.tensor_type.shape.dim):
        if size.HasField("dim_value") and size.dim_value >= 0:
            continue
        # A free dimension without a name goes by its input and axis.
        named_size = sizes.get(_dimension_symbol(size) or f"{value.name}:{position}")
        if named_size is not None and named_size <= MAX_DIMENSION_SIZE:
            size.dim_value = named_size


def axes_of(value: ValueInfoProto) -> tuple[InputAxis, ...] | None:
    """Return the axes of an input; None if not even its rank is known."""
    tensor = tensor_type(value.type)
    if tensor is None or not tensor.HasField("shape"):
        return None
    sizes = tensor.shape.dim
    return tuple(
        InputAxis(
            input=value.name,
            position=position,
            rank=len(sizes),
            # Some exporters write -1 for a size they do not know, which the runtime accepts.
            size=size.dim_value if size.HasField("dim_value") and size.dim_value >= 0 else None,
            symbol=_dimension_symbol(size),
        )
        for position, size in enumerate(sizes)
    )


def unsized_axes(inputs: Mapping[str, tuple[InputAxis, ...] | None]) -> list[InputAxis]:
    """Return the axes of all inputs that have no fixed size."""
    return [axis for axes in inputs.values() for axis in axes or () if axis.size is None]


def choose_sizes(
    inputs: Mapping[str, tuple[InputAxis, ...] | None],
    *,
    dims: Mapping[str, int],
    given: Mapping[str, tuple[int, ...]],
    free_dim: int,
    usual: Mapping[str, int] | None = None,
    totals: Mapping[str, tuple[str, str]] | None = None,
    roles: Mapping[str, str] | None = None,
) -> dict[str, int]:
    """Return a size for every axis of `inputs` that is not fixed, by `InputAxis.key`.

    The sources in order of precedence are `dims`, the shapes of the arrays `given`, and `usual`.
    Other axes get 1 if they look like a batch, else `free_dim`. The size of a symbol like ``past +
    1`` is computed from the symbols in it, and the size of a key of `totals` is the sum of two
    other sizes. `roles` are the names of the roles of axes, by `InputAxis.key`, for messages.

    Raises:
        UsageError: `dims` has an unknown dimension or a negative size, or contradicts an array.
    """
    free = unsized_axes(inputs)
    keys = {axis.key: axis for axis in free}
    for key, size in dims.items():
        if key not in keys:
            raise unknown_dimension(key, inputs, roles or {})
        if size < 0:
            raise UsageError(f"dimension {key!r} must be 0 or greater, not {size}.")
    sizes = dict(dims)
    for axis in free:
        shape = given.get(axis.input)
        if shape is None:
            continue
        if axis.key in dims and dims[axis.key] != shape[axis.position]:
            raise UsageError(
                f"dimension {axis.key!r} was set to {dims[axis.key]}, but the array for "
                f"{axis.input!r} has {shape[axis.position]} there. Leave one of them out."
            )
        sizes.setdefault(axis.key, shape[axis.position])
    batches = batch_keys(inputs)
    expressions: dict[str, ast.expr] = {
        key: ast.BinOp(ast.Name(first), ast.Add(), ast.Name(second))
        for key, (first, second) in (totals or {}).items()
    }
    expressions |= {
        key: tree for key in keys if (tree := _parsed_expression(key, keys)) is not None
    }
    for key in keys:
        if key not in expressions:
            size = (usual or {}).get(key, 1 if key in batches else free_dim)
            sizes.setdefault(key, size)
    for key, tree in expressions.items():
        if key not in sizes:
            value = _expression_value(tree, sizes)
            sizes[key] = (1 if key in batches else free_dim) if value is None else max(value, 0)
    return sizes


def expression_sizes(symbols: Iterable[str], sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of those of `symbols` that are arithmetic over names in `sizes`."""
    keys = {name: InputAxis(name, 0, 1, None, name) for name in sizes}
    trees = ((symbol, _parsed_expression(symbol, keys)) for symbol in set(symbols) - sizes.keys())
    values = (
        (symbol, _expression_value(tree, sizes)) for symbol, tree in trees if tree is not None
    )
    return {symbol: value for symbol, value in values if value is not None and value >= 0}


def is_expression(symbol: str, keys: Mapping[str, InputAxis]) -> bool:
    """Return whether `symbol` is arithmetic over other dimensions, such as ``past + 1``."""
    return _parsed_expression(symbol, keys) is not None


def batch_keys(inputs: Mapping[str, tuple[InputAxis, ...] | None]) -> set[str]:
    """Return the keys of the axes that count examples.

    These are axes with batch in their names and the first free axes of inputs of several axes. The
    only axis of an input counts as well, unless all inputs with a free first axis have one axis:
    then the axis is more likely a length, such as the samples of a sound. The second of three axes
    counts if it alone is free and another input has a free first axis: recurrent states are
    [layers, batch, features].
    """
    known_axes = [axes for axes in inputs.values() if axes]
    free_axes = [axis for axes in known_axes for axis in axes if axis.size is None]
    first_axes = [axis for axis in free_axes if axis.position == 0]
    have_one_axis = all(axis.rank == 1 for axis in first_axes)
    keys = {axis.key for axis in free_axes if "batch" in axis.symbol.lower()}
    keys |= {axis.key for axis in first_axes if axis.rank > 1 or not have_one_axis}
    if first_axes:
        keys |= {
            axes[1].key
            for axes in known_axes
            if [axis.size is None for axis in axes] == [False, True, False]
        }
    return keys


def unknown_dimension(
    key: str, inputs: Mapping[str, tuple[InputAxis, ...] | None], roles: Mapping[str, str]
) -> UsageError:
    """Return the error for `key`, which is not a free dimension; it lists the free dimensions.

    `roles` are the names of the roles of axes, by `InputAxis.key`.
    """
    return UsageError(f"unknown dimension {key!r}: {_dimension_hint(key, inputs, roles)}")


def _dimension_hint(
    key: str, inputs: Mapping[str, tuple[InputAxis, ...] | None], roles: Mapping[str, str]
) -> str:
    name, _, position = key.rpartition(":")
    for axis in inputs.get(name) or ():
        if str(axis.position) == position:
            if axis.size is not None:
                return f"that axis is fixed to {axis.size}."
            return f"that axis is called {axis.symbol!r}, set it by this name."
    if key in inputs and not any(axis.size is None for axis in inputs[key] or ()):
        return (
            "that is an input, whose sizes are fixed. To run the model with other values of it:"
            f" memdiag profile --input {key}=FILE.npy."
        )
    free = [axis.key for axis in unsized_axes(inputs)]
    if not free:
        return "the sizes of this model's inputs are all fixed."
    names = (
        f"{name} ({roles[name]})" if roles.get(name, name) != name else name
        for name in dict.fromkeys(free)
    )
    similar = get_close_matches(key, [*free, *roles.values()], n=1)
    hint = f" Did you mean {similar[0]}?" if similar else ""
    return f"the model has {', '.join(names)}.{hint}"


def _parsed_expression(symbol: str, keys: Mapping[str, InputAxis]) -> ast.expr | None:
    """Return `symbol` as an expression over other symbols; None if it is a plain name."""
    if len(symbol) > 200 or symbol.isidentifier() or not _EXPRESSION_TEXT.fullmatch(symbol):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(symbol.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    # `batch-size` is a name unless there are two dimensions called batch and size.
    names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return tree if names and all(name in keys for name in names) else None


def _expression_value(tree: ast.expr, sizes: Mapping[str, int]) -> int | None:
    """Return the value of an expression; None if it is not arithmetic over known sizes."""
    if isinstance(tree, ast.Constant) and type(tree.value) is int:
        return tree.value
    if isinstance(tree, ast.Name):
        return sizes.get(tree.id)
    if isinstance(tree, ast.BinOp) and type(tree.op) in _ARITHMETIC_OPERATORS:
        left, right = _expression_value(tree.left, sizes), _expression_value(tree.right, sizes)
        if left is None or right is None or (isinstance(tree.op, ast.FloorDiv) and not right):
            return None
        return _ARITHMETIC_OPERATORS[type(tree.op)](left, right)
    return None
