"""Search targets: the weights of a model, grouped by content, with their use in the graph."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from memdiag.attribution.layout import LayoutHints
from memdiag.attribution.layout_hints import layout_hints
from memdiag.model.attribute_lists import attribute_lists, list_values
from memdiag.model.equal_weights import identical_weights
from memdiag.model.graph_index import GraphIndex
from memdiag.model.model_file import ModelFile
from memdiag.model.readers import WeightReader, find_readers
from memdiag.model.tensor_types import Array
from memdiag.records.attribution import WHOLE_FILE_COPY_NAME, Attribution, Unidentifiable
from memdiag.records.weights import Weight, qualified_name

MIN_SEARCHED_BYTES = 256
"""Smaller weights match by chance too easily."""

MIN_SEARCHED_FILE_BYTES = 64 << 10
"""Smaller model files are not searched for as a whole."""

FEW_VALUES_REASON = "the same few values throughout"
"""Reason of weights whose content is not distinct."""

_MAX_UNIDENTIFIABLE_NAMES = 20
_CONTENT_PROBES = 32
_CONTENT_PROBE_BYTES = 64

# onnx returns a bfloat16 type only if the package that defines it is installed.
_BFLOAT16_DTYPE = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)


@dataclass(frozen=True, eq=False)
class WeightContent:
    """Weights with equal bytes, type and shape.

    Weights with equal bytes but another type or shape are a content of their own with the same
    `names` and `readers`, because they have other layouts.

    Attributes:
        names: names of all weights with these bytes, with the path of their graph unless it is the
            main graph.
        values: the values, C-contiguous and read-only: a view of the mapped file if it stores them
            contiguously. bfloat16 has its own type if onnx supports it.
        hints: properties of the nodes that read the weights of this type and shape.
        readers: the nodes that read any of the weights.
    """

    names: tuple[str, ...]
    values: Array
    hints: LayoutHints
    readers: tuple[WeightReader, ...]


class SearchTarget(NamedTuple):
    """A model to search for, read once for any number of processes and times.

    Attributes:
        model_file: the open model.
        weights: its weights, each content once, and the model file as a whole.
        unidentifiable: weights that are not searched for, by reason.
        fused_from: the user's model, if these are weights that onnxruntime computed from its
            weights; None for the user's model itself.
    """

    model_file: ModelFile
    weights: tuple[WeightContent, ...]
    unidentifiable: tuple[Unidentifiable, ...]
    fused_from: ModelFile | None = None

    @property
    def fused(self) -> bool:
        """Whether onnxruntime computed these weights from weights of the user's model."""
        return self.fused_from is not None


def search_target(model_file: ModelFile) -> SearchTarget:
    """Return the search target of `model_file`: its weights, and its file as a whole."""
    contents, unidentifiable = weight_contents(model_file)
    if model_file.file_bytes >= MIN_SEARCHED_FILE_BYTES:
        # A program may keep the bytes of the file that it loaded from.
        whole_file = WeightContent(
            names=(WHOLE_FILE_COPY_NAME,),
            values=model_file.file_bytes_view,
            hints=LayoutHints(),
            readers=(),
        )
        contents = (*contents, whole_file)
    return SearchTarget(model_file, contents, unidentifiable)


def fused_search_target(optimized: ModelFile, original: SearchTarget) -> SearchTarget:
    """Return the weights of onnxruntime's `optimized` model that `original` does not have.

    New weights without a distinct content are included in `unidentifiable`, unless they are small.
    """
    original_probes = {content_probe(content.values) for content in original.weights}
    names = frozenset(qualified_name(weight) for weight in original.model_file.weights)
    contents, unidentifiable = weight_contents(optimized, known=names)
    new_contents = tuple(
        content for content in contents if content_probe(content.values) not in original_probes
    )
    indistinct = tuple(group for group in unidentifiable if group.reason == FEW_VALUES_REASON)
    return SearchTarget(optimized, new_contents, indistinct, fused_from=original.model_file)


def missing_bytes(
    target: SearchTarget,
    attribution: Attribution,
    *,
    index: int = 0,
    on_device: Collection[str] = (),
) -> int:
    """Return the bytes of the weights of `target` without a copy in use in `attribution`.

    Args:
        target: a model that was searched for.
        attribution: the X-ray.
        index: the index of the model among the models of the X-ray.
        on_device: the names of the weights that are on a device, and not missing.
    """
    names_in_use = {
        name
        for copy in attribution.copies
        if copy.in_use is not False and (not copy.models or index in copy.models)
        for name in copy.weights
    }
    names_in_use |= {WHOLE_FILE_COPY_NAME, *on_device}
    return sum(
        content.values.nbytes for content in target.weights if not names_in_use & {*content.names}
    )


