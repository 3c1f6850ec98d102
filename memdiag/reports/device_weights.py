"""The weights on a GPU in a report: each copy by name, and how the copies were found."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from memdiag.detail import Detail
from memdiag.records.device import DeviceCopy, DeviceXray
from memdiag.reports.blocks import Block, BulletBlock, TableBlock
from memdiag.reports.table import Cell, Column, Row, Table
from memdiag.reports.text import mebibyte_decimals
from memdiag.reports.xray.memory_owners import rounded_mebibytes
from memdiag.reports.xray.weight_copies import (
    MAX_CONSOLE_WEIGHT,
    copy_label,
    display_name,
    parameters_text,
    unlocated_sentences,
)
from memdiag.units import counted, format_duration, format_size, some_of


def device_weight_blocks(xray: DeviceXray) -> list[Block]:
    """Return the copies of weights on a GPU, the weight with most memory first, and remarks."""
    remarks = (
        _stale_sentence(xray.copies),
        _absent_sentence(xray),
        *unlocated_sentences(xray),
        _search_sentence(xray),
    )
    return [
        TableBlock(
            title="Weights on the GPU",
            table=_copy_table(xray.copies),
            detail=Detail.ALL,
            short="weights on the GPU",
            is_sortable=True,
        ),
        BulletBlock(
            title="On the weights on the GPU",
            texts=[remark for remark in remarks if remark],
            detail=Detail.ALL,
        ),
    ]


def _copy_table(copies: Sequence[DeviceCopy]) -> Table:
    by_weight: dict[tuple[str, ...], list[DeviceCopy]] = defaultdict(list)
    for copy in copies:
        by_weight[copy.weights].append(copy)
    decimals = mebibyte_decimals(max((copy.bytes for copy in copies), default=0))
    largest_first = sorted(by_weight.values(), key=lambda same: -sum(copy.bytes for copy in same))
    return Table(
        columns=(
            Column("weight on the GPU", css="name", max_width=MAX_CONSOLE_WEIGHT),
            Column("copy"),
            Column("MiB", "right"),
            Column("state"),
            Column("at", css="at"),
        ),
        rows=tuple(_copy_row(copy, decimals) for same in largest_first for copy in same),
    )


def _copy_row(copy: DeviceCopy, decimals: int) -> Row:
    parameters = parameters_text(copy)
    more = len(copy.weights) - 1
    return Row(
        Cell(display_name(copy.weights[0]) + (f" +{more} more" if more else ""), is_code=True),
        copy_label(copy) + (f" ({parameters})" if parameters else ""),
        rounded_mebibytes(copy.bytes, decimals),
        "stale" if copy.is_stale else "in use",
        f"{copy.address:#x}",
    )


def _stale_sentence(copies: Sequence[DeviceCopy]) -> str:
    stale = [copy for copy in copies if copy.is_stale]
    if not stale:
        return ""
    size = format_size(sum(copy.bytes for copy in stale))
    verb = "is" if len(stale) == 1 else "are"
    return (
        f"{counted(len(stale), 'copy', 'copies')} ({size}) {verb} stale: in free chunks of the"
        " arena, which later values overwrite."
    )


def _absent_sentence(xray: DeviceXray) -> str:
    if not xray.absent:
        return ""
    names = some_of([display_name(names[0]) for names in xray.absent])
    return f"Not on the GPU in any layout that memdiag knows: {names}."


def _search_sentence(xray: DeviceXray) -> str:
    return (
        f"{format_size(xray.searched_bytes)} of the GPU were searched in"
        f" {format_duration(xray.duration_s)}. To find the copies and to compare them byte for"
        f" byte with the model, {format_size(xray.copied_bytes)} were copied to the host, in parts"
        " that were not kept."
    )
