"""Column panels: how the runtime's matrix kernels want their right-hand operand."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from numpy.typing import NDArray

from memdiag.attribution.layouts.segment import Segment
from memdiag.attribution.layouts.tiled import tiled
from memdiag.attribution.layouts.values import Values

Array = NDArray[Any]

WIDTH = 16
"""Columns of a panel; the last one is padded to it."""

_ORDER = ((0, "outer"), (2, "outer"), (1, "outer"), (2, "inner"), (1, "inner"))


def panels(
    parts: Sequence[Values],
    *,
    depth: int,
    group: int = 1,
    offset: int = 0,
) -> tuple[int, tuple[Segment, ...]]:
    """Return (bytes, segments) of a ``[K, N]`` matrix cut into panels of 16 columns.

    The matrix is given as `parts`, one below the other, each but the last a multiple of `group`
    rows high, as is `depth`. Its rows are cut into slices of `depth` (the last one is shorter);
    each slice is panel after panel, each panel ``[rows / group][16][group]``. Columns are padded
    to a whole panel and rows to a whole `group`, with zeros.
    """
    rows = sum(part.shape[0] for part in parts)
    columns = parts[0].shape[1]
    itemsize = parts[0].dtype.itemsize
    pitch = aligned(columns, WIDTH) * itemsize
    segments: tuple[Segment, ...] = ()
    first = 0
    for part in parts:
        height, done = part.shape[0], 0
        while done < height:
            inside = (first + done) % depth
            begin = first + done - inside
            count, length = (height - done) // depth, depth
            if inside or not count:
                count, length = 1, min(depth - inside, height - done)
            padded = aligned(min(depth, rows - begin), group)
            _, found = tiled(
                part.viewed(partial(_slices, start=done, shape=(count, length, columns))),
                (1, group, WIDTH),
                _ORDER,
                offset=offset + begin * pitch + inside * WIDTH * itemsize,
                strides=(
                    depth * pitch,
                    padded * WIDTH * itemsize,
                    WIDTH * group * itemsize,
                    group * itemsize,
                    itemsize,
                ),
            )
            segments += found
            done += count * length
        first += height
    return aligned(rows, group) * pitch, segments


def head_columns(columns: int, heads: Sequence[int]) -> Iterator[tuple[int, list[slice]]]:
    """Yield (heads, the columns of each head of query, key and value) as Attention packs them."""
    for count in dict.fromkeys(heads):
        if count > 0 and columns % (3 * count) == 0:
            size = columns // (3 * count)
            yield count, [slice(first, first + size) for first in range(0, columns, size)]


def aligned(size: int, alignment: int = 64) -> int:
    """Return `size` rounded up to a multiple of `alignment`."""
    return -(-size // alignment) * alignment


def _slices(source: Array, start: int, shape: tuple[int, int, int]) -> Array:
    return source[start : start + shape[0] * shape[1]].reshape(shape)
