"""The drawing of the arena in a run: a box for each block, over steps and addresses."""

from __future__ import annotations

from typing import Any

from memdiag.records.estimate import RunBlock, RunLayout
from memdiag.reports.text import plain, shortened
from memdiag.units import counted, format_size

MAX_NAME = 60


def layout_chart(layout: RunLayout | None) -> dict[str, Any] | None:
    """Return the drawing of `layout` as columns; None without blocks."""
    if layout is None or not layout.blocks:
        return None
    blocks = layout.blocks
    return {
        "steps": layout.steps,
        "peak_step": layout.peak_step,
        "regions": list(layout.region_bytes),
        "first": [each.first for each in blocks],
        "length": [each.last - each.first + 1 for each in blocks],
        "offset": [each.offset for each in blocks],
        "bytes": [each.bytes for each in blocks],
        "kind": [_kind(each, layout) for each in blocks],
        "text": [_text(each) for each in blocks],
    }


def layout_caption(layout: RunLayout | None) -> str:
    """Return the sentence below the drawing; empty without one."""
    if layout is None or not layout.blocks:
        return ""
    regions = counted(len(layout.region_bytes), "region")
    size = format_size(sum(layout.region_bytes))
    unlisted = (
        f" {counted(layout.unlisted, 'smaller block')} are not drawn." if layout.unlisted else ""
    )
    return (
        "Each box is a block of the arena in the first run: from the node that takes it to the node"
        " after which it is free, at its address. The arena has"
        f" {regions} of {size} in all.{unlisted}"
    )


def _kind(block: RunBlock, layout: RunLayout) -> str:
    if block.kind == "scratch":
        return "working memory"
    if block.first <= layout.peak_step <= block.last:
        return "in memory at the peak"
    return "other values"


def _text(block: RunBlock) -> str:
    name = shortened(plain(block.name), MAX_NAME)
    first, last = (shortened(plain(each), MAX_NAME) for each in (block.first_node, block.last_node))
    size = format_size(block.bytes)
    if block.kind == "scratch":
        return f"{name}: {size} of working memory"
    return (
        f"{name}: {size}, from {first} to {last}" if last != first else f"{name}: {size}, {first}"
    )
