"""Search for pairs of matrices where one is the transpose of the other."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from memdiag.errors import ModelError
from memdiag.model.equal_weights import MAX_DECODED_BYTES
from memdiag.model.model_file import ModelFile
from memdiag.model.tensor_types import ELEMENT_TYPES_BY_NAME, Array
from memdiag.records.weights import Weight

BitMatrix = Array

MAX_COMPARED_PARTNERS = 4
"""Maximum number of weights with an equal probe that a weight is compared with."""

_TRANSPOSE_PROBES = 32
_COMPARED_TILE_ROWS = 1024


class _WeightMatrix(NamedTuple):
    """A weight that is a matrix.

    Attributes:
        number: the index of the weight in the search.
        weight: the weight.
        rows, columns: its shape, without leading axes of length 1.
    """

    number: int
    weight: Weight
    rows: int
    columns: int


def transposed_weight_pairs(
    model_file: ModelFile, weights: Sequence[Weight]
) -> Iterator[tuple[Weight, Weight]]:
    """Yield pairs of `weights` where one is the transpose of the other, bit for bit.

    Give only one of several weights with equal content. A weight is in one pair at most; the first
    of a pair comes first in `weights`. Leading axes of length 1 are ignored.

    Matrices are left out if their elements have less than one byte or more than 8, if they are
    above `MAX_DECODED_BYTES` and their bytes are not in a file, or if their elements seem to be
    equal.
    """
    matrices_by_kind: dict[tuple[str, int, int], list[_WeightMatrix]] = defaultdict(list)
    for number, weight in enumerate(weights):
        candidate = _matrix_of_weight(number, weight)
        if candidate and (weight.file is not None or weight.nbytes <= MAX_DECODED_BYTES):
            matrices_by_kind[weight.dtype, candidate.rows, candidate.columns].append(candidate)
    for (dtype, rows, columns), candidates in matrices_by_kind.items():
        partners = matrices_by_kind.get((dtype, columns, rows))
        if rows > columns or not partners or (rows == columns and len(candidates) < 2):
            continue
        for pair in _transposed_index_pairs(model_file, candidates, partners):
            first, second = sorted(pair)
            yield weights[first], weights[second]
    model_file.release()


def _matrix_of_weight(number: int, weight: Weight) -> _WeightMatrix | None:
    shape = weight.shape
    while len(shape) > 2 and shape[0] == 1:
        shape = shape[1:]
    bits = ELEMENT_TYPES_BY_NAME[weight.dtype].bits
    if len(shape) != 2 or min(shape) < 2 or bits not in (8, 16, 32, 64):
        return None
    return _WeightMatrix(number, weight, *shape)


def _transposed_index_pairs(
    model_file: ModelFile, candidates: list[_WeightMatrix], partners: list[_WeightMatrix]
) -> Iterator[tuple[int, int]]:
    """Yield the indices of pairs: one matrix from `candidates`, its transpose from `partners`."""
    partners_by_probe: dict[bytes, list[_WeightMatrix]] = defaultdict(list)
    for partner in partners:
        probe = _probe_elements(model_file, partner, transpose=True)
        if probe is not None:
            partners_by_probe[probe].append(partner)
    paired_numbers: set[int] = set()
    for matrix in candidates:
        probe = _probe_elements(model_file, matrix, transpose=False) if partners_by_probe else None
        matches = partners_by_probe.get(probe, []) if probe is not None else []
        for partner in matches[:MAX_COMPARED_PARTNERS]:
            if matrix.number == partner.number or {matrix.number, partner.number} & paired_numbers:
                continue
            if _is_transpose(model_file, matrix, partner):
                paired_numbers |= {matrix.number, partner.number}
                yield matrix.number, partner.number
                break


def _matrix_bits(model_file: ModelFile, candidate: _WeightMatrix) -> BitMatrix | None:
    """Return the elements of a matrix as unsigned integers, so that NaN can be compared."""
    size = candidate.weight.nbytes // (candidate.rows * candidate.columns)
    try:
        data = np.frombuffer(model_file.raw_bytes(candidate.weight), f"u{size}")
    except ModelError:
        return None
    return data.reshape(candidate.rows, candidate.columns)


def _probe_elements(
    model_file: ModelFile, candidate: _WeightMatrix, *, transpose: bool
) -> bytes | None:
    """Return the elements at a few positions of a matrix, or of its transpose.

    A matrix and the transpose of its transpose have equal probes. Return None if all these elements
    are equal.
    """
    matrix = _matrix_bits(model_file, candidate)
    if matrix is None:
        return None
    matrix = matrix.T if transpose else matrix
    numbers = np.arange(1, _TRANSPOSE_PROBES + 1)
    # Multiples of irrational numbers are spread evenly, by rows as by columns.
    rows = (numbers * 0.6180339887498949 % 1 * matrix.shape[0]).astype(np.int64)
    columns = (numbers * 0.4142135623730951 % 1 * matrix.shape[1]).astype(np.int64)
    elements = matrix[rows, columns]
    return None if np.all(elements == elements[0]) else elements.tobytes()


def _is_transpose(model_file: ModelFile, first: _WeightMatrix, second: _WeightMatrix) -> bool:
    """Return whether matrix `second` is the transpose of `first`, comparing tile by tile."""
    left, right = _matrix_bits(model_file, first), _matrix_bits(model_file, second)
    if left is None or right is None:
        return False
    for row in range(0, first.rows, _COMPARED_TILE_ROWS):
        for column in range(0, first.columns, _COMPARED_TILE_ROWS):
            tile = left[row : row + _COMPARED_TILE_ROWS, column : column + _COMPARED_TILE_ROWS]
            if not np.array_equal(
                tile,
                right[column : column + _COMPARED_TILE_ROWS, row : row + _COMPARED_TILE_ROWS].T,
            ):
                return False
        model_file.release()
    return True
