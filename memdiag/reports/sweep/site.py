"""The site of a sweep: its page, and pages of its jobs that link from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from memdiag.errors import RecordError
from memdiag.records import codec
from memdiag.records.schemas import Reported
from memdiag.records.sweep import Sweep
from memdiag.reports.page import companion_files
from memdiag.reports.report import write_files
from memdiag.reports.sweep import page
from memdiag.reports.sweep.tables import steps_by_size

MAX_PAGES = 500
"""Pages of jobs by default."""


def write_site(
    sweep: Sweep,
    folder: Path,
    load: Callable[[str], Reported | None],
    *,
    max_pages: int = MAX_PAGES,
) -> tuple[Path, ...]:
    """Write the site of `sweep` and its Markdown into `folder`, and return the files of its entry.

    Pages that are there are kept: the record of a job does not change.

    Args:
        sweep: the sweep.
        folder: the folder; ``index.html``, ``sweep.json``, ``report.md``, ``plotly.min.js`` and
            ``model/`` are written into it.
        load: returns the record of the job with a key; None if it has none that has a page.
        max_pages: maximum number of jobs with a page: those with changes, then those with the
            costliest findings, then those with the largest peaks.

    Raises:
        ReportError: a file cannot be written.
    """
    from memdiag.reports import report_of

    sweep = codec.escaped(sweep)
    pages = set()
    for key in islice(_keys(sweep), max_pages):
        path = folder / page.page_file(key)
        if path.exists() or _write_page(path, key, load):
            pages.add(key)
    entry, record = folder / "index.html", folder / "sweep.json"
    companions = [(folder / name, data) for name, data in companion_files("directory")]
    rendered = page.render(sweep, pages=pages, plotly="directory")
    report = report_of(sweep)
    text = folder / report.file_name("markdown")
    # At once: another sweep may write its own to the same store.
    contents = [(entry, rendered), (record, codec.encode(sweep))]
    contents.append((text, report.render(sweep, "markdown")))
    write_files([*contents, *companions])
    return entry, record, text


def _keys(sweep: Sweep) -> Iterator[str]:
    """Yield the keys of the jobs for which a page is most useful first, each once."""
    wasted = {
        model.key: model.steady_bytes or model.peak_bytes
        for group in sweep.findings
        for model in group.models
    }
    by_peak = sorted(sweep.series, key=lambda each: -(each.newest.peak_bytes or -1))
    keys = (
        *(key for _, step in steps_by_size(sweep) for key in (step.key, step.before_key)),
        *sorted(wasted, key=lambda key: -wasted[key]),
        *(each.newest.key for each in by_peak if each.newest.peak_bytes is not None),
    )
    yield from dict.fromkeys(keys)


def _write_page(path: Path, key: str, load: Callable[[str], Reported | None]) -> bool:
    """Write the page of a job and return whether it has one."""
    from memdiag.reports import report_of

    try:
        record = load(key)
    except RecordError:
        return False
    if record is None:
        return False
    write_files([(path, report_of(record).render(record, "html", plotly="parent"))])
    return True
