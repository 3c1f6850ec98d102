"""The tables of an estimate: phases, terms, tensors in memory, and points."""

from __future__ import annotations

from memdiag.records.dimension import typed_names
from memdiag.records.estimate import Estimate, EstimatedPoint, LiveTensor
from memdiag.records.phases import RUN_PHASES
from memdiag.reports.estimate.sentences import process_peak_interval
from memdiag.reports.table import Cell, Column, Row, Table
from memdiag.reports.text import plain, shortened
from memdiag.units import format_size

TERM_COLORS: dict[str, str] = {
    "runtime": "runtime_libraries",
    "graph": "python",
    "model file": "other_heap",
    "weights": "original",
    "mapped weights": "external_data",
    "stale weights": "thread_stacks",
    "weight being converted": "cast",
    "folded constants": "transposed",
    "operands of folding": "dequantized",
    "fused weights": "fused",
    "reordered filters": "reordered",
    "packed weights": "packed",
    "tree tables": "provider_libraries",
    "activations": "arena",
    "KV cache": "kv_cache",
    "planned block": "allocator_retained",
    "unused arena": "unnamed",
    "kernel scratch": "mapped_files",
    "freed heap": "other_libraries",
}
"""The kind of copy or owner whose colour each term has."""

MAX_LIVE_TENSORS = 8
"""Tensors that a terminal and Markdown list."""

MAX_GRID_COLUMNS = 6
"""Sizes of the second dimension up to which points of two dimensions form a grid."""

MAX_ESTIMATE_NAME = 40

MAX_TENSOR_TYPE = 24

_GRID_MARKS = {"yes": "", "probably": "?", "probably not": "?", "unknown": "?", "no": "✗"}

OPTIONAL_POINT_COLUMNS = ("in phase", "after runs", "interval")
"""Columns that a narrow terminal omits for points of many dimensions, the first one first."""


def estimated_phase_table(estimate: Estimate) -> Table:
    """Return peak and kept memory of each phase, also of the whole process if that is known.

    Runs with values of unknown size take at least these sizes.
    """
    point, is_known = estimate.point, estimate.baseline_bytes is not None
    base_bytes = estimate.beside_bytes(point)
    rows = []
    for phase in point.phases:
        sizes = [phase.peak_bytes, phase.kept_bytes]
        if is_known:
            sizes += [phase.peak_bytes + base_bytes, phase.kept_bytes + base_bytes]
        prefix = "≥ " if point.unknown_values and phase.name in RUN_PHASES else ""
        rows.append(
            Row(
                phase.name,
                *(_estimated_size_cell(size, prefix) for size in sizes),
                Cell(plain(phase.cause), is_code=True),
                is_strong=phase.name == point.peak_phase,
            )
        )
    totals = ("total peak", "total kept") if is_known else ()
    return Table(
        columns=(
            Column("phase"),
            *(Column(name, "right", css="strong") for name in ("peak", "kept", *totals)),
            Column("peak at", wraps=True, max_width=MAX_ESTIMATE_NAME, css="name"),
        ),
        rows=tuple(rows),
    )


def term_table(estimate: Estimate) -> Table:
    """Return the parts of the peak and of the steady state, the largest first."""
    point = estimate.point
    peak_term_by_name = {term.name: term for term in point.peak.peak_terms}
    kept_term_by_name = {term.name: term for term in point.phases[-1].kept_terms}
    term_mappings = (peak_term_by_name, kept_term_by_name)
    names = sorted(
        dict.fromkeys([*peak_term_by_name, *kept_term_by_name]),
        key=lambda name: -max(terms[name].bytes for terms in term_mappings if name in terms),
    )
    rows = []
    for name in names:
        terms = [term_by_name.get(name) for term_by_name in term_mappings]
        largest_part = next((term.largest for term in terms if term and term.largest), "")
        rows.append(
            Row(
                Cell(name, color=f"var(--{TERM_COLORS[name].replace('_', '-')})"),
                *(_estimated_size_cell(term.bytes) if term else Cell() for term in terms),
                Cell(plain(largest_part), is_code=True),
            )
        )
    return Table(
        columns=(
            Column("memory for"),
            Column("at peak", "right"),
            Column("after runs", "right"),
            Column("largest part", wraps=True, max_width=MAX_ESTIMATE_NAME, css="name"),
        ),
        rows=tuple(rows),
    )


def live_tensor_table(point: EstimatedPoint, *, max_tensors: int | None = None) -> Table:
    """Return the tensors in memory at the peak of a run, at most `max_tensors` of them."""
    has_growth = any(tensor.growth for tensor in point.live)
    rows = [
        Row(
            Cell(
                shortened(plain(tensor.name), MAX_ESTIMATE_NAME)
                + (tensor.form and f", {tensor.form}"),
                is_code=True,
                title=plain(tensor.name),
            ),
            f"{plain(tensor.dtype)} {'×'.join(map(str, tensor.shape)) or 'scalar'}",
            _estimated_size_cell(tensor.bytes),
            *((tensor_growth_text(tensor),) if has_growth else ()),
            Cell(plain(tensor.producer), is_code=True),
            Cell(plain(tensor.last_use), is_code=True),
        )
        for tensor in point.live[:max_tensors]
    ]
    return Table(
        columns=(
            Column("tensor", wraps=True, css="name", max_width=MAX_ESTIMATE_NAME),
            Column("type", max_width=MAX_TENSOR_TYPE),
            Column("size", "right"),
            *((Column("grows with", max_width=MAX_TENSOR_TYPE),) if has_growth else ()),
            Column("computed by", wraps=True, css="name", max_width=MAX_ESTIMATE_NAME),
            Column("last read by", wraps=True, css="name", max_width=MAX_ESTIMATE_NAME),
        ),
        rows=tuple(rows),
    )


