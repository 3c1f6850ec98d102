"""Who owns the memory, on a terminal: as a part of a profile's summary, or an X-ray by itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memdiag.records.attribution import Attribution
from memdiag.reports.terminal import block, draw, encodable, files, labelled, line
from memdiag.reports.views import attribution as view
from memdiag.reports.views import insight, owner_table
from memdiag.reports.views.text import shortened
from memdiag.units import format_size

if TYPE_CHECKING:
    from rich.console import Console

_MOST_WEIGHTS = 8
_MAX_MODELS = 12
_LONGEST_LABEL = 30
_LONGEST_BACKING = 24
_NARROWEST_MAKER = 30
_SHORTEST_MAKER = 12


def show_attribution(
    attribution: Attribution,
    console: Console,
    *,
    written: Sequence[Path] = (),
    quiet: bool = False,
) -> None:
    """Print `attribution` on `console`; `quiet` prints the answer only.

    `written` are the files to name.

    Names are printed as they are, never as markup, and nothing is told by colour alone.
    """
    draw(console, lambda: _show(attribution, console, quiet, written))


def section(
    attribution: Attribution, console: Console, *, heading: str, trimmed_bytes: int = 0
) -> None:
    """Print the owners, the weights with several copies, and remarks, below a blank line."""
    owned = view.build(attribution, trimmed_bytes=trimmed_bytes)
    console.print()
    _owners(console, owned, heading)
    _weights(console, owned)
    block(console, owned.remarks)


def _owners(console: Console, owned: view.Owned, heading: str) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column(heading, no_wrap=True)
    table.add_column("MiB", justify="right", no_wrap=True)
    table.add_column("of all", justify="right", no_wrap=True)
    table.add_column("what it is", overflow="fold")
    digits = owner_table.decimals(sum(row.size_bytes for row in owned.owners))
    for row in owned.owners:
        size = owner_table.short_size(row.size_bytes, digits)
        cells = (row.label, size, row.percent, row.sentence)
        table.add_row(*(Text(encodable(console, cell)) for cell in cells))
    console.print(table)
    line(console, f"{owned.share}.", "dim")


def _show(attribution: Attribution, console: Console, quiet: bool, written: Sequence[Path]) -> None:
    found = insight.build(attribution)
    line(console, f"process {attribution.pid}: {found.headline}.", "bold")
    if quiet:
        return
    owned = view.build(attribution)
    console.print()
    for number, advice in enumerate(found.advice):
        labelled(console, "" if number else "What to do", advice)
    if not found.advice:
        labelled(console, "What to do", "Nothing: no large part of this memory is unused.")
    if owned.models:
        console.print()
        _models(console, owned.models)
    section(attribution, console, heading="owner")
    line(console, f"{owned.timing}.", "dim")
    files(console, written)


def _models(console: Console, models: Sequence[view.ModelRow]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("model", overflow="fold")
    headings, rows = view.model_table(models[:_MAX_MODELS])
    for heading in headings[1:]:
        table.add_column(heading, justify="right", no_wrap=True)
    for cells in rows:
        table.add_row(*(Text(encodable(console, cell)) for cell in cells))
    console.print(table)
    if len(models) > _MAX_MODELS:
        size = format_size(sum(row.size_bytes for row in models[_MAX_MODELS:]))
        line(console, f"{len(models) - _MAX_MODELS} models more: {size}")
    line(console, view.PER_MODEL, "dim")


def _weights(console: Console, owned: view.Owned) -> None:
    shown = owned.repeated[:_MOST_WEIGHTS]
    console.print()
    if not owned.weights:
        line(console, f"{owned.first[:1].upper()}{owned.first[1:]}.")
    elif shown:
        _copies(console, shown)
        line(console, view.rest(owned.repeated[_MOST_WEIGHTS:]))
    line(console, f"{owned.single}." if owned.single else "")


def _copies(console: Console, shown: Sequence[view.WeightRow]) -> None:
    # One precision for the column, as figures below each other must be comparable.
    digits = owner_table.decimals(max(row.size_bytes for each in shown for row in each.copies))
    sizes = [_size(row, digits) for weight in shown for row in weight.copies]
    headings = ("weight", "copies", "MiB", "backing")
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
