"""Weights with the same content: of one size, compared by a hash of all their bytes.

Weights of one size are first distinguished by a few blocks each, so that most are never read as a
whole. Weights that refer to one range of a file have the same content without being read.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import xxhash

from memdiag.errors import ModelError
from memdiag.model.model_file import ModelFile
from memdiag.records.weights import Weight

MAX_DECODED_BYTES = 32 << 20
"""Sparse weights and numbers inside the graph that are larger, when dense, are not compared."""

MAX_READ_THREADS = 4
"""More threads would not read faster: memory is the limit."""

MAX_READ_FACTOR = 4
"""Maximum bytes read to compare weights, as a multiple of the files: weights may overlap."""

_EQUALITY_PROBES, _EQUALITY_PROBE_BYTES = 8, 64
_MIN_THREADED_BYTES = 1 << 20
_SLICE_BYTES = 16 << 20


def can_be_compared(model_file: ModelFile, weight: Weight) -> bool:
    """Return whether a weight's bytes are in a file, or at most `MAX_DECODED_BYTES` decoded."""
    is_in_file = weight.file is not None or model_file.is_decoded(weight)
    return is_in_file or weight.nbytes <= MAX_DECODED_BYTES


def identical_weights(model_file: ModelFile, *, min_bytes: int = 1) -> list[list[Weight]]:
    """Return groups of two weights or more that have the same bytes.

    The groups come in the order of their first weights, each in the order of the model. Their
    weights have one size, not necessarily one type or shape. Weights below `min_bytes`, strings and
    weights that `can_be_compared` excludes are not compared.
    """
    indices_by_size: dict[int, list[int]] = defaultdict(list)
    for index, weight in enumerate(model_file.weights):
        if weight.nbytes >= max(min_bytes, 1) and weight.dtype != "string":
            indices_by_size[weight.nbytes].append(index)
    compare = _ContentComparison(model_file)
    groups = [
        group
        for indices in indices_by_size.values()
        if len(indices) > 1
        for group in compare.groups(indices)
    ]
    model_file.release()
    return [[model_file.weights[index] for index in group] for group in sorted(groups)]


class _ContentComparison:
    """Comparison of the contents of a model's weights, which are identified by their indices."""

    def __init__(self, model_file: ModelFile) -> None:
        self._model_file = model_file
        self._bytes_left = MAX_READ_FACTOR * (model_file.file_bytes + model_file.external_bytes)

    def groups(self, indices: Iterable[int]) -> Iterator[list[int]]:
        """Yield the groups of two or more among weights of one size."""
        indices_by_range: dict[object, list[int]] = defaultdict(list)
        for index in indices:
            weight = self._model_file.weights[index]
            if can_be_compared(self._model_file, weight):
                key = (weight.file, weight.offset) if weight.file else index
                indices_by_range[key].append(index)
        same_range_indices = {group[0]: group for group in indices_by_range.values()}
        for probe_group in self._grouped_indices(same_range_indices, self._probe_hash):
            for content_group in self._grouped_indices(probe_group, self._content_hash):
                group = sorted(
                    index for first in content_group for index in same_range_indices[first]
                )
                if len(group) > 1:
                    yield group

    def _grouped_indices(
        self, indices: Iterable[int], key: Callable[[Weight], int | None]
    ) -> list[list[int]]:
        """Return `indices` grouped by the `key` of their weights.

        Weights whose key is None are left out. A single index is returned without computing its
        key.
        """
        indices = list(indices)
        if len(indices) < 2:
            return [indices] if indices else []
        weights = [self._model_file.weights[index] for index in indices]
        groups: dict[int | None, list[int]] = defaultdict(list)
        for index, value in zip(indices, _concurrent_results(key, weights), strict=True):
            groups[value].append(index)
        groups.pop(None, None)
        return list(groups.values())

    def _probe_hash(self, weight: Weight) -> int | None:
        """Return a hash of a few blocks of a weight's bytes; None if they cannot be read."""
        view = self._weight_view(weight)
        if view is None:
            return None
        last = len(view) - _EQUALITY_PROBE_BYTES
        if last <= _EQUALITY_PROBES * _EQUALITY_PROBE_BYTES:
            return xxhash.xxh3_64_intdigest(view)
        starts = (last * number // (_EQUALITY_PROBES - 1) for number in range(_EQUALITY_PROBES))
        blocks = b"".join(view[start : start + _EQUALITY_PROBE_BYTES] for start in starts)
        return xxhash.xxh3_64_intdigest(blocks)

    def _content_hash(self, weight: Weight) -> int | None:
        """Return a hash of all bytes of a weight; None if they cannot be read."""
        self._bytes_left -= weight.nbytes
        view = self._weight_view(weight) if self._bytes_left >= 0 else None
        if view is None:
            return None
        digest = xxhash.xxh3_128()
        for start in range(0, len(view), _SLICE_BYTES):
            digest.update(view[start : start + _SLICE_BYTES])
            if len(view) > _SLICE_BYTES:
                self._model_file.release()
        return digest.intdigest()

    def _weight_view(self, weight: Weight) -> memoryview | None:
        try:
            view = self._model_file.raw_bytes(weight)
        except ModelError:  # the indices of a sparse tensor do not fit its shape
            return None
        return view if len(view) == weight.nbytes else None


def _concurrent_results(
    work: Callable[[Weight], int | None], weights: list[Weight]
) -> Iterator[int | None]:
    """Yield the results of `work` for `weights`, all of one size; in threads if they are large."""
    if weights[0].nbytes < _MIN_THREADED_BYTES:
        yield from map(work, weights)
        return
    with ThreadPoolExecutor(read_thread_count(), thread_name_prefix="memdiag") as pool:
        yield from pool.map(work, weights)


def read_thread_count() -> int:
    """Return the number of threads to read weights with."""
    return min(len(os.sched_getaffinity(0)), MAX_READ_THREADS)
