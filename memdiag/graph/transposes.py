"""Matrices that are another's transpose, found from a few elements and then compared by tiles."""

import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memdiag.errors import ModelError
from memdiag.graph.content_members import FAULT, Budget, is_at_hand
from memdiag.graph.element_types import ELEMENT_TYPES_BY_NAME
from memdiag.graph.holes import ModelHoles, path_of
from memdiag.graph.name_index import NameIndex, hashes_of
from memdiag.graph.reader import ModelFile
from memdiag.records.weights import Weight

Matrix = NDArray[Any]

_PROBES = 32
_TILE = 1024
_PADDING = 16
_WIDE = 256
_AT_ONCE = 8
_MOST_COMPARED = 4
"""A weight that agrees in its probes with more others is compared with so many of them."""


class _Candidate(NamedTuple):
    weight: Weight
    rows: int
    columns: int


class _Search(NamedTuple):
    model: ModelFile
    weights: Sequence[Weight]
    budget: Budget
    holes: ModelHoles

    def candidate(self, index: int) -> _Candidate:
        """Return one of the weights, which is one."""
        found = _candidate(self.weights[index])
        assert found is not None
        return found


def transposes(model: ModelFile, weights: Sequence[Weight]) -> Iterator[tuple[Weight, Weight]]:
    """Yield the pairs of `weights` of which one is the other's transpose, compared bit for bit.

    `weights` are of `model`, each content once: give one of those with the same bytes. Leading
    axes of length 1 do not count, vectors have no transpose. Elements of less than a byte and those
    of 16 are left out, as are those that are not at hand, and matrices that look the same all
    over, like zeros. Each weight is in one pair at most, and the first of a pair comes first in
    `weights`.
    """
    indices: dict[tuple[str, int, int], array[int]] = {}
    for index, weight in enumerate(weights):
        candidate = _candidate(weight) if is_at_hand(weight) else None
        if candidate is not None:
            kind = (weight.dtype, candidate.rows, candidate.columns)
            indices.setdefault(kind, array("I")).append(index)
    search = _Search(model, weights, Budget(model), ModelHoles(model))
    for (dtype, rows, columns), found in indices.items():
        others = indices.get((dtype, columns, rows))
        if rows > columns or not others or (rows == columns and len(found) < 2):
            continue
        for pair in _pairs(search, found, others):
            one, other = sorted(pair)
            yield weights[one], weights[other]
    model.release()


def transposed(model: ModelFile, one: Weight, other: Weight) -> bool:
    """Return whether `other` is the transpose of `one`, matrices of one type and fitting shapes."""
    left, right = _candidate(one), _candidate(other)
    if left is None or right is None or one.dtype != other.dtype:
        return False
    return left.rows == right.columns and left.columns == right.rows and _equal(model, left, right)


def _candidate(weight: Weight) -> _Candidate | None:
    shape = weight.shape
    while len(shape) > 2 and shape[0] == 1:
        shape = shape[1:]
    bits = ELEMENT_TYPES_BY_NAME[weight.dtype].bits
    if len(shape) != 2 or min(shape) < 2 or bits not in (8, 16, 32, 64):
        return None
    return _Candidate(weight, *shape)


def _pairs(search: _Search, found: "array[int]", others: "array[int]") -> Iterator[tuple[int, int]]:
    """Yield the pairs of one from `found` and one from `others`: indices, as these are."""
    by_probe = NameIndex(hashes_of(_probes(search, others, turned=True)))
    taken: set[int] = set()
    for index, probe in zip(found, _probes(search, found, turned=False), strict=True):
        near = by_probe.places(probe) if probe is not None else ()
        for place in near[:_MOST_COMPARED]:
            other = others[place]
            if index == other or {index, other} & taken:
                continue
            if _equal(search.model, search.candidate(index), search.candidate(other)):
                taken |= {index, other}
                yield index, other
                break


