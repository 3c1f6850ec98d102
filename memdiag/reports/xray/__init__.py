"""The report of an X-ray: who owns the memory of a process, and what to do about it.

`owner_blocks` are also a part of a profile's report.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from memdiag.defaults import PINNED_TEXT
from memdiag.detail import Detail
from memdiag.programs.repeated_models import repeated_models
from memdiag.records.attribution import Attribution
from memdiag.reports.blocks import (
    NOT_ON_PAGES,
    Block,
    BulletBlock,
    ChartBlock,
    Document,
    SentenceBlock,
    TableBlock,
)
from memdiag.reports.page import template_environment
from memdiag.reports.palette import COPY_COLORS, OWNER_COLORS
from memdiag.reports.palette import LIGHT_PALETTE as COLOR
from memdiag.reports.report import Report, file_names
from memdiag.reports.table import Cell, Column, Row, Table
from memdiag.reports.text import capitalized, plain
from memdiag.reports.xray.charts import CopyList, copy_list, xray_chart_data
from memdiag.reports.xray.charts import xray_tiles as make_tiles
from memdiag.reports.xray.memory_owners import OwnerRow, identified_share, owner_rows, owner_table
from memdiag.reports.xray.weight_copies import (
    WeightRow,
    copies_table,
    display_name,
    freed_summary,
    repeated_table,
    single_copies_summary,
    unlocated_sentences,
    verification_summary,
    weight_rows,
)
from memdiag.units import MIB, format_duration, format_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MIN_WASTE_BYTES = 8 * MIB
MIN_WASTE_SHARE = 0.1
"""Waste is in the headline from this size and this share of the resident set on."""

_OWNERS_TITLE = "Owners of the memory"
_MAX_CONSOLE_MODELS = 12
_MAX_PAGE_COPY_ROWS = 100
_MAX_COPY_LIST_BYTES = 800_000

_MALLOC_ADVICE = (
    "malloc_trim(0) returns most of it to the system (in Python:"
    " ctypes.CDLL(None).malloc_trim(0)). To retain fewer large blocks, start the process with"
    f" {PINNED_TEXT}; with many threads, also with MALLOC_ARENA_MAX=1."
)
ARENA_ADVICE = (
    "Set the run option memory.enable_memory_arena_shrinkage=cpu:0 or the session option"
    f" enable_cpu_mem_arena=False, and start the process with {PINNED_TEXT}:"
    " otherwise malloc retains what the arena frees."
)
_COPIES_ADVICE = "memdiag profile MODEL explains why onnxruntime makes these copies."
_MODELS_CAPTION = (
    "Only weights are attributed to a model: arena slack, retained memory and the rest of the heap"
    " belong to the process, not to one session."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class XrayInsight:
    """The answer of an X-ray in sentences.

    Attributes:
        headline: the largest owner, and the largest waste if there is one.
        advice: a sentence for each waste, the largest first.
    """

    headline: str
    advice: tuple[str, ...]


def xray_insight(attribution: Attribution) -> XrayInsight:
    """Return the most important result of `attribution`."""
    resident_bytes = attribution.resident_bytes
    min_bytes = max(MIN_WASTE_BYTES, MIN_WASTE_SHARE * resident_bytes)
    retained_bytes = attribution.bytes_of("allocator_retained")
    same_layout_bytes, other_layout_bytes = _extra_copy_bytes(attribution)
    duplicates = list(repeated_models(attribution))
    same_layout_bytes -= sum(model.bytes for model in duplicates)
    wastes = [
        (retained_bytes, "are retained by malloc after they were freed", _MALLOC_ADVICE),
        (attribution.arena_slack_bytes, "are free space in onnxruntime's arenas", ARENA_ADVICE),
        (
            same_layout_bytes,
            "are further copies of weights, in the same layout as the first",
            _COPIES_ADVICE,
        ),
        (
            other_layout_bytes,
            "are copies of weights in another layout, besides the original",
            _COPIES_ADVICE,
        ),
    ]
    wastes = [waste for waste in wastes if waste[0] >= min_bytes]
    wastes += [(model.bytes, f"are {plain(model.evidence)}", model.remedy) for model in duplicates]
    wastes.sort(key=lambda waste: -waste[0])
    largest_owner = max(owner_rows(attribution), key=lambda row: row.size_bytes, default=None)
    headline = (
        f"the largest owner is {largest_owner.label}, with"
        f" {_part_and_whole_text(largest_owner.size_bytes, resident_bytes)}"
        if largest_owner
        else f"{format_size(resident_bytes)} resident"
    )
    if wastes and wastes[0][0] >= min_bytes:
        size, description, _ = wastes[0]
        headline += f"; {format_size(size)} {description}"
    advice = [
        f"{format_size(size)} {description}. {advice_text}"
        for size, description, advice_text in wastes
    ]
    if attribution.models and not attribution.copies:
        advice.append(_no_weight_sentence(attribution))
    return XrayInsight(headline=headline, advice=tuple(advice))


def _part_and_whole_text(size: int, whole: int) -> str:
    """Return ``469 of 610 MiB`` for `size` of `whole` bytes, with both units if they differ."""
    part, total = format_size(size), format_size(whole)
    number, _, unit = part.rpartition(" ")
    return f"{number} of {total}" if total.endswith(unit) else f"{part} of {total}"


def _extra_copy_bytes(attribution: Attribution) -> tuple[int, int]:
    """Return the bytes of copies beyond the first, in the same layout and in other layouts."""
    same_layout = other_layouts = 0
    for weight in weight_rows(attribution):
        copies = [copy for copy in weight.copies if not copy.is_freed]
        # Mappings of the same file share their memory.
        same_layout += sum(
            copy.resident_bytes * (copy.count - 1) // copy.count
            for copy in copies
            if copy.backing == "anonymous"
        )
        sizes = sorted(copy.resident_bytes // copy.count for copy in copies)
        other_layouts += sum(sizes[:-1])
    return same_layout, other_layouts


@dataclass(frozen=True, slots=True, kw_only=True)
class XrayText:
    """Rows and sentences of an X-ray, for all formats.

    Attributes:
        first: the weight with most memory, in a sentence.
        share: how much of the memory is identified.
        single: the sum of the weights that have a single copy; empty for none.
        remarks: sentences below the tables, notes first.
    """

    first: str
    share: str
    owners: tuple[OwnerRow, ...]
    weights: tuple[WeightRow, ...]
    single: str
    remarks: tuple[str, ...]

    @property
    def repeated(self) -> tuple[WeightRow, ...]:
        """The weights that have more than one copy."""
        return tuple(row for row in self.weights if row.count > 1)


def xray_text(attribution: Attribution, *, trimmed_bytes: int = 0) -> XrayText:
    """Return the rows and sentences of `attribution`.

    `trimmed_bytes` were returned by ``malloc_trim`` before the X-ray was taken.
    """
    weights = weight_rows(attribution)
    was_searched = attribution.models or attribution.indistinct
    no_weight_text = "no weight was found" if was_searched else "no weight was searched for"
    remarks = (
        *(f"Note: {plain(note).rstrip('.')}." for note in attribution.notes),
        *_device_arena_sentences(attribution),
        _absent_models_sentence(attribution),
        freed_summary(attribution.copies),
        *unlocated_sentences(attribution),
        verification_summary(attribution),
        _scan_time_sentence(attribution),
    )
    return XrayText(
        first=f"{weights[0].title}: {weights[0].summary}" if weights else no_weight_text,
        share=identified_share(attribution),
        owners=owner_rows(attribution, trimmed_bytes=trimmed_bytes),
        weights=weights,
        single=single_copies_summary(weights),
        remarks=tuple(sentence for sentence in remarks if sentence),
    )


def _models_table(attribution: Attribution) -> Table:
    """Return a table of the models whose weights were found; no rows for a single model."""
    rows = []
    for index, model in enumerate(attribution.models):
        copies = [copy for copy in attribution.copies if index in copy.models]
        if len(attribution.models) < 2 or not copies:
            continue
        copy_bytes = sum(copy.resident_bytes for copy in copies)
        shared_bytes = sum(copy.resident_bytes for copy in copies if len(copy.models) > 1)
        ratio = copy_bytes / model.weight_bytes if model.weight_bytes else 0.0
        name = display_name(model.name)
        cells = Row(
            Cell(name, is_code=True),
            format_size(model.weight_bytes),
            f"{len(copies):,}",
            format_size(copy_bytes),
            f"{ratio:.1f} ×" if ratio else "",
            format_size(shared_bytes) if shared_bytes else "",
        )
        rows.append((-copy_bytes, name, cells))
    table = Table(
        columns=(
            Column("model", wraps=True, css="name"),
            *(
                Column(heading, "right")
                for heading in ("weights", "copies", "size of copies", "÷ weights", "shared")
            ),
        ),
        rows=tuple(cells for _, _, cells in sorted(rows, key=lambda entry: entry[:2])),
        caption=_MODELS_CAPTION,
    )
    return table.without_empty_columns()


def _no_weight_sentence(attribution: Attribution) -> str:
    if attribution.device_arenas:
        return "No weight was found in the memory of the host: onnxruntime has them on the device."
    return "No weight was found. Check that the process runs the model that was given."


def _absent_models_sentence(attribution: Attribution) -> str:
    if len(attribution.models) < 2:
        return ""
    found_models = {index for copy in attribution.copies for index in copy.models}
    absent_names = sorted(
        display_name(model.name)
        for index, model in enumerate(attribution.models)
        if index not in found_models
    )
    return f"No weight was found of: {', '.join(absent_names)}." if absent_names else ""


def _device_arena_sentences(attribution: Attribution) -> Iterator[str]:
    for arena in attribution.device_arenas:
        yield (
            f"An arena in the memory of {plain(arena.device)}, which is not part of the resident"
            f" memory: {format_size(arena.used_bytes)} in use, {format_size(arena.slack_bytes)}"
            " slack."
        )


def _scan_time_sentence(attribution: Attribution) -> str:
    timing = attribution.timing
    speed = timing.scan_gb_per_s
    scanned = f"{format_size(timing.scanned_bytes)} scanned in {format_duration(timing.scan_s)}"
    return (
        f"{scanned}{f' ({speed:.1f} GB/s)' if speed else ''},"
        f" {format_size(timing.verified_bytes)} compared in {format_duration(timing.verify_s)},"
        f" {format_duration(timing.total_s)} in all."
    )


def _nothing_unused_sentence(attribution: Attribution) -> str:
    observer = "leak" if attribution.bytes_of("runtime_libraries") else "watch"
    return (
        "Nothing: no large part of this memory is unused. This was one moment: memdiag"
        f" {observer} {attribution.pid} tells whether it grows."
    )


def document(attribution: Attribution) -> Document:
    """Return the report of `attribution`."""
    insight = xray_insight(attribution)
    advice = insight.advice or (_nothing_unused_sentence(attribution),)
    return Document(
        subject=f"process {attribution.pid}",
        kind="X-ray of a process",
        answer=f"{insight.headline}.",
        blocks=[
            *(
                SentenceBlock(title="" if number else "What to do", text=text, detail=Detail.ANSWER)
                for number, text in enumerate(advice)
            ),
            TableBlock(
                title="Models", table=_models_table(attribution), max_rows=_MAX_CONSOLE_MODELS
            ),
            *owner_blocks(
                xray_text(attribution),
                lambda: (page_xray("now", attribution),),
                detail=Detail.USUAL,
            ),
        ],
    )


def owner_blocks(
    xray: XrayText,
    xrays: Callable[[], Sequence[PageXray]],
    *,
    heading: str = "owner",
    detail: Detail = Detail.ALL,
    further_remarks: Sequence[str] = (),
) -> list[Block]:
    """Return the owners of the memory, the weights with several copies, and remarks.

    Args:
        xray: the X-ray.
        xrays: returns the X-ray for a page, followed by X-rays that users can choose instead.
        heading: the heading of the owners.
        detail: the detail from which on a terminal prints the owners.
        further_remarks: remarks that follow the others; not on pages, which have the X-rays.
    """
    cached_xrays = functools.cache(xrays)
    single_copies = f"{xray.single}." if xray.single else ""
    first_remark = "" if xray.weights else f"{capitalized(xray.first)}."
    return [
        ChartBlock(
            title=_OWNERS_TITLE,
            name="treemap",
            script="owners.js",
            data=lambda: {"xrays": [page.charts for page in cached_xrays()]},
            alt="Owners, weights and their copies as tiles; the tables below contain the same",
            hints=(
                "Click a tile to zoom in, the bar above to zoom out. Bright colours are copies of"
                " weights by kind, muted colours are other owners.",
            ),
            below=lambda: str(
                template_environment().get_template("owners.html.j2").render(xrays=cached_xrays())
            ),
        ),
        TableBlock(
            title=_OWNERS_TITLE,
            table=replace(owner_table(xray.owners, heading=heading), caption=f"{xray.share}."),
            detail=detail,
            short="owners",
            formats=NOT_ON_PAGES,
        ),
        TableBlock(
            title="Weights with several copies",
            table=repeated_table(xray.repeated),
            detail=Detail.ALL,
            short="copies of weights",
            formats=NOT_ON_PAGES,
        ),
        BulletBlock(
            title="On the weights",
            texts=[
                text
                for text in (first_remark, single_copies, *xray.remarks, *further_remarks)
                if text
            ],
            detail=Detail.ALL,
            short="remarks",
            formats=NOT_ON_PAGES,
        ),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageXray:
    """An X-ray as a part of a page.

    Attributes:
        moment: when the X-ray was taken: ``steady``, ``end of parse``, or ``now`` for a process.
        rows: the first rows of the table of copies.
        copies: all copies that the page can filter.
        charts: what the scripts draw.
    """

    moment: str
    owned: XrayText
    owners: Table
    rows: Table
    copies: CopyList
    charts: dict[str, Any]


def page_xray(
    moment: str,
    attribution: Attribution,
    *,
    trimmed_bytes: int = 0,
    max_rows: int = _MAX_PAGE_COPY_ROWS,
    max_copy_bytes: int = _MAX_COPY_LIST_BYTES,
    max_tiles: int = 120,
) -> PageXray:
    """Return `attribution` for a page, with a limited number of copies."""
    xray = xray_text(attribution, trimmed_bytes=trimmed_bytes)
    copies = copy_list(xray.weights, max_bytes=max_copy_bytes)
    tiles = make_tiles(attribution, max_weights=max_tiles, trimmed_bytes=trimmed_bytes)
    return PageXray(
        moment=moment,
        owned=xray,
        owners=owner_table(
            xray.owners, heading="owner" if moment == "now" else f"owner ({moment})"
        ),
        rows=copies_table(xray.weights[:max_rows]).first_rows(min(max_rows, len(copies.rows))),
        copies=copies,
        charts=xray_chart_data(tiles, copies),
    )


def draw(attribution: Attribution) -> Figure:
    """Return the picture of an X-ray: a bar for each owner, divided by kind for weights."""
    from memdiag.reports import picture

    rows = [row for row in owner_rows(attribution) if row.size_bytes]
    figure = picture.titled_figure(
        1.1 + 0.36 * len(rows), f"process {attribution.pid}", xray_insight(attribution).headline
    )
    if not rows:
        return figure
    axes = figure.add_subplot()
    unit, unit_name = picture.size_unit(rows[0].size_bytes)
    for row_index, row in enumerate(rows):
        start = 0.0
        for size, color in _owner_bar_parts(attribution, row):
            axes.barh(row_index, size / unit, 0.7, left=start, color=color)
            start += size / unit
        axes.annotate(
            format_size(row.size_bytes), (start, row_index), xytext=(4, 0),
            textcoords="offset points", va="center", fontsize=picture.SMALL,
            color=COLOR.ink,
        )  # fmt: skip
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, 1.16 * max(row.size_bytes for row in rows) / unit)
    kinds = [kind for kind in COPY_COLORS["light"] if _weight_kind_bytes(attribution, kind)]
    picture.style_axes(axes, f"resident memory by owner, {unit_name}", grid="x")
    picture.color_legend(axes, {f"weights, {kind}": COPY_COLORS["light"][kind] for kind in kinds})
    return figure


def _owner_bar_parts(attribution: Attribution, row: OwnerRow) -> list[tuple[int, str]]:
    """Return the bytes and colours of the parts of an owner's bar."""
    if row.kind != "weights":
        return [(row.size_bytes, OWNER_COLORS["light"][row.kind])]
    return [
        (size, color)
        for kind, color in COPY_COLORS["light"].items()
        if (size := _weight_kind_bytes(attribution, kind))
    ]


def _weight_kind_bytes(attribution: Attribution, kind: str) -> int:
    return sum(
        owner.bytes
        for owner in attribution.owners
        if owner.kind == "weights" and owner.name == kind
    )


REPORT = Report[Attribution]("X-ray", file_names("xray"), document, draw)
