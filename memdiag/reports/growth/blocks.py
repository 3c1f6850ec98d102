"""The table of the blocks of malloc that grew."""

from collections.abc import Sequence

from memdiag.records.growth import GrowingBlocks, GrowingOwner, Growth
from memdiag.reports.table import Cell, Column, Row, Table
from memdiag.reports.text import plain
from memdiag.units import format_size

MAX_BLOCK_ROWS = 12

MIN_GROWN_BLOCKS = 8
"""Fewer blocks of a size are not steady growth, which needs one between any two moments."""


def malloc_block_table(growth: Growth) -> Table:
    """Return the table of blocks that grew, the most bytes first.

    It has no rows unless memory in use grows, because a few more blocks are not a finding.
    """
    is_growth_possible = growth.is_leak_or_kept or growth.verdict == "undecided"
    is_evidence = growth.slope is not None and is_growth_possible
    grown_blocks = [
        blocks for blocks in growth.blocks if is_evidence and blocks.blocks >= MIN_GROWN_BLOCKS
    ]
    shown_blocks = grown_blocks[:MAX_BLOCK_ROWS]
    return Table(
        columns=(
            Column("block", "right"),
            Column("more", "right"),
            Column(f"a {growth.unit}", "right", css="strong"),
            Column("together", "right"),
            Column("content", wraps=True, css="prose"),
        ),
        rows=tuple(
            _malloc_block_row(blocks, growth.owner, shown_blocks) for blocks in shown_blocks
        ),
    ).without_empty_columns()


def _malloc_block_row(
    blocks: GrowingBlocks, owner: GrowingOwner | None, shown_blocks: Sequence[GrowingBlocks]
) -> Row:
    size = blocks.block_bytes * blocks.blocks
    rate = blocks.blocks_per_run
    label = format_size(blocks.block_bytes)
    if sum(format_size(other_blocks.block_bytes) == label for other_blocks in shown_blocks) > 1:
        label = f"{blocks.block_bytes:,} B"
    return Row(
        Cell(label, title=f"{blocks.block_bytes:,} bytes"),
        f"{blocks.blocks:,}",
        "" if rate is None else f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}",
        Cell(format_size(size), title=f"{size:,} bytes"),
        # Other owners do not grow by these blocks.
        plain(blocks.content) if owner == "heap" else "",
    )
