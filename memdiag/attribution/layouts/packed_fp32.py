"""fp32 operands of MatMul, Gemm, LSTM, GRU and Attention, packed for MLAS's kernels on x86."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from memdiag.attribution.element_values import ElementValues, fp32_values
from memdiag.attribution.layout import Layout, LayoutHints
from memdiag.attribution.tiling import PANEL_COLUMNS, column_panel_segments, head_columns, round_up
from memdiag.attribution.virtual_copy import CopySegment, VirtualCopy
from memdiag.attribution.weight_operators import PACKED_INPUTS
from memdiag.model.tensor_types import Array

_FP32_SLICE_ROWS = 256


@dataclass(frozen=True)
class PackedFp32(Layout):
    """Layout of matrices in slices of 256 rows, cut into panels of 16 columns padded with zeros."""

    name: str = "packed_fp32"
    kind: str = "packed"
    packed_inputs = PACKED_INPUTS
    reserves_buffer = True

    def candidates(self, weight: Array, hints: LayoutHints) -> Iterator[VirtualCopy]:
        """Yield the packed matrix and the packed transpose (``transB``).

        A matrix of exactly 16 columns equals its packed form and is skipped. Stacks of matrices are
        not packed, except the weights of LSTM and GRU, ``[directions, gates * H, K]``: each
        direction is packed like a ``transB`` operand, and a GRU's ``[directions, 3 * H, H]`` also
        in two parts, the first two gates and the last gate. Attention packs each head's columns
        separately, into one buffer each for queries, keys and values.
        """
        if weight.ndim not in (2, 3) or not weight.size:
            return
        for values in fp32_values(weight, hints):
            if weight.ndim == 3:
                yield from self._recurrent_copies(values)
                continue
            if weight.shape[1] != PANEL_COLUMNS or values.combine is not None:
                yield self._packed_copy([values], {"transB": "0", **values.parameters})
            transposed = values.viewed(np.transpose)
            yield self._packed_copy([transposed], {"transB": "1", **values.parameters})
            for heads, slices in head_columns(weight.shape[1], hints.heads):
                for operand_index, operand in enumerate("QKV"):
                    heads_columns = slices[operand_index * heads : (operand_index + 1) * heads]
                    matrices = [
                        values.viewed(partial(_column_slice, columns=columns))
                        for columns in heads_columns
                    ]
                    parameters = {"heads": str(heads), "operand": operand, **values.parameters}
                    yield self._packed_copy(matrices, parameters)

    def _recurrent_copies(self, values: ElementValues) -> Iterator[VirtualCopy]:
        directions, outputs, inputs = values.shape
        parts = {"all": slice(0, outputs)}
        if outputs == 3 * inputs:
            parts |= {"zr": slice(0, 2 * inputs), "h": slice(2 * inputs, outputs)}
        for gates, rows in parts.items():
            matrices = [
                values.viewed(partial(_direction_matrix, number=number, rows=rows))
                for number in range(directions)
            ]
            yield self._packed_copy(matrices, {"transB": "1", "gates": gates, **values.parameters})

    def _packed_copy(
        self, matrices: list[ElementValues], parameters: dict[str, str]
    ) -> VirtualCopy:
        segments: tuple[CopySegment, ...] = ()
        gaps = []
        offset = 0
        for matrix in matrices:
            nbytes, matrix_segments = column_panel_segments(
                (matrix,), depth=_FP32_SLICE_ROWS, offset=offset
            )
            end = round_up(offset + nbytes)
            if end > offset + nbytes:
                gaps.append((offset + nbytes, end - offset - nbytes))
            segments += matrix_segments
            offset = end
        return VirtualCopy(self.name, self.kind, offset, segments, parameters, tuple(gaps))


def _column_slice(source: Array, columns: slice) -> Array:
    return source[:, columns]


def _direction_matrix(source: Array, number: int, rows: slice) -> Array:
    return source[number, rows].T


LAYOUT = PackedFp32()
