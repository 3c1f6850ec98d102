"""8-bit operands packed for the runtime's integer matrix kernels on x86, and their convolutions."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memdiag.attribution.layouts.copy import VirtualCopy
from memdiag.attribution.layouts.panels import WIDTH, aligned, head_columns, panels
from memdiag.attribution.layouts.segment import Combine, Deferred, Segment
from memdiag.attribution.layouts.uses import Uses
from memdiag.attribution.layouts.values import Values, own

Array = NDArray[Any]

_DEPTH = 384
_SUM_ROWS = 4096
_MOST_PLACES = 512


@dataclass(frozen=True)
class _Form:
    """How a kernel wants its operand: rows packed together, unsigned values made signed."""

    group: int
    flipped: bool = False

    @property
    def combine(self) -> Combine | None:
        return _flip if self.flipped else None


_SIGNED = (_Form(4),)
_UNSIGNED = (_Form(2), _Form(4, flipped=True))


@dataclass(frozen=True)
class PackedInt8:
    """Column sums (int32, padded to 16 columns), then slices of 384 rows cut into panels.

    Each panel holds 16 columns, 4 rows at a time (2 in the kernels for two unsigned operands);
    padding is 0. Kernels with VNNI instructions take unsigned weights as signed ones, 128 less,
    and sum them as such. A convolution's filter is first brought to ``[H * W * I, O]``, one
    packed matrix a group; where its zero point is 0 it may be one slice without sums.
    """

    name: str = "packed_int8"
    kind: str = "packed"

    def candidates(self, weight: Array, uses: Uses) -> Iterator[VirtualCopy]:
        """Yield the packings of a matrix and of its transpose, or those of a filter ``[O, I, …]``.

        Attention packs each head's columns apart. Weights ``[directions, K, N]`` of recurrent
        operators are packed one direction after the other (``stacked``).
        """
        if weight.dtype not in (np.int8, np.uint8) or weight.ndim < 2 or not weight.size:
            return
        forms = _SIGNED if weight.dtype == np.int8 else _UNSIGNED
        for form in forms:
            known = {"rows": str(form.group), "flipped": str(int(form.flipped))}
            if weight.ndim == 2:
                yield self._packed([[weight]], form, {"transB": "0", **known})
                yield self._packed([[weight.T]], form, {"transB": "1", **known})
                for heads, parts in head_columns(weight.shape[1], uses.heads):
                    matrices = [[weight[:, part]] for part in parts]
                    yield self._packed(matrices, form, {"heads": str(heads), **known})
                continue
            if weight.ndim == 3:
                matrices = [[direction] for direction in weight]
                yield self._packed(matrices, form, {"stacked": "1", **known})
            for groups in dict.fromkeys((*uses.groups, 1)):
                if groups < 1 or weight.shape[0] % groups or not _is_filter(weight):
                    continue
                filters = [_rows(part) for part in np.split(weight, groups)]
                yield self._packed(filters, form, {"groups": str(groups), **known})
        if _is_filter(weight) and weight.dtype == np.int8 and weight.shape[1] % 4 == 0:
            places = [own(place) for place in _rows(weight)]
            nbytes, segments = panels(places, depth=weight[0].size, group=4)
            yield VirtualCopy(self.name, self.kind, nbytes, segments, {"symmetric": "1"})

    def _packed(
        self, matrices: list[list[Array]], form: _Form, parameters: dict[str, str]
    ) -> VirtualCopy:
        segments: list[Segment] = []
        derived, unspecified = [], []
        offset = 0
        for parts in matrices:
            columns = aligned(parts[0].shape[1], WIDTH) * 4
            segments.append(_sums(parts, form, offset))
            derived.append((offset, columns))
            size, found = panels(
                [Values((part,), part.dtype, form.combine) for part in parts],
                depth=_DEPTH,
                group=form.group,
                offset=offset + columns,
            )
            segments.extend(found)
            end = offset + aligned(columns + size)
            if end > offset + columns + size:
                unspecified.append((offset + columns + size, end - offset - columns - size))
            offset = end
        return VirtualCopy(
            self.name,
            self.kind,
            offset,
            tuple(segments),
            parameters,
            tuple(unspecified),
            tuple(derived),
        )


def _is_filter(weight: Array) -> bool:
    """Tell whether a weight may be a convolution's: other stacks have far more than its places."""
    return weight.ndim > 2 and prod(weight.shape[2:]) <= _MOST_PLACES


def _rows(filters: Array) -> list[Array]:
    """Return ``[O, I, …]`` as the parts of the matrix ``[… * I, O]``, one a place of the kernel.

    Where the kernels' groups of four rows reach over two places, the filter is moved as a whole.
    """
    places = filters.reshape(*filters.shape[:2], -1).transpose(2, 1, 0)
    if filters.shape[1] % 4:
        return [places.reshape(-1, len(filters))]
    return list(places)


def _flip(values: Array) -> Array:
    return np.asarray(values ^ values.dtype.type(0x80))


def _sums(parts: list[Array], form: _Form, offset: int) -> Segment:
    columns = parts[0].shape[1]

    def total() -> Array:
        sums = np.full(columns, -128 * form.flipped * sum(map(len, parts)), np.int64)
        for part in parts:
            for start in range(0, len(part), _SUM_ROWS):
                sums += part[start : start + _SUM_ROWS].sum(0, dtype=np.int32)
        return sums.astype(np.int32)

    source = Deferred((columns,), (4,), total)
    return Segment(offset, np.dtype(np.int32), (aligned(columns, WIDTH),), (4,), (source,))


LAYOUT = PackedInt8()
