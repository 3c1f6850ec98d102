"""The table of the blocks of malloc that grew."""

from collections.abc import Sequence

from memdiag.records.growth import GrowingBlocks, GrowingOwner, Growth
from memdiag.reports.table import Cell, Column, Row, Table
from memdiag.reports.text import plain
from memdiag.units import format_size

MAX_BLOCK_ROWS = 12

MIN_GROWN_BLOCKS = 8
"""Fewer blocks of a size are no steady growth: that needs one between any two moments."""


def malloc_block_table(growth: Growth) -> Table:
    """Return the table of blocks that grew, most bytes first.

    It has no rows where the growth is not of memory in use: a few blocks more are no finding.
    """
    grows = growth.is_host_leak_or_kept or growth.verdict == "undecided"
    is_evidence = growth.slope is not None and grows
    grown = [each for each in growth.blocks if is_evidence and each.blocks >= MIN_GROWN_BLOCKS]
    shown = grown[:MAX_BLOCK_ROWS]
    return Table(
        columns=(
            Column("block", "right"),
            Column("more", "right"),
            Column(f"a {growth.unit}", "right", css="strong"),
            Column("together", "right"),
            Column("content", wraps=True, css="prose"),
        ),
        rows=tuple(_malloc_block_row(each, growth.owner, shown) for each in shown),
    ).without_empty_columns()


def _malloc_block_row(
    blocks: GrowingBlocks, owner: GrowingOwner | None, others: Sequence[GrowingBlocks]
) -> Row:
    size = blocks.block_bytes * blocks.blocks
    rate = blocks.blocks_per_run
    label = format_size(blocks.block_bytes)
    if sum(format_size(each.block_bytes) == label for each in others) > 1:
        label = f"{blocks.block_bytes:,} B"
    return Row(
        Cell(label, title=f"{blocks.block_bytes:,} bytes"),
        f"{blocks.blocks:,}",
        "" if rate is None else f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}",
        Cell(format_size(size), title=f"{size:,} bytes"),
        # Other owners grow by other memory than these blocks.
        plain(blocks.content) if owner == "heap" else "",
    )
