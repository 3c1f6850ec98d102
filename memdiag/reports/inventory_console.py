"""The inventory of a model, on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from memdiag.records.dimension import Dimension
from memdiag.records.inventory import GraphValue, Inventory, Tally
from memdiag.reports.terminal import block, draw, line
from memdiag.reports.views.text import plain, shortened
from memdiag.units import format_size

if TYPE_CHECKING:
    from rich.console import Console

_MOST_OPERATORS = 12
_MOST_SUBGRAPHS = 10
_MOST_VALUES = 12
_LONGEST_DIMENSION = 30
_LONGEST_PATH = 46
_LONGEST_READERS = 20
_LONGEST_NAME = 60
_LONGEST_SHAPE = 80
_SHORTEST_NAME = 24


def show_inventory(inventory: Inventory, console: Console, *, quiet: bool = False) -> None:
    """Print `inventory` on `console`; `quiet` prints the first line only."""
    draw(console, lambda: _show(inventory, console, quiet))


def _show(inventory: Inventory, console: Console, quiet: bool) -> None:
    weights = _weights(inventory.weight_count, inventory.weight_bytes)
    line(console, f"{plain(inventory.path)}: {weights}, {_nodes(inventory.node_count)}", "bold")
    if quiet:
        return
    line(console, _facts(inventory), "dim")
    block(console, _dimensions(inventory.dimensions))
    console.print()
    for title, tallies in (
        ("by type", inventory.by_dtype),
        ("by place", inventory.by_place),
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
    """Return the free dimensions with the sizes that would be chosen, and why."""
    if not dimensions:
        return ["no free dimensions: all inputs have fixed sizes"]
    width = min(max(len(plain(one.name)) for one in dimensions), _LONGEST_DIMENSION)
    lines = ["free dimensions, and the sizes that are chosen without --dim NAME=N"]
    for one in dimensions[:_MOST_VALUES]:
        name = shortened(plain(one.name), _LONGEST_DIMENSION)
        role = "" if one.role == "size" else f"{plain(one.role)}: "
        lines.append(f"  {name:<{width}}  {one.size:>6}  {role}{plain(one.reason)}")
    if len(dimensions) > _MOST_VALUES:
        lines.append(f"and {len(dimensions) - _MOST_VALUES:,} dimensions more")
    return lines


def _weights(count: int, nbytes: int) -> str:
    return f"{count:,} weight{'' if count == 1 else 's'} of {format_size(nbytes)}"


def _name(name: str) -> str:
    return shortened(plain(name), _LONGEST_NAME)


def _nodes(count: int) -> str:
    return f"{count:,} node{'' if count == 1 else 's'}"


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


def _tallied(tallies: Sequence[Tally]) -> str:
    return " · ".join(
        f"{plain(one.name)} {format_size(one.bytes)} ({one.count:,})" for one in tallies
    )


def _values(noun: str, values: Sequence[GraphValue]) -> list[str]:
    lines = []
    for value in values[:_MOST_VALUES]:
        shape = "of unknown rank"
        if value.shape is not None:
            sizes = ", ".join(plain(str(size)) for size in value.shape)
            shape = f"[{shortened(sizes, _LONGEST_SHAPE)}]"
        lines.append(f"{noun} {_name(value.name)}: {plain(value.dtype)} {shape}")
    if len(values) > _MOST_VALUES:
        lines.append(f"and {len(values) - _MOST_VALUES:,} {noun}s more")
    return lines


def _largest(console: Console, inventory: Inventory) -> None:
    if not inventory.largest:
        return
    headings = ("type", "shape", "size", "read by")
    rows = [
        (
            plain(one.dtype),
            "×".join(map(str, one.shape)) or "scalar",
            format_size(one.bytes),
            shortened(", ".join(map(plain, one.readers)) or "nobody", _LONGEST_READERS),
        )
        for one in inventory.largest
    ]
    widths = [max(len(cells[i]) for cells in (headings, *rows)) for i in range(4)]
    longest = max(_SHORTEST_NAME, console.width - sum(widths) - 2 * len(widths))
    names = [shortened(plain(one.name), longest) for one in inventory.largest]
    width = max(map(len, ("largest weights", *names)))
    block(console, [_aligned("largest weights", headings, width, widths)])
    for name, cells in zip(names, rows, strict=True):
        line(console, _aligned(name, cells, width, widths))


def _aligned(name: str, cells: Sequence[str], width: int, widths: Sequence[int]) -> str:
    dtype, shape, size, readers = cells
    return (
        f"{name:<{width}}  {dtype:<{widths[0]}}  {shape:<{widths[1]}}  {size:>{widths[2]}}"
        f"  {readers}"
    )


def _subgraphs(inventory: Inventory) -> list[str]:
    rows = sorted(inventory.subgraphs, key=lambda one: -one.weight_bytes)
    lines = [
        f"subgraph {shortened(plain(one.path), _LONGEST_PATH)}: {_nodes(one.node_count)}"
        + (f", {_weights(one.weight_count, one.weight_bytes)}" if one.weight_count else "")
        for one in rows[:_MOST_SUBGRAPHS]
    ]
    if len(rows) > _MOST_SUBGRAPHS:
        lines.append(f"and {len(rows) - _MOST_SUBGRAPHS:,} subgraphs more")
    return lines


def _operators(inventory: Inventory) -> str:
    shown = [
        f"{_name(f'{one.domain}.{one.op_type}' if one.domain else one.op_type)} {one.count:,}"
        for one in inventory.operators[:_MOST_OPERATORS]
    ]
    left = len(inventory.operators) - len(shown)
    more = f" · and {left} more" if left > 0 else ""
    return f"operators  {' · '.join(shown)}{more}" if shown else ""
