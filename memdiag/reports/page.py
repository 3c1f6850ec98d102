"""What every page has: one file that asks the network for nothing, now or years later."""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import resources
from typing import Any, Literal

from memdiag.reports.palette import DARK, LIGHT, kinds

Plotly = Literal["inline", "directory", "cdn"]
"""Where a page has the library that draws its charts: in itself, beside it (one file for all pages
of a folder), or from the address that the library's makers give."""

PLOTLY_FILE = "plotly.min.js"

LARGEST_PAGE = 8_000_000
"""Bytes of a page, whatever its record's size."""

_MARKUP_BYTES = 600_000  # of tables, findings and drawings: what no page comes near
_SHORT_BYTES = 600_000  # below this, a record is embedded as it is


def page(
    template: str,
    scripts: Sequence[str],
    values: Mapping[str, Any],
    *,
    charts: Mapping[str, Any],
    record: bytes,
    record_name: str,
    plotly: Plotly = "inline",
) -> bytes:
    """Return the page that `template` gives with `values`.

    `scripts` are the files that draw `charts`; `record` is embedded in whole, to be saved as
    ``<record_name>.json``: compressed where it is long, and left out where even that is too much
    for `LARGEST_PAGE`.
    """
    own = "".join(map(_template, ("library.js", "download.js", *scripts)))
    inline = (plotly_source(), own) if plotly == "inline" else (own,)
    nonce = hashlib.sha256(record).hexdigest()[:32]
    colors = {"light": kinds("light"), "dark": kinds("dark")}
    drawn = _json(
        {**charts, "themes": {"light": asdict(LIGHT), "dark": asdict(DARK)}, "kinds": colors}
    )
    taken = len(drawn) + sum(map(len, inline)) + _MARKUP_BYTES
    shared = {
        "light": asdict(LIGHT),
        "dark": asdict(DARK),
        "css": _template("report.css"),
        "kinds": colors,
        "library": _library(plotly, nonce),
        "scripts": inline,
        "script_sources": " ".join(
            [*(f"'sha256-{_sha256(text)}'" for text in inline), *_allowed(plotly, nonce)]
        ),
        "charts": drawn,
        "record_id": record_name,
        **_embedded(record, LARGEST_PAGE - taken),
    }
    text: str = _templates().get_template(template).render({**shared, **values})
    return text.encode()


def _embedded(record: bytes, room: int) -> dict[str, Any]:
    """Return the record for the page: as JSON, compressed where it is long, or left out where even
    that takes more than `room` bytes."""
    if len(record) <= min(room, _SHORT_BYTES):
        return {"record": record.decode().replace("<", "\\u003c"), "record_encoding": "json"}
    packed = base64.b64encode(gzip.compress(record, mtime=0)).decode()
    if len(packed) <= room:
        return {"record": packed, "record_encoding": "gzip"}
    return {"record": "", "record_encoding": ""}


def _json(value: object) -> str:
    """Return `value` as JSON that cannot end the script element it stands in."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _template(name: str) -> str:
    return (resources.files(__package__) / "templates" / name).read_text("utf-8")


@functools.cache
def _templates() -> Any:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    return Environment(
        loader=FunctionLoader(_template),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def beside(plotly: Plotly) -> tuple[tuple[str, bytes], ...]:
    """Return the files, by name, that must lie in the folder of a page made with `plotly`."""
    return ((PLOTLY_FILE, plotly_source().encode()),) if plotly == "directory" else ()


def _library(plotly: Plotly, nonce: str) -> dict[str, str]:
    """Return the attributes of the script element that loads the library; none where it is in."""
    if plotly == "inline":
        return {}
    if plotly == "directory":
        return {"src": PLOTLY_FILE, "nonce": nonce}
    integrity = f"sha256-{_sha256(plotly_source())}"
    return {"src": _address(), "integrity": integrity, "crossorigin": "anonymous"}


def _allowed(plotly: Plotly, nonce: str) -> tuple[str, ...]:
    """Return what the page's policy must allow for the library, and nothing more."""
    return {"inline": (), "directory": (f"'nonce-{nonce}'",), "cdn": (_address(),)}[plotly]


def _address() -> str:
    """Return where the network has the library, in the release that comes with memdiag."""
    # Its licence is the file's first comment: "plotly.js v4.1.1 …".
    release = plotly_source().partition("plotly.js v")[2].split()[0]
    return f"https://cdn.plot.ly/plotly-{release}.min.js"


@functools.cache
def plotly_source() -> str:
    """Return the library that draws the charts."""
    return _template(PLOTLY_FILE)
