"""What the X-ray looks for: a model's weights by content, with what is known of their use."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from memdiag.attribution.layouts import Uses
from memdiag.attribution.usage import Consumer, Usage
from memdiag.graph.content_members import FAULT, Budget
from memdiag.graph.contents import same_content
from memdiag.graph.graphs import Graphs
from memdiag.graph.reader import ModelFile
from memdiag.records.attribution import MODEL_FILE, Indistinct
from memdiag.records.weights import Weight

Array = NDArray[Any]

MIN_BYTES = 256
"""Smaller weights are found by chance too easily."""

FEW_VALUES = "the same few values throughout"

_PROBES = 32
_PROBE_BYTES = 64
_MOST_NAMES = 20


FILE = MODEL_FILE
"""The name of the subject that is the whole file: a program may keep the bytes it loaded from."""

_SMALLEST_FILE = 64 << 10

# With the package that brings numpy this type, onnx names it; older ones name another.
_BFLOAT16 = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)


@dataclass(frozen=True, eq=False)
class Subject:
    """Weights with the same bytes: all their `names`, and their values in one type and shape.

    Names are qualified by the path of their graph where that is not the main one. `values` is
    C-contiguous and read-only, a view of the mapped file where the model has it as it is; bfloat16
    has its own type where onnx brings it. Weights with equal bytes of another type or shape are
    subjects of their own, with the same names: other layouts are theirs. `uses` are those of the
    weights of this type and shape, `consumers` those of all the weights together.
    """

    names: tuple[str, ...]
    values: Array
    uses: Uses
    consumers: tuple[Consumer, ...]


def subjects(
    model: ModelFile, *, min_bytes: int = MIN_BYTES, known: Collection[str] = ()
) -> tuple[tuple[Subject, ...], tuple[Indistinct, ...]]:
    """Return the weights of `model` that can be told by their content, and those that cannot.

    Weights whose names are `known` are left out of the second result.
    """
    usage = Usage(Graphs(model))
    groups: dict[int, list[tuple[Weight, Array]]] = defaultdict(list)
    numbers = {weight: -1 - n for n, group in enumerate(same_content(model)) for weight in group}
    vague: dict[str, list[Weight]] = defaultdict(list)
    budget = Budget(model)
    for place, weight in enumerate(model.weights):
        budget.touch(min(weight.nbytes, _PROBES * FAULT))
        values = _typed(np.ascontiguousarray(model.data(weight)), weight)
        reason = _indistinct(values, min_bytes)
        if reason:
            if qualified(weight) not in known:
                vague[reason].append(weight)
        else:
            groups[numbers.get(weight, place)].append((weight, values))
    found = tuple(subject for group in groups.values() for subject in _subjects(group, usage))
    model.release()
    return found, tuple(_vague(reason, weights) for reason, weights in vague.items())


def whole_file(model: ModelFile) -> tuple[Subject, ...]:
    """Return the file itself as a subject; none where it is too small to matter."""
    if model.file_bytes < _SMALLEST_FILE:
        return ()
    return (Subject(names=(FILE,), values=model.contents, uses=Uses(), consumers=()),)


def qualified(weight: Weight) -> str:
    """Return the weight's name, with its graph's path where that is not the main graph."""
    return f"{weight.graph}/{weight.name}" if weight.graph else weight.name


def _typed(values: Array, weight: Weight) -> Array:
    """Return `values` with the type of their own that halves of another kind may have."""
    if weight.dtype == "bfloat16" and _BFLOAT16.name == "bfloat16":
        return values.view(_BFLOAT16)
    return values


def _octets(values: Array) -> NDArray[np.uint8]:
    return values.reshape(-1).view(np.uint8)


def _spread(octets: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return blocks spread over the bytes, one below the other."""
    last = max(0, len(octets) - _PROBE_BYTES)
    # At whole words: a value that returns every 8 bytes is to look the same in every block.
    starts = np.unique(np.linspace(0, last, num=_PROBES).astype(np.int64) // 8 * 8)
    blocks: NDArray[np.uint8] = octets[starts[:, None] + np.arange(min(_PROBE_BYTES, len(octets)))]
    return blocks


def content_probe(values: Array) -> tuple[int, bytes]:
    """Return what tells the content of `values` apart without reading it all."""
    octets = _octets(values)
    return len(octets), _spread(octets).tobytes()


def _indistinct(values: Array, min_bytes: int) -> str | None:
    if values.dtype.hasobject:
        return "strings, which have no fixed layout"
    if values.nbytes < min_bytes:
        return f"smaller than {min_bytes} bytes"
    blocks = _spread(_octets(values))
    words = blocks[:, : blocks.shape[1] // 8 * 8].reshape(len(blocks), -1, 8)
    if np.all(words == words[:, :1]) or len(np.unique(words.reshape(-1, 8), axis=0)) < 4:
        return FEW_VALUES
    return None


def _subjects(group: list[tuple[Weight, Array]], usage: Usage) -> Iterator[Subject]:
    """Yield a subject for each type and shape of the weights of `group`, all of equal bytes."""
    names = tuple(dict.fromkeys(qualified(weight) for weight, _ in group))
    consumers: dict[Consumer, None] = {}
    forms: dict[tuple[Any, ...], tuple[Array, list[Uses]]] = {}
    for weight, values in group:
        uses, readers = usage.of(weight)
        consumers.update(dict.fromkeys(readers))
        forms.setdefault((values.dtype, values.shape), (values, []))[1].append(uses)
    for values, used in forms.values():
        yield Subject(names=names, values=values, uses=_together(used), consumers=tuple(consumers))


def _together(every: Iterable[Uses]) -> Uses:
    uses = list(every)
    if len(uses) == 1:
        return uses[0]
    return Uses(**{field.name: tuple(_joined(uses, field.name)) for field in fields(Uses)})


def _joined(uses: list[Uses], name: str) -> Iterator[Any]:
    seen: list[Any] = []
    for one in uses:
        for value in getattr(one, name):
            # Arrays inside cannot be compared as a whole; more of the same only costs time.
            if isinstance(value, (int, tuple)) and value in seen:
                continue
            seen.append(value)
            yield value


def _vague(reason: str, weights: list[Weight]) -> Indistinct:
    return Indistinct(
        reason=reason,
        count=len(weights),
        bytes=sum(weight.nbytes for weight in weights),
        weights=tuple(qualified(weight) for weight in weights[:_MOST_NAMES]),
    )
