"""The series of a sweep as columns, for the table and the charts of its page.

Sizes are in KiB and times in minutes, to keep the page small: it can contain 100,000 jobs.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Collection, Iterable
from typing import Any

from memdiag.records.sweep import Sweep, SweepPoint, SweepSeries
from memdiag.reports.sweep.tables import variant
from memdiag.reports.text import plain, shortened
from memdiag.units import KIB

MAX_PLAIN_CHARACTERS = 300_000
"""Longer data is compressed."""

MAX_NAME = 120


class _Names:
    """Texts by number: those that repeat are in the page once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Return the number of `text`."""
        return self._numbers.setdefault(text, len(self._numbers))

    @property
    def texts(self) -> list[str]:
        """The texts in the order of their numbers."""
        return list(self._numbers)


def page_data(sweep: Sweep, pages: Collection[str]) -> dict[str, Any]:
    """Return the data of the page; under ``packed`` if it is compressed.

    Args:
        sweep: the sweep.
        pages: the keys of the jobs that have a page.
    """
    releases, texts = _Names(), _Names()
    for release in sweep.releases:
        releases.number(plain(release))
    texts.number("")
    points = list(sweep.points)
    start = min((point.started_s for point in points), default=0.0)
    found: dict[str, Any] = {
        "start_s": start,
        "series": _columns(
            [
                shortened(plain(each.model), MAX_NAME),
                texts.number(variant(each)),
                texts.number(plain(each.machine)),
                _kib_or_more(each.weight_bytes),
                _kib_or_more(each.avoidable_bytes),
                len(each.points),
                page_key(each, pages),
            ]
            for each in sweep.series
        ),
        "points": _columns(
            [
                releases.number(plain(point.onnxruntime)),
                round((point.started_s - start) / 60),
                _kib(point.peak_bytes),
                _kib(point.steady_bytes),
                _kib(point.estimated_peak_bytes),
                texts.number("" if not point.is_failed else point.status),
            ]
            for point in points
        ),
        "steps": _columns(
            [
                number,
                0 if step.figure == "peak" else 1,
                _index(each, step.key),
                _kib(step.before_bytes),
                _kib(step.after_bytes),
            ]
            for number, each in enumerate(sweep.series)
            for step in each.steps
        ),
    }
    found |= {"releases": releases.texts, "texts": texts.texts}
    text = json.dumps(found, separators=(",", ":"))
    if len(text) <= MAX_PLAIN_CHARACTERS:
        return found
    return {"packed": base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()}


def page_key(series: SweepSeries, pages: Collection[str]) -> str:
    """Return the key of the newest job of `series` that has a page; empty without one."""
    return next((point.key for point in _newest_first(series) if point.key in pages), "")


def _newest_first(series: SweepSeries) -> tuple[SweepPoint, ...]:
    return (series.newest, *reversed(series.points))


def _index(series: SweepSeries, key: str) -> int:
    return next(index for index, point in enumerate(series.points) if point.key == key)


def _columns(rows: Iterable[list[Any]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _kib_or_more(size: int | None) -> int | None:
    """Return a size in KiB, of which 0 is nothing."""
    return max(1, round(size / KIB)) if size else size


def _kib(size: int | None) -> int | None:
    return None if size is None else round(size / KIB)