def weight_contents(
    model_file: ModelFile, *, min_bytes: int = MIN_SEARCHED_BYTES, known: Collection[str] = ()
) -> tuple[tuple[WeightContent, ...], tuple[Unidentifiable, ...]]:
    """Return the weights of `model_file` with an identifiable content, and the others by reason.

    Args:
        model_file: the open model.
        min_bytes: minimum size of an identifiable weight in bytes.
        known: qualified names of weights to leave out of the second result.
    """
    graphs = GraphIndex(model_file)
    groups: dict[int, list[tuple[Weight, Array]]] = defaultdict(list)
    group_by_weight = {
        weight: -1 - number
        for number, group in enumerate(identical_weights(model_file))
        for weight in group
    }
    unidentifiable: dict[str, list[Weight]] = defaultdict(list)
    for index, weight in enumerate(model_file.weights):
        values = _bfloat16_values(np.ascontiguousarray(model_file.data(weight)), weight)
        reason = _unidentifiable_reason(values, min_bytes)
        if reason:
            if qualified_name(weight) not in known:
                unidentifiable[reason].append(weight)
        else:
            groups[group_by_weight.get(weight, index)].append((weight, values))
    contents = [
        content for group in groups.values() for content in _equal_weight_contents(group, graphs)
    ]
    for attribute_list in attribute_lists(model_file):
        values = list_values(model_file, attribute_list)
        reason = _unidentifiable_reason(values, min_bytes)
        if reason:
            if qualified_name(attribute_list.weight) not in known:
                unidentifiable[reason].append(attribute_list.weight)
        else:
            names = (qualified_name(attribute_list.weight),)
            contents.append(WeightContent(names, values, LayoutHints(), readers=()))
    model_file.release()
    return tuple(contents), tuple(
        Unidentifiable(
            reason=reason,
            count=len(weights),
            bytes=sum(weight.nbytes for weight in weights),
            weights=tuple(qualified_name(weight) for weight in weights[:_MAX_UNIDENTIFIABLE_NAMES]),
        )
        for reason, weights in unidentifiable.items()
    )


def content_probe(values: Array) -> tuple[int, bytes]:
    """Return (bytes, evenly spread blocks) of `values`, which differ for different contents."""
    data = _bytes_of_values(values)
    return len(data), _probe_blocks(data).tobytes()


def _equal_weight_contents(
    group: list[tuple[Weight, Array]], graphs: GraphIndex
) -> Iterator[WeightContent]:
    """Yield a content for each type and shape of the weights of `group`, all of equal bytes."""
    names = tuple(dict.fromkeys(qualified_name(weight) for weight, _ in group))
    all_readers: list[WeightReader] = []
    forms: dict[tuple[Any, ...], tuple[Array, list[LayoutHints]]] = {}
    for weight, values in group:
        weight_readers = tuple(find_readers(graphs, weight))
        all_readers += weight_readers
        hints = layout_hints(graphs, weight, weight_readers)
        forms.setdefault((values.dtype, values.shape), (values, []))[1].append(hints)
    for values, all_hints in forms.values():
        yield WeightContent(
            names=names, values=values, hints=_merged_hints(all_hints), readers=tuple(all_readers)
        )


def _merged_hints(all_hints: Sequence[LayoutHints]) -> LayoutHints:
    if len(all_hints) == 1:
        return all_hints[0]
    return LayoutHints(
        **{
            field.name: tuple(_union_of_hints(all_hints, field.name))
            for field in fields(LayoutHints)
        }
    )


def _union_of_hints(all_hints: Iterable[LayoutHints], field: str) -> Iterator[Any]:
    yielded: list[Any] = []
    for hints in all_hints:
        for value in getattr(hints, field):
            # Values that contain arrays cannot be compared; a duplicate only costs time.
            if isinstance(value, (int, tuple)) and value in yielded:
                continue
            yielded.append(value)
            yield value


def _unidentifiable_reason(values: Array, min_bytes: int) -> str | None:
    if values.dtype.hasobject:
        return "strings, which have no fixed layout"
    if values.nbytes < min_bytes:
        return f"smaller than {min_bytes} bytes each"
    blocks = _probe_blocks(_bytes_of_values(values))
    words = blocks[:, : blocks.shape[1] // 8 * 8].reshape(len(blocks), -1, 8)
    if np.all(words == words[:, :1]) or len(np.unique(words.reshape(-1, 8), axis=0)) < 4:
        return FEW_VALUES_REASON
    return None


def _bfloat16_values(values: Array, weight: Weight) -> Array:
    """Return `values` as bfloat16 if that is the weight's type and onnx supports it."""
    if weight.dtype == "bfloat16" and _BFLOAT16_DTYPE.name == "bfloat16":
        return values.view(_BFLOAT16_DTYPE)
    return values


def _bytes_of_values(values: Array) -> NDArray[np.uint8]:
    return values.reshape(-1).view(np.uint8)


def _probe_blocks(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return evenly spread blocks of `data`, ``[blocks, bytes]``."""
    last = max(0, len(data) - _CONTENT_PROBE_BYTES)
    # Blocks start at whole words: a value that repeats every 8 bytes must look the same in all.
    starts = np.unique(np.linspace(0, last, num=_CONTENT_PROBES).astype(np.int64) // 8 * 8)
    blocks: NDArray[np.uint8] = data[
        starts[:, None] + np.arange(min(_CONTENT_PROBE_BYTES, len(data)))
    ]
    return blocks
