"""Who owns the memory, on a terminal: as a part of a profile's summary, or an X-ray by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from memdiag.records.attribution import Attribution
from memdiag.reporters.terminal import block, draw, encodable, line
from memdiag.reporters.views import attribution as view
from memdiag.reporters.views import owner_table
from memdiag.reporters.views.text import shortened
from memdiag.units import format_size

if TYPE_CHECKING:
    from rich.console import Console

_MOST_WEIGHTS = 8
_LONGEST_LABEL = 30
_LONGEST_BACKING = 24
_NARROWEST_MAKER = 30
_SHORTEST_MAKER = 12


def show_attribution(attribution: Attribution, console: Console, *, quiet: bool = False) -> None:
    """Print `attribution` on `console`; `quiet` prints the answer only.

    Names are printed as they are, never as markup, and nothing is told by colour alone.
    """
    draw(console, lambda: _show(attribution, console, quiet))


def section(attribution: Attribution, console: Console, *, heading: str) -> None:
    """Print the weights, the owners and what is to be said of them, below a blank line."""
    owned = view.build(attribution)
    console.print()
    _weights(console, owned, heading)
    block(console, [owned.owner_line, f"{owned.share}."])
    block(console, owned.remarks)


def _show(attribution: Attribution, console: Console, quiet: bool) -> None:
    owned = view.build(attribution)
    size = format_size(attribution.resident_bytes)
    line(console, f"process {attribution.pid}: {size} resident; {owned.share}.", "bold")
    if owned.weights:
        line(console, f"{owned.weights[0].titled(160)}: {owned.weights[0].summary}.")
    else:
        line(console, "No weight was found in it; check that it runs the model that was given.")
    if quiet:
        return
    line(console, owned.timing, "dim")
    section(attribution, console, heading="who owns it")


def _weights(console: Console, owned: view.Owned, heading: str) -> None:
    shown = owned.weights[:_MOST_WEIGHTS]
    if not shown:
        line(console, f"{heading}: {owned.first}")
        return
    # One precision for the column, as figures below each other must be comparable.
    digits = owner_table.decimals(max(row.size_bytes for each in shown for row in each.copies))
    sizes = [_size(row, digits) for weight in shown for row in weight.copies]
    headings = (heading, "copies", "MiB", "backing")
    for brief in (False, True):
        rows = [_cells(row, brief) for weight in shown for row in weight.copies]
        table = [
            (label, count, size, backing)
            for (label, count, backing, _), size in zip(rows, sizes, strict=True)
        ]
        widths = [max(len(cells[i]) for cells in (headings, *table)) for i in range(4)]
        left = console.width - sum(widths) - 2 * len(widths)
        if left >= _NARROWEST_MAKER:
            break
    left = max(_SHORTEST_MAKER, left)
    makers = [shortened(maker, left) for *_, maker in rows]
    line(console, _aligned((*headings, "made by" if any(makers) else ""), widths), "dim")
    lines = iter(
        _aligned((*cells, maker), widths) for cells, maker in zip(table, makers, strict=True)
    )
    for weight in shown:
        summary = f": {weight.summary}"
        line(console, _fitted(console, weight, summary), "bold")
        for _ in weight.copies:
            line(console, next(lines))
    line(console, view.rest(owned.weights[_MOST_WEIGHTS:]))


def _cells(row: view.CopyRow, brief: bool) -> tuple[str, str, str, str]:
    """Return the label, the count, the backing and the maker of `row`.

    Where it has to be `brief`, a layout's parameters and a file's name are left out.
    """
    detailed = row.parameters and not brief
    label = f"  {row.label} ({row.parameters})" if detailed else f"  {row.label}"
    if len(label) > _LONGEST_LABEL:
        label = f"  {shortened(row.label, _LONGEST_LABEL - 2)}"
    longest = _LONGEST_BACKING - (len(", freed") if row.is_freed else 0)
    backing = row.backing.partition(":")[0] if brief else row.backing
    backing = shortened(backing, longest) + (", freed" if row.is_freed else "")
    return label, f"{row.count:,}", backing, row.made_by


def _size(row: view.CopyRow, digits: int) -> str:
    size = owner_table.short_size(row.size_bytes, digits)
    resident = owner_table.short_size(row.resident_bytes, digits)
    return size if size == resident else f"{resident} of {size}"


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    label, count, size, backing, maker = cells
    return (
        f"{label:<{widths[0]}}  {count:>{widths[1]}}  {size:>{widths[2]}}"
        f"  {backing:<{widths[3]}}  {maker}"
    ).rstrip()


def _fitted(console: Console, weight: view.WeightRow, summary: str) -> str:
    """Return the weight's own line; the name gives way, not what is said of it."""
    title = weight.titled(max(20, console.width - len(summary)))
    return encodable(console, f"{title}{summary}")
