"""One self-contained page that makes no network request: template, styles, scripts, record."""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import resources
from itertools import groupby
from typing import TYPE_CHECKING, Any

from memdiag.records import codec
from memdiag.records.base import Record
from memdiag.reports.blocks import (
    Block,
    ChartBlock,
    Document,
    FindingsBlock,
    PictureBlock,
    TableBlock,
    more_rows,
)
from memdiag.reports.findings import rule_documentation
from memdiag.reports.palette import DARK_PALETTE, LIGHT_PALETTE, colors_by_kind
from memdiag.reports.picture import embedded_svg
from memdiag.reports.table import BarPart, Cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_PAGE_BYTES = 8_000_000
"""Maximum size of a page, whatever the size of its record."""

MAX_UNBROKEN = 14
"""Longer words can be broken: at the ends of their parts, and within parts that are too long."""

_PART_ENDS = re.compile(r"(?<=[/\\_.,:=-])|(?<=[a-z])(?=[A-Z])")

_MAX_ROWS = 1000
_MAX_FINDINGS = 100
_MAX_MARKUP_BYTES = 1_500_000  # of tables and findings
_MAX_PLAIN_RECORD_BYTES = 600_000  # larger records are compressed
_MAX_PACKED_RECORD_BYTES = 30_000_000  # compressing a larger record takes seconds; it won't fit


def document_page(
    document: Document, record: Record, name: str, draw: Callable[[], Figure] | None
) -> bytes:
    """Return `document` as a page, from which `record` can be saved as ``<name>.json``.

    The record is compressed if it is long, and left out if the page would still exceed
    `MAX_PAGE_BYTES`. `draw` draws the picture; None without a picture.
    """
    blocks = [
        _shortened_block(block)
        for block in document.filled("html")
        if draw is not None or not isinstance(block, PictureBlock)
    ]
    findings = [
        text for block in blocks if isinstance(block, FindingsBlock) for text in block.findings
    ]
    has_picture = any(isinstance(block, PictureBlock) for block in blocks)
    values = {
        "document": document,
        "groups": [(kind.__name__, [*group]) for kind, group in groupby(blocks, type)],
        "picture": embedded_svg(draw) if draw is not None and has_picture else "",
        "rules": {finding.name: rule_documentation(finding.name) for finding in findings},
        "max_findings": _MAX_FINDINGS,
        "record_id": name,
        **_scripts([block for block in blocks if isinstance(block, ChartBlock)]),
    }
    used_bytes = len(values["charts"]) + sum(map(len, values["scripts"])) + _MAX_MARKUP_BYTES
    values |= _embedded_record(codec.encode(record), MAX_PAGE_BYTES - used_bytes)
    text: str = template_environment().get_template("document.html.j2").render(values)
    return text.encode()


def _shortened_block(block: Block) -> Block:
    """Return a block whose table is not too long for a page."""
    if not isinstance(block, TableBlock) or len(block.table.rows) <= _MAX_ROWS:
        return block
    more_text = f"{more_rows(block.table, _MAX_ROWS)}, in the record (JSON)."
    caption = f"{block.caption or block.table.caption} {more_text}".strip()
    return replace(block, table=block.table.first_rows(_MAX_ROWS), caption=caption)


def _scripts(charts: Sequence[ChartBlock]) -> dict[str, Any]:
    """Return colours, styles and scripts of a page. A page without `charts` does without Plotly."""
    files = dict.fromkeys(chart.script for chart in charts)
    page_script = "".join(map(_template_text, ("page.js", *files)))
    inline_scripts = (plotly_source(), page_script) if charts else (page_script,)
    light, dark = asdict(LIGHT_PALETTE), asdict(DARK_PALETTE)
    colors = {"light": colors_by_kind("light"), "dark": colors_by_kind("dark")}
    data_by_name = {name: value for chart in charts for name, value in chart.data().items()}
    themes = {"light": light, "dark": dark}
    return {
        **themes,
        "css": _template_text("page.css"),
        "kinds": colors,
        "scripts": inline_scripts,
        "script_sources": " ".join(f"'sha256-{_sha256_base64(text)}'" for text in inline_scripts),
        "charts": _script_safe_json(
            {**data_by_name, "themes": themes, "kinds": colors, "max_unbroken": MAX_UNBROKEN}
        ),
    }


def _embedded_record(record: bytes, max_bytes: int) -> dict[str, Any]:
    """Return the record for the page: as JSON, compressed, or empty if it is above `max_bytes`."""
    if len(record) <= min(max_bytes, _MAX_PLAIN_RECORD_BYTES):
        return {"record": record.decode().replace("<", "\\u003c"), "record_encoding": "json"}
    if len(record) <= _MAX_PACKED_RECORD_BYTES:
        packed = base64.b64encode(gzip.compress(record, mtime=0)).decode()
        if len(packed) <= max_bytes:
            return {"record": packed, "record_encoding": "gzip"}
    return {"record": "", "record_encoding": ""}


def _script_safe_json(value: object) -> str:
    """Return `value` as JSON that cannot end the script element that contains it."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _sha256_base64(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _template_text(name: str) -> str:
    return (resources.files(__package__) / "templates" / name).read_text("utf-8")


@functools.cache
def template_environment() -> Any:
    """Return the environment of the templates."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(_template_text),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = breakable_parts
    return environment


def breakable_parts(text: str) -> list[str]:
    """Return the parts of `text` between which browsers may break its long words.

    Templates join them with ``<wbr>``.
    """
    parts = [""]
    for word in re.findall(r"\S+|\s+", text):
        if len(word) <= MAX_UNBROKEN:
            parts[-1] += word
            continue
        first_part, *further_parts = (
            part[start : start + MAX_UNBROKEN]
            for part in _PART_ENDS.split(word)
            for start in range(0, len(part), MAX_UNBROKEN)
        )
        parts[-1] += first_part
        parts += further_parts
    return parts


@functools.cache
def plotly_source() -> str:
    """Return the source of Plotly."""
    return _template_text("plotly.min.js")


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeBar:
    """Memory of one column of a comparison, or of one model, as a bar shows it.

    Attributes:
        peak, steady: bytes above the baseline.
        mapped: the bytes of `steady` that are mapped from files.
    """

    label: str
    peak: int
    steady: int
    mapped: int


SIZE_BAR_LEGEND = (("top", "peak"), ("end", "anonymous"), ("mapped", "mapped"))
"""CSS class and text of each colour in the cells of `size_bar_cells`."""


def size_bar_cells(bars: Sequence[SizeBar]) -> tuple[Cell, ...]:
    """Return a cell with the bars of peak and steady memory for each of `bars`, on one scale."""
    largest_bytes = max((max(bar.peak, bar.steady) for bar in bars), default=0)

    def percent(size: int) -> float:
        return round(100 * max(0, size) / largest_bytes, 2) if largest_bytes > 0 else 0.0

    cells = []
    for bar in bars:
        steady = max(0, bar.steady)
        mapped = min(steady, max(0, bar.mapped))
        anonymous = percent(steady - mapped)
        parts = (
            BarPart(css="end", percent=anonymous),
            BarPart(css="mapped", percent=percent(mapped), start_percent=anonymous),
        )
        cells.append(Cell(bars=((BarPart(css="top", percent=percent(bar.peak)),), parts)))
    return tuple(cells)
