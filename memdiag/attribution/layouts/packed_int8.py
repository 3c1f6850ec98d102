"""8-bit operands of matrix products and convolutions, packed for MLAS's integer kernels on x86."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from memdiag.attribution.element_values import ElementValues, unchanged_values
from memdiag.attribution.layout import Layout, LayoutHints
from memdiag.attribution.tiling import PANEL_COLUMNS, column_panel_segments, head_columns, round_up
from memdiag.attribution.virtual_copy import (
    CombineFunction,
    CopySegment,
    DeferredArray,
    VirtualCopy,
)
from memdiag.attribution.weight_operators import PACKED_INPUTS
from memdiag.model.tensor_types import Array

_SUM_ROWS = 4096
_MAX_KERNEL_POSITIONS = 512


@dataclass(frozen=True)
class _PackedForm:
    """Form in which a kernel reads a packed 8-bit operand.

    Attributes:
        group: number of rows packed together.
        flipped: whether unsigned values are converted to signed values.
        depth: number of rows in a slice.
        rows_multiple: the last slice has a multiple of these rows.
    """

    group: int
    flipped: bool = False
    depth: int = 384
    rows_multiple: int = 0

    @property
    def combine(self) -> CombineFunction | None:
        return _flip_sign_bits if self.flipped else None

    @property
    def parameters(self) -> dict[str, str]:
        return {
            "rows": str(self.group),
            "flipped": str(int(self.flipped)),
            "depth": str(self.depth),
        }

    def tile_form(self) -> "_PackedForm":
        """Return the form that kernels with AMX read: up to 1.24 for all weights, in newer releases
        for signed weights only."""
        return replace(self, depth=2048, rows_multiple=_TILE_ROWS)

    def is_plain_again(self, rows: int) -> bool:
        """Return whether a matrix of `rows` has the same form for kernels with and without AMX."""
        return (
            bool(self.rows_multiple) and rows <= _PackedForm.depth and not rows % self.rows_multiple
        )


_TILE_ROWS = 64
_SIGNED_FORMS = (_PackedForm(4), _PackedForm(4).tile_form())
_FLIPPED_FORM = _PackedForm(4, flipped=True)
_UNSIGNED_FORMS = (_PackedForm(2), _FLIPPED_FORM, _FLIPPED_FORM.tile_form())


@dataclass(frozen=True)
class PackedInt8(Layout):
    """Layout of packed 8-bit matrices: column sums, then slices of rows cut into panels.

    The column sums are int32, padded to 16 columns. Each panel has 16 columns, in groups of 4 rows
    (2 in the kernels for two unsigned operands). Padding is 0. Kernels with VNNI instructions
    convert unsigned weights to signed ones (minus 128), also in the sums. A slice has 384 rows, and
    2,048 for kernels with AMX instructions, which pad rows to a multiple of 64. A convolution's
    filter is first reordered to ``[H * W * I, O]``, with one packed matrix per group. If its zero
    point is 0, it may be one slice without sums.
    """

    name: str = "packed_int8"
    kind: str = "packed"
    packed_inputs = PACKED_INPUTS

    def candidates(self, weight: Array, hints: LayoutHints) -> Iterator[VirtualCopy]:
        """Yield the packed forms of a matrix and its transpose, or of a filter ``[O, I, …]``.

        Attention packs each head's columns separately. Weights ``[directions, K, N]`` of recurrent
        operators are packed one direction after the other (``stacked``).
        """
        if weight.dtype not in (np.int8, np.uint8) or weight.ndim < 2 or not weight.size:
            return
        forms = _SIGNED_FORMS if weight.dtype == np.int8 else _UNSIGNED_FORMS
        arrangements = list(_matrix_arrangements(weight, hints))
        for form in forms:
            for matrices, parameters in arrangements:
                if not form.is_plain_again(sum(map(len, matrices[0]))):
                    yield self._packed_copy(matrices, form, {**parameters, **form.parameters})
        if _may_be_filter(weight) and weight.dtype == np.int8 and weight.shape[1] % 4 == 0:
            positions = [unchanged_values(rows) for rows in _filter_rows(weight)]
            nbytes, segments = column_panel_segments(positions, depth=weight[0].size, group=4)
            yield VirtualCopy(self.name, self.kind, nbytes, segments, {"symmetric": "1"})

    def _packed_copy(
        self, matrices: list[list[Array]], form: _PackedForm, parameters: dict[str, str]
    ) -> VirtualCopy:
        segments: list[CopySegment] = []
        derived, unspecified = [], []
        offset = 0
        for parts in matrices:
            sum_bytes = round_up(parts[0].shape[1], PANEL_COLUMNS) * 4
            segments.append(_column_sum_segment(parts, form, offset))
            derived.append((offset, sum_bytes))
            panel_bytes, panel_segments = column_panel_segments(
                [ElementValues((part,), part.dtype, form.combine) for part in parts],
                depth=form.depth,
                group=form.group,
                rows_multiple=form.rows_multiple,
                offset=offset + sum_bytes,
            )
            segments.extend(panel_segments)
            end = offset + round_up(sum_bytes + panel_bytes)
            if end > offset + sum_bytes + panel_bytes:
                unspecified.append(
                    (offset + sum_bytes + panel_bytes, end - offset - sum_bytes - panel_bytes)
                )
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


def _matrix_arrangements(
    weight: Array, hints: LayoutHints
) -> Iterator[tuple[list[list[Array]], dict[str, str]]]:
    """Yield matrices that are packed one after the other, each in parts, and their parameters."""
    if weight.ndim == 2:
        yield [[weight]], {"transB": "0"}
        yield [[weight.T]], {"transB": "1"}
        for heads, parts in head_columns(weight.shape[1], hints.heads):
            yield [[weight[:, part]] for part in parts], {"heads": str(heads)}
        return
    if weight.ndim == 3:
        yield [[direction] for direction in weight], {"stacked": "1"}
    for groups in dict.fromkeys((*hints.groups, 1)):
        if groups >= 1 and not weight.shape[0] % groups and _may_be_filter(weight):
            filters = [_filter_rows(part) for part in np.split(weight, groups)]
            yield filters, {"groups": str(groups)}


def _may_be_filter(weight: Array) -> bool:
    """Return whether the axes of `weight` behind the second may be the positions of a filter
    kernel."""
    return weight.ndim > 2 and prod(weight.shape[2:]) <= _MAX_KERNEL_POSITIONS


def _filter_rows(filters: Array) -> list[Array]:
    """Return ``[O, I, …]`` as parts of the matrix ``[… * I, O]``, one per position of the kernel.

    Where groups of four rows span two positions, the filter is reordered as a whole.
    """
    positions = filters.reshape(*filters.shape[:2], -1).transpose(2, 1, 0)
    if filters.shape[1] % 4:
        return [positions.reshape(-1, len(filters))]
    return list(positions)


def _flip_sign_bits(values: Array) -> Array:
    return np.asarray(values ^ values.dtype.type(0x80))


def _column_sum_segment(parts: list[Array], form: _PackedForm, offset: int) -> CopySegment:
    columns = parts[0].shape[1]

    def column_sums() -> Array:
        sums = np.full(columns, -128 * form.flipped * sum(map(len, parts)), np.int64)
        for part in parts:
            for start in range(0, len(part), _SUM_ROWS):
                sums += part[start : start + _SUM_ROWS].sum(0, dtype=np.int32)
        return sums.astype(np.int32)

    source = DeferredArray((columns,), (4,), column_sums)
    return CopySegment(
        offset, np.dtype(np.int32), (round_up(columns, PANEL_COLUMNS),), (4,), (source,)
    )


LAYOUT = PackedInt8()
