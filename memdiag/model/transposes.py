"""Matrices that are another's transpose, found from a few elements and then compared by tiles."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memdiag.errors import ModelError
from memdiag.model.content import MAX_DECODED_BYTES
from memdiag.model.model_file import ModelFile
from memdiag.model.tensor_types import ELEMENT_TYPES_BY_NAME
from memdiag.records.weights import Weight

Matrix = NDArray[Any]

MAX_COMPARED = 4
"""A weight that agrees in its probe with more others is compared with so many of them."""

_PROBES = 32
_TILE = 1024


class _Candidate(NamedTuple):
    """A weight that is a matrix; its `number` among those given, rows and columns."""

    number: int
    weight: Weight
    rows: int
    columns: int


def transposes(model: ModelFile, weights: Sequence[Weight]) -> Iterator[tuple[Weight, Weight]]:
    """Yield the pairs of `weights` of which one is the other's transpose, compared bit for bit.

    `weights` are of `model`, each content once: give one of those with the same bytes. Leading
    axes of length 1 do not count, vectors have no transpose. Elements of less than a byte and those
    of 16 are left out, as are large weights that no file has as they are, and matrices that look
    the same all over, like zeros. Each weight is in one pair at most, and the first of a pair comes
    first in `weights`.
    """
    by_kind: dict[tuple[str, int, int], list[_Candidate]] = defaultdict(list)
    for number, weight in enumerate(weights):
        candidate = _candidate(number, weight)
        if candidate and (weight.file is not None or weight.nbytes <= MAX_DECODED_BYTES):
            by_kind[weight.dtype, candidate.rows, candidate.columns].append(candidate)
    for (dtype, rows, columns), candidates in by_kind.items():
        others = by_kind.get((dtype, columns, rows))
        if rows > columns or not others or (rows == columns and len(candidates) < 2):
            continue
        for pair in _pairs(model, candidates, others):
            one, other = sorted(pair)
            yield weights[one], weights[other]
    model.release()


def _candidate(number: int, weight: Weight) -> _Candidate | None:
    shape = weight.shape
    while len(shape) > 2 and shape[0] == 1:
        shape = shape[1:]
    bits = ELEMENT_TYPES_BY_NAME[weight.dtype].bits
    if len(shape) != 2 or min(shape) < 2 or bits not in (8, 16, 32, 64):
        return None
    return _Candidate(number, weight, *shape)


def _pairs(
    model: ModelFile, candidates: list[_Candidate], others: list[_Candidate]
) -> Iterator[tuple[int, int]]:
    """Yield the indices of pairs of one from `candidates` and one from `others`."""
    by_probe: dict[bytes, list[_Candidate]] = defaultdict(list)
    for other in others:
        probe = _probe(model, other, transpose=True)
        if probe is not None:
            by_probe[probe].append(other)
    paired: set[int] = set()
    for one in candidates:
        probe = _probe(model, one, transpose=False) if by_probe else None
        for other in by_probe.get(probe, ())[:MAX_COMPARED] if probe is not None else ():
            if one.number == other.number or {one.number, other.number} & paired:
                continue
            if _equal(model, one, other):
                paired |= {one.number, other.number}
                yield one.number, other.number
                break


def _bits(model: ModelFile, candidate: _Candidate) -> Matrix | None:
    """Return the matrix as whole numbers, so that every bit counts, also those of NaN."""
    size = candidate.weight.nbytes // (candidate.rows * candidate.columns)
    try:
        data = np.frombuffer(model.raw_bytes(candidate.weight), f"u{size}")
    except ModelError:
        return None
    return data.reshape(candidate.rows, candidate.columns)


def _probe(model: ModelFile, candidate: _Candidate, *, transpose: bool) -> bytes | None:
    """Return some elements, those at the same positions of a matrix and of its transpose's.

    None for a matrix that has the same element at all of them.
    """
    matrix = _bits(model, candidate)
    if matrix is None:
        return None
    matrix = matrix.T if transpose else matrix
    numbers = np.arange(1, _PROBES + 1)
    # Multiples of irrational numbers are spread evenly, by rows as by columns.
    rows = (numbers * 0.6180339887498949 % 1 * matrix.shape[0]).astype(np.int64)
    columns = (numbers * 0.4142135623730951 % 1 * matrix.shape[1]).astype(np.int64)
    elements = matrix[rows, columns]
    return None if np.all(elements == elements[0]) else elements.tobytes()


def _equal(model: ModelFile, one: _Candidate, other: _Candidate) -> bool:
    """Compare tile by tile, of rows that stay in a cache."""
    left, right = _bits(model, one), _bits(model, other)
    if left is None or right is None:
        return False
    for row in range(0, one.rows, _TILE):
        for column in range(0, one.columns, _TILE):
            tile = left[row : row + _TILE, column : column + _TILE]
            if not np.array_equal(tile, right[column : column + _TILE, row : row + _TILE].T):
                return False
        model.release()
    return True
