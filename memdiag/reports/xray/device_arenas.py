"""What a process has on devices, in the report of its X-ray: onnxruntime's arenas, and in all."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from memdiag.detail import Detail
from memdiag.records.attribution import Attribution, DeviceArena
from memdiag.reports.blocks import Block, SentenceBlock, TableBlock
from memdiag.reports.table import Column, Row, Table
from memdiag.reports.text import known_mebibytes_text, mebibyte_decimals, plain
from memdiag.runner.log import is_host_memory
from memdiag.units import format_size


def device_arena_blocks(attribution: Attribution, *, detail: Detail) -> list[Block]:
    """Return the arenas of a process on devices, and what it has there in all.

    Args:
        attribution: the X-ray of the process.
        detail: how much has to be asked for, so that a terminal prints them.
    """
    return [
        SentenceBlock(title="GPU", text=_device_sentence(attribution), detail=detail),
        TableBlock(
            title="Arenas on devices", table=_arena_table(attribution.device_arenas), detail=detail
        ),
    ]


def has_arena_on_device(attribution: Attribution) -> bool:
    """Return whether an arena is in the memory of a device: pinned memory is the host's."""
    return any(not is_host_memory(arena.device) for arena in attribution.device_arenas)


def _device_sentence(attribution: Attribution) -> str:
    use = attribution.device
    if use is None:
        return ""
    if use.process_bytes is None:
        return f"What the process has on the GPU in all is not known: {plain(use.missing_reason)}."
    device = plain(use.name) or "the GPU"
    sentence = f"The process has {format_size(use.process_bytes)} on {device} (NVML)"
    arena_bytes = sum(
        _arena_bytes(arena)
        for arena in attribution.device_arenas
        if not is_host_memory(arena.device)
    )
    if not arena_bytes:
        return f"{sentence}."
    return (
        f"{sentence}: {format_size(arena_bytes)} in onnxruntime's arenas, the rest is context,"
        " code, and what is allocated outside of arenas."
    )


def _arena_table(arenas: Sequence[DeviceArena]) -> Table:
    """Return the arenas, the largest first."""
    decimals = mebibyte_decimals(max((_arena_bytes(arena) for arena in arenas), default=0))
    size = partial(known_mebibytes_text, decimals=decimals)
    return Table(
        columns=(
            Column("arena (MiB)", css="name"),
            Column("in use", "right", css="strong"),
            Column("free", "right"),
            Column("largest free chunk", "right"),
            Column("regions", "right"),
        ),
        rows=tuple(
            Row(
                plain(arena.device)
                + (" (memory of the host)" if is_host_memory(arena.device) else ""),
                size(arena.used_bytes),
                size(arena.slack_bytes),
                size(arena.largest_slack_bytes),
                "" if arena.region_count is None else f"{arena.region_count:,}",
            )
            for arena in sorted(arenas, key=_arena_bytes, reverse=True)
        ),
    )


def _arena_bytes(arena: DeviceArena) -> int:
    return arena.used_bytes + arena.slack_bytes