def _probes(search: _Search, indices: Iterable[int], *, turned: bool) -> Iterator[bytes | None]:
    return (_probe(search, search.candidate(index), turned=turned) for index in indices)


def _bits(model: ModelFile, candidate: _Candidate) -> Matrix | None:
    """Return the matrix as whole numbers, so that every bit counts, also those of NaN."""
    size = candidate.weight.nbytes // (candidate.rows * candidate.columns)
    try:
        octets = np.frombuffer(model.raw_bytes(candidate.weight), np.uint8)
    except ModelError:
        return None
    return octets.view(f"u{size}").reshape(candidate.rows, candidate.columns)


def _probe(search: _Search, candidate: _Candidate, *, turned: bool) -> bytes | None:
    """Return some elements, at places that are the same for a matrix and its transpose turned.

    None for a matrix that has the same element at all of them.
    """
    if search.holes.cover(candidate.weight, 0, candidate.weight.nbytes):
        return None
    matrix = _bits(search.model, candidate)
    if matrix is None:
        return None
    matrix = matrix.T if turned else matrix
    numbers = np.arange(1, _PROBES + 1)
    # Multiples of irrational numbers are spread evenly, by rows as by columns.
    rows = (numbers * 0.6180339887498949 % 1 * matrix.shape[0]).astype(np.int64)
    columns = (numbers * 0.4142135623730951 % 1 * matrix.shape[1]).astype(np.int64)
    elements = np.empty(_PROBES, matrix.dtype)
    for first in range(0, _PROBES, _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        search.budget.touch(min(_AT_ONCE * FAULT, matrix.nbytes + FAULT))
        elements[part] = matrix[rows[part], columns[part]]
    return None if np.all(elements == elements[0]) else elements.tobytes()


def _equal(model: ModelFile, one: _Candidate, other: _Candidate) -> bool:
    """Compare tile by tile; only two tiles are ever in memory."""
    rows = min(one.rows, max(_TILE, _TILE * _TILE // one.columns))
    columns = min(one.columns, max(_TILE, _TILE * _TILE // one.rows))
    with ExitStack() as stack:
        left = _Tiles(model, one, (rows, columns), stack)
        right = _Tiles(model, other, (columns, rows), stack)
        return all(
            np.array_equal(left.tile(row, column), right.tile(column, row).T)
            for row in range(0, one.rows, rows)
            for column in range(0, one.columns, columns)
        )


class _Tiles:
    """The tiles of one matrix, read from its file: mapping them would map far more than them."""

    def __init__(
        self, model: ModelFile, candidate: _Candidate, shape: tuple[int, int], stack: ExitStack
    ) -> None:
        matrix = _bits(model, candidate)
        assert matrix is not None
        self._matrix = matrix
        self._shape = shape
        self._start = candidate.weight.offset or 0
        self._file: int | None = None
        if candidate.weight.file is not None and hasattr(os, "preadv"):
            self._file = os.open(path_of(model, candidate.weight), os.O_RDONLY)
            stack.callback(os.close, self._file)
            # Rows that are no power of two apart do not fight for one place in the cache.
            padding = _PADDING if shape[1] >= _WIDE else 0
            self._buffer = np.empty((shape[0], shape[1] + padding), matrix.dtype)

    def tile(self, row: int, column: int) -> Matrix:
        """Return the tile that starts at `row` and `column`, valid until the next is asked for."""
        rows, columns = self._shape
        mapped = self._matrix[row : row + rows, column : column + columns]
        if self._file is None:
            return mapped
        tile = self._buffer[: mapped.shape[0], : mapped.shape[1]]
        row_bytes = self._matrix.strides[0]
        start = self._start + row * row_bytes + column * mapped.itemsize
        whole = mapped.shape[1] == self._matrix.shape[1] and tile.flags.c_contiguous
        try:
            for place, run in enumerate([tile] if whole else tile):
                view = memoryview(run).cast("B")
                if os.preadv(self._file, [view], start + place * row_bytes) != len(view):
                    return mapped
        except OSError:
            return mapped
        return tile
