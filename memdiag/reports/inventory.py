"""The report of an inventory: the weights and nodes of a model, on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from memdiag.records.dimension import Dimension
from memdiag.records.inventory import GraphValue, Inventory, WeightTotal
from memdiag.reports.console import block, line, plain_output
from memdiag.reports.table import Column, Row, Table, print_table
from memdiag.reports.text import plain, shortened
from memdiag.units import counted, format_size

if TYPE_CHECKING:
    from rich.console import Console

_MAX_OPERATORS = 12
_MAX_SUBGRAPHS = 10
_MAX_VALUES = 12
_MAX_DIMENSION = 30
_MAX_PATH = 46
_MAX_READERS = 20
_MAX_NAME = 60
_MAX_SHAPE = 80
_MIN_NAME = 24


def show(inventory: Inventory, console: Console, *, quiet: bool = False) -> None:
    """Print `inventory` on `console`; `quiet` prints only the first line."""
    with plain_output(console):
        weights = _weights(inventory.weight_count, inventory.weight_bytes)
        line(console, f"{plain(inventory.path)}: {weights}, {_nodes(inventory.node_count)}", "bold")
        if quiet:
            return
        line(console, _facts(inventory), "dim")
        block(console, _dimensions(inventory.dimensions))
        console.print()
        for title, tallies in (
            ("by type", inventory.by_dtype),
            ("by origin", inventory.by_origin),
            ("by storage", inventory.by_storage),
        ):
            line(console, f"{title:<10}  {_tallied(tallies)}" if tallies else "")
        block(console, [*_values("input", inventory.inputs), *_values("output", inventory.outputs)])
        _largest(console, inventory)
        block(console, _subgraphs(inventory))
        block(
            console,
            [
                f"external file {plain(file.name)}: {format_size(file.bytes)},"
                f" {format_size(file.used_bytes)} of it used"
                for file in inventory.external_files
            ],
        )
        block(console, [_operators(inventory)])


def _dimensions(dimensions: Sequence[Dimension]) -> list[str]:
    """Return the free dimensions with the sizes that would be chosen, and the reasons."""
    if not dimensions:
        return ["no free dimensions: all inputs have fixed sizes"]
    width = min(max(len(plain(axis.name)) for axis in dimensions), _MAX_DIMENSION)
    lines = [
        "free dimensions, and the sizes that a run tries first (others with --dim NAME=N, or where"
        " the model does not run with these)"
    ]
    for axis in dimensions[:_MAX_VALUES]:
        name = shortened(plain(axis.name), _MAX_DIMENSION)
        role = "" if axis.role == "size" else f"{plain(axis.role)}: "
        lines.append(f"  {name:<{width}}  {axis.size:>6}  {role}{plain(axis.reason)}")
    if len(dimensions) > _MAX_VALUES:
        lines.append(f"and {len(dimensions) - _MAX_VALUES:,} dimensions more")
    return lines


def _weights(count: int, nbytes: int) -> str:
    return f"{counted(count, 'weight')} of {format_size(nbytes)}"


def _name(name: str) -> str:
    return shortened(plain(name), _MAX_NAME)


def _nodes(count: int) -> str:
    return counted(count, "node")


def _facts(inventory: Inventory) -> str:
    opsets = ", ".join(f"{_name(name)} {number}" for name, number in inventory.opsets.items())
    external = inventory.external_bytes
    parts = (
        f"file {format_size(inventory.file_bytes)}",
        f"external data {format_size(external)}" if external else "",
        f"IR version {inventory.ir_version}",
        f"opset {opsets}" if opsets else "",
        f"by {_name(inventory.producer)}" if inventory.producer else "",
    )
    return " · ".join(part for part in parts if part)


def _tallied(tallies: Sequence[WeightTotal]) -> str:
    return " · ".join(
        f"{plain(tally.name)} {format_size(tally.bytes)} ({tally.count:,})" for tally in tallies
    )


def _values(noun: str, values: Sequence[GraphValue]) -> list[str]:
    lines = []
    for value in values[:_MAX_VALUES]:
        shape = "of unknown rank"
        if value.shape is not None:
            sizes = ", ".join(plain(str(size)) for size in value.shape)
            shape = f"[{shortened(sizes, _MAX_SHAPE)}]"
        lines.append(f"{noun} {_name(value.name)}: {plain(value.dtype)} {shape}")
    if len(values) > _MAX_VALUES:
        lines.append(f"and {len(values) - _MAX_VALUES:,} {noun}s more")
    return lines


def _largest(console: Console, inventory: Inventory) -> None:
    """Print the largest weights, their names in the width that the other columns leave."""
    if not inventory.largest:
        return
    headings = ("type", "shape", "size", "read by")
    rows = [
        (
            plain(weight.dtype),
            "×".join(map(str, weight.shape)) or "scalar",
            format_size(weight.bytes),
            shortened(", ".join(map(plain, weight.readers)) or "no node", _MAX_READERS),
        )
        for weight in inventory.largest
    ]
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    name_width = max(_MIN_NAME, console.width - sum(widths) - 2 * len(widths))
    dtype, shape, size, readers = headings
    console.print()
    print_table(
        console,
        Table(
            columns=(
                Column("largest weights", max_width=name_width),
                Column(dtype),
                Column(shape),
                Column(size, "right"),
                Column(readers, wraps=True),
            ),
            rows=tuple(
                Row(plain(weight.name), *cells)
                for weight, cells in zip(inventory.largest, rows, strict=True)
            ),
        ),
    )


def _subgraphs(inventory: Inventory) -> list[str]:
    rows = sorted(inventory.subgraphs, key=lambda subgraph: -subgraph.weight_bytes)
    lines = [
        f"subgraph {shortened(plain(row.path), _MAX_PATH)}: {_nodes(row.node_count)}"
        + (f", {_weights(row.weight_count, row.weight_bytes)}" if row.weight_count else "")
        for row in rows[:_MAX_SUBGRAPHS]
    ]
    if len(rows) > _MAX_SUBGRAPHS:
        lines.append(f"and {len(rows) - _MAX_SUBGRAPHS:,} subgraphs more")
    return lines


def _operators(inventory: Inventory) -> str:
    names = [
        f"{_name(f'{op.domain}.{op.op_type}' if op.domain else op.op_type)} {op.count:,}"
        for op in inventory.operators[:_MAX_OPERATORS]
    ]
    left = len(inventory.operators) - len(names)
    more = f" · and {left} more" if left > 0 else ""
    return f"operators  {' · '.join(names)}{more}" if names else ""