def tensor_growth_text(tensor: LiveTensor) -> str:
    """Return the dimensions with which a tensor grows: ``batch·tokens²``."""
    powers = {2.0: "", 4.0: "²", 8.0: "³"}
    return "·".join(
        plain(name) + powers.get(factor, f" (×{factor:.3g} if doubled)")
        for name, factor in tensor.growth.items()
    )


def point_table(estimate: Estimate) -> Table:
    """Return a row for each point; no rows if there is only one point."""
    names, typed = estimate.varied, typed_names(estimate.dimensions)
    points = estimate.points if len(estimate.points) > 1 else ()
    base_bytes_of = estimate.beside_bytes
    limit = _fit_limit_bytes(estimate)
    return Table(
        columns=(
            *(Column(shortened(plain(typed[name]), 16), "right") for name in names),
            Column("peak", "right", css="strong"),
            Column("interval", "right"),
            Column("in phase"),
            Column("after runs", "right"),
            *((Column("fits"),) if limit is not None else ()),
        ),
        rows=tuple(
            Row(
                *(_dimension_size_cell(point.dims[name]) for name in names),
                _estimated_size_cell(
                    point.peak_bytes + base_bytes_of(point), _lower_bound_mark(point)
                ),
                _point_interval_text(estimate, point),
                point.peak_phase,
                _estimated_size_cell(
                    point.steady_bytes + base_bytes_of(point), _lower_bound_mark(point)
                ),
                *((estimate.fits(point, limit),) if limit is not None else ()),
            )
            for point in points
        ),
    )


def _lower_bound_mark(point: EstimatedPoint) -> str:
    """Return the mark of sizes at `point` if they are lower bounds; empty if they are not."""
    return "≥ " if point.unknown_values and not point.is_measured else ""


def _point_interval_text(estimate: Estimate, point: EstimatedPoint) -> str:
    if point.is_floor:
        return f"at least {format_size(point.low_bytes + estimate.beside_bytes(point))}"
    return process_peak_interval(estimate, point)


def point_grid(estimate: Estimate) -> Table | None:
    """Return the peaks over two dimensions as a grid; None for other points and for wide grids."""
    if len(estimate.varied) != 2:
        return None
    row_name, column_name = estimate.varied
    typed = typed_names(estimate.dimensions)
    column_heading = shortened(plain(typed[column_name]), 9)
    row_sizes = sorted({point.dims[row_name] for point in estimate.points})
    column_sizes = sorted({point.dims[column_name] for point in estimate.points})
    point_by_sizes = {
        (point.dims[row_name], point.dims[column_name]): point for point in estimate.points
    }
    if len(column_sizes) > MAX_GRID_COLUMNS:
        return None
    return Table(
        columns=(
            Column("peak", "right"),
            *(
                Column(f"{column_heading} {size}" if not index else f"{size}", "right")
                for index, size in enumerate(column_sizes)
            ),
        ),
        rows=tuple(
            Row(
                f"{shortened(plain(typed[row_name]), 9)} {size}",
                *(
                    _grid_peak_text(estimate, point_by_sizes.get((size, column_size)))
                    for column_size in column_sizes
                ),
            )
            for size in row_sizes
        ),
        caption=_grid_caption(estimate),
    )


def _grid_peak_text(estimate: Estimate, point: EstimatedPoint | None) -> str:
    if point is None:
        return ""
    if not estimate.may_run(point):
        return "does not run"
    size = format_size(point.peak_bytes + estimate.beside_bytes(point))
    limit = _fit_limit_bytes(estimate)
    mark = "" if limit is None else _GRID_MARKS[estimate.fits(point, limit)]
    return f"{size} {mark}" if mark else size


def _grid_caption(estimate: Estimate) -> str:
    """Return the meaning of the marks in the grid of `estimate`."""
    limit = _fit_limit_bytes(estimate)
    if limit is None:
        return ""
    answers = {estimate.fits(point, limit) for point in estimate.points}
    uncertain_text = "? may not fit: the limit is inside the interval"
    is_uncertain = not answers <= {"yes", "no", "does not run"}
    return f"✗ does not fit; {uncertain_text}" if is_uncertain else "✗ does not fit"


def _fit_limit_bytes(estimate: Estimate) -> int | None:
    return estimate.fit.limit_bytes if estimate.fit else None


def _estimated_size_cell(size: int, prefix: str = "") -> Cell:
    return Cell(f"{prefix}{format_size(size)}", title=f"{size:,} bytes", sort_key=size)


def _dimension_size_cell(size: int) -> Cell:
    return Cell(f"{size:,}", sort_key=size)
