"""Merging equal weights, of any graphs, into one initializer of the main graph."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple
from weakref import WeakKeyDictionary

import onnx_ir as ir

from memdiag.model.model_file import ModelFile
from memdiag.rewrites.computed_tensor import iter_tensor_chunks
from memdiag.rewrites.edited_weights import (
    NEW_INPUT_PROBLEM,
    FileRange,
    Tensor,
    constant_tensor,
    initializers_are_inputs,
    is_main_initializer,
    move_problem,
    move_to_initializer,
    remove_weight,
)
from memdiag.rewrites.model_editor import ModelEditor

_TENSOR_HEAD_BYTES = 4 << 10


class Merge(NamedTuple):
    """Equal weights that become one.

    Attributes:
        kept: the weight that stays.
        removed: the weights whose readers get `kept` instead.
    """

    kept: ir.Value
    removed: tuple[ir.Value, ...]


class MergePlan(NamedTuple):
    """The weights of a finding that can be merged.

    Attributes:
        merges: the merges.
        reasons: why further weights cannot be merged.
    """

    merges: tuple[Merge, ...]
    reasons: tuple[str, ...]


# Results of comparing two ranges, which are the same for all editors of one open model.
_range_comparisons: "WeakKeyDictionary[ModelFile, dict[tuple[FileRange, FileRange], bool]]"
_range_comparisons = WeakKeyDictionary()


def plan_merges(editor: ModelEditor, values: Sequence[ir.Value]) -> MergePlan:
    """Return how equal weights among `values` can be merged; a weight may be alone.

    A weight that cannot be moved can be kept if it is a constant initializer of the main graph and
    all readers of the other weights can see it.
    """
    merges: list[Merge] = []
    problems = {value: move_problem(editor, value) for value in values}
    candidates = [
        value
        for value, problem in problems.items()
        if not problem or _can_replace_equals(editor, value)
    ]
    reasons = [
        problem for value, problem in problems.items() if problem and value not in candidates
    ]
    for group in equal_value_groups(editor, candidates):
        free_values = [value for value in group if not problems[value]]
        readers = {use.node.graph for value in free_values for use in value.uses()}
        hidden_values = [
            value
            for value in group
            if value.graph is editor.model.graph
            and not all(editor.is_visible(value, graph) for graph in readers if graph is not None)
        ]
        if hidden_values:
            reasons.append("a subgraph has another value of its name")
            free_values = [value for value in free_values if value not in hidden_values]
        fixed_values = [value for value in group if problems[value] and value not in hidden_values]
        if len(group) > 1:
            reasons += [problems[value] for value in fixed_values[1:]]
        kept_value = min(
            [*fixed_values, *free_values],
            key=lambda value: _kept_weight_preference(editor, value),
            default=None,
        )
        if kept_value is None:
            continue
        if initializers_are_inputs(editor) and not is_main_initializer(editor, kept_value):
            reasons.append(NEW_INPUT_PROBLEM)
            continue
        merges.append(
            Merge(kept_value, tuple(value for value in free_values if value is not kept_value))
        )
    return MergePlan(tuple(merges), tuple(dict.fromkeys(reasons)))


def apply_merges(editor: ModelEditor, merges: Sequence[Merge]) -> bool:
    """Merge weights; return whether anything changed."""
    changed = False
    for kept, removed in merges:
        for value in removed:
            value.replace_all_uses_with(kept)
            remove_weight(editor, value)
        is_moved = not is_main_initializer(editor, kept)
        if is_moved:
            assert kept.name is not None
            assert kept.graph is not None
            editor.defined_names(kept.graph).discard(kept.name)
            name = editor.main_graph_name(kept.name)
            move_to_initializer(editor, kept, editor.model.graph, name)
        changed = changed or is_moved or bool(removed)
    return changed


def equal_value_groups(editor: ModelEditor, values: Sequence[ir.Value]) -> list[list[ir.Value]]:
    """Return `values` divided into groups of the same type, shape and bytes, compared in full.

    Values without a tensor are left out.
    """
    groups_by_head: dict[tuple[object, ...], list[list[ir.Value]]] = defaultdict(list)
    for value in dict.fromkeys(values):
        tensor = constant_tensor(value)
        if tensor is None:
            continue
        head = _tensor_head(tensor) if editor.reads_weights else b""
        groups = groups_by_head[tensor.dtype, tuple(tensor.shape), head]
        for group in groups:
            first = constant_tensor(group[0])
            assert first is not None
            if not editor.reads_weights or _has_equal_content(editor.file, first, tensor):
                group.append(value)
                break
        else:
            groups.append([value])
    return [group for groups in groups_by_head.values() for group in groups]


def _tensor_head(tensor: Tensor) -> bytes:
    chunk = next(iter_tensor_chunks(tensor, _TENSOR_HEAD_BYTES), None)
    return b"" if chunk is None else chunk.tobytes()


def _has_equal_content(model_file: ModelFile, first: Tensor, second: Tensor) -> bool:
    ranges = _tensor_file_range(first), _tensor_file_range(second)
    if ranges[0] is None or ranges[1] is None:
        return _has_equal_bytes(first, second)
    if ranges[0] == ranges[1]:
        return True
    results = _range_comparisons.setdefault(model_file, {})
    pair = (ranges[0], ranges[1])
    if pair not in results:
        results[pair] = _has_equal_bytes(first, second)
    return results[pair]


def _has_equal_bytes(first: Tensor, second: Tensor) -> bool:
    return all(
        first_chunk is not None
        and second_chunk is not None
        and first_chunk.tobytes() == second_chunk.tobytes()
        for first_chunk, second_chunk in zip_longest(
            _tensor_chunk_views(first), _tensor_chunk_views(second)
        )
    )


def _tensor_chunk_views(tensor: Tensor) -> Iterator[memoryview]:
    return (chunk.data for chunk in iter_tensor_chunks(tensor))


def _tensor_file_range(tensor: Tensor) -> FileRange | None:
    if not isinstance(tensor, ir.ExternalTensor):
        return None
    return FileRange.of(tensor)


def _can_replace_equals(editor: ModelEditor, value: ir.Value) -> bool:
    """Return whether an immovable weight can replace equal weights, because it is constant."""
    is_input = value.is_graph_input() and not initializers_are_inputs(editor)
    return (
        is_main_initializer(editor, value) and not is_input and constant_tensor(value) is not None
    )


def _kept_weight_preference(editor: ModelEditor, value: ir.Value) -> tuple[bool, bool, bool]:
    """Return the sort key of a weight to keep: outputs first, then weights of the main graph."""
    return (
        not value.is_graph_output(),
        not is_main_initializer(editor, value),
        value.graph is not editor.model.graph,
    )
