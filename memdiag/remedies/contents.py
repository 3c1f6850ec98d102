"""Weights of a draft that hold the same bytes; what lies in files is read in slices."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple
from weakref import WeakKeyDictionary

import onnx_ir as ir

from memdiag.model.model_file import ModelFile
from memdiag.remedies.constants import Tensor, tensor_of
from memdiag.remedies.draft import Draft

_SLICE = 1 << 20
_HEAD = 4 << 10


class _Range(NamedTuple):
    path: str
    offset: int
    length: int


_compared: "WeakKeyDictionary[ModelFile, dict[tuple[_Range, _Range], bool]]" = WeakKeyDictionary()


def same_contents(draft: Draft, values: Sequence[ir.Value]) -> list[list[ir.Value]]:
    """Return `values` divided into groups of the same type, shape and bytes, compared in full.

    Values without a tensor are in none. Each two ranges of files are compared once for each open
    model, however often this is asked.
    """
    alike: dict[tuple[object, ...], list[list[ir.Value]]] = defaultdict(list)
    for value in dict.fromkeys(values):
        tensor = tensor_of(value)
        if tensor is None:
            continue
        head = next(_slices(tensor, _HEAD), b"") if draft.reads_weights else b""
        groups = alike[tensor.dtype, tuple(tensor.shape), head]
        for group in groups:
            first = tensor_of(group[0])
            assert first is not None
            if not draft.reads_weights or _same(draft.file, first, tensor):
                group.append(value)
                break
        else:
            groups.append([value])
    return [group for groups in alike.values() for group in groups]


def _same(file: ModelFile, one: Tensor, other: Tensor) -> bool:
    ranges = _range(one), _range(other)
    if ranges[0] is None or ranges[1] is None:
        return _equal(one, other)
    if ranges[0] == ranges[1]:
        return True
    known = _compared.setdefault(file, {})
    pair = (ranges[0], ranges[1])
    if pair not in known:
        known[pair] = _equal(one, other)
    return known[pair]


def _equal(one: Tensor, other: Tensor) -> bool:
    pairs = zip_longest(_slices(one, _SLICE), _slices(other, _SLICE))
    return all(mine == others for mine, others in pairs)


def _range(tensor: Tensor) -> _Range | None:
    if not isinstance(tensor, ir.ExternalTensor):
        return None
    length = tensor.length if tensor.length is not None else tensor.nbytes
    return _Range(tensor.path, tensor.offset or 0, length)


def _slices(tensor: Tensor, size: int) -> Iterator[bytes]:
    where = _range(tensor)
    if where is None:
        octets = tensor.tobytes()
        for start in range(0, len(octets), size):
            yield octets[start : start + size]
        return
    # Read, not mapped: mapped pages would count as resident.
    with open(where.path, "rb", buffering=0) as file:
        file.seek(where.offset)
        left = where.length
        while left:
            part = file.read(min(size, left))
            if not part:
                return
            left -= len(part)
            yield part
