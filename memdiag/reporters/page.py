"""What every page has: one file that asks the network for nothing, now or years later."""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from importlib import resources
from typing import Any

from memdiag.reporters.palette import DARK, LIGHT

LARGEST_RECORD = 2_200_000
"""Bytes of JSON that are embedded as they are."""


def page(
    template: str,
    script: str,
    values: Mapping[str, Any],
    *,
    charts: Mapping[str, Any],
    record: bytes,
    record_name: str,
) -> bytes:
    """Return the page that `template` gives with `values`.

    `script` is the file that draws `charts`; `record` is embedded in whole, to be saved as
    ``<record_name>.json``: compressed where it is long, and left out where even that is too much.
    """
    scripts = (_plotly(), _template("download.js") + _template(script))
    shared = {
        "light": asdict(LIGHT),
        "dark": asdict(DARK),
        "css": _template("report.css"),
        "scripts": scripts,
        "script_hashes": " ".join(f"'sha256-{_sha256(text)}'" for text in scripts),
        "charts": _json({**charts, "themes": {"light": asdict(LIGHT), "dark": asdict(DARK)}}),
        "record_id": record_name,
        **_embedded(record),
    }
    text: str = _templates().get_template(template).render({**shared, **values})
    return text.encode()


def _embedded(record: bytes) -> dict[str, Any]:
    """Return the record for the page: as JSON, compressed where it is long, or left out."""
    if len(record) <= LARGEST_RECORD:
        return {"record": record.decode().replace("<", "\\u003c"), "record_encoding": "json"}
    packed = base64.b64encode(gzip.compress(record, mtime=0)).decode()
    if len(packed) <= LARGEST_RECORD:
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


@functools.cache
def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    # A browser reads every line end as a line feed, and the page's policy hashes what it reads.
    return str(get_plotlyjs()).replace("\r\n", "\n").replace("\r", "\n")
