"""The report of a memory limit: the smallest that works, and the suggested request and limit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memdiag.detail import Detail
from memdiag.records import codec
from memdiag.records.limit import MemoryLimit
from memdiag.reports import markdown as md
from memdiag.reports.console import block, files, labelled, line
from memdiag.reports.container_resources import compose_service, kubernetes_resources
from memdiag.reports.limit.rows import trial_table
from memdiag.reports.limit.sentences import (
    limit_headline,
    service_name,
    suggestion_reason,
    yaml_comments,
)
from memdiag.reports.page import Plotly
from memdiag.reports.report import Report, file_names
from memdiag.reports.table import markdown_table, print_table
from memdiag.reports.text import plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console


def show(
    limit: MemoryLimit,
    console: Console,
    *,
    written: Sequence[Path] = (),
    detail: Detail = Detail.USUAL,
) -> None:
    """Print `limit`; `written` are the files to name; `detail` is how much."""
    answer = limit_headline(limit)
    line(console, answer.line, "bold")
    if detail is Detail.ANSWER:
        return
    line(console, answer.second)
    line(console, answer.facts, "dim")
    console.print()
    labelled(console, "Margin", suggestion_reason(limit))
    table = trial_table(limit)
    if len(table.rows) > 1:
        console.print()
        print_table(console, table)
    block(console, [f"note: {plain(note)}" for note in limit.notes])
    if answer.ended:
        console.print()
        line(console, f"{answer.ended_label}: {answer.ended}", "bold red")
    files(console, written)


def markdown(limit: MemoryLimit) -> str:
    """Return the report for an issue or a pull request."""
    answer = limit_headline(limit)
    return md.document(
        (
            f"## Memory limit: {md.code(answer.subject)}",
            f"**{md.escape(answer.line)}**",
            f"**{answer.ended_label}:** {md.escape(answer.ended)}" if answer.ended else "",
            md.escape(answer.second),
            md.escape(answer.facts),
            md.escape(suggestion_reason(limit)),
            md.section("Kubernetes", md.code_block(kubernetes(limit).splitlines(), "yaml")),
            md.section("Compose", md.code_block(compose(limit).splitlines(), "yaml")),
            md.section("Trials", markdown_table(trial_table(limit))),
            md.section("Notes", md.bullets(map(plain, limit.notes))),
        )
    )


def kubernetes(limit: MemoryLimit) -> str:
    """Return the suggestion as the ``resources`` of a container in Kubernetes."""
    limit = codec.escaped(limit)
    return kubernetes_resources(limit.request_bytes, limit.limit_bytes, yaml_comments(limit))


def compose(limit: MemoryLimit) -> str:
    """Return the suggestion as a service of Compose."""
    limit = codec.escaped(limit)
    return compose_service(
        service_name(limit),
        limit.request_bytes,
        limit.limit_bytes,
        yaml_comments(limit),
    )


def _page(limit: MemoryLimit, *, plotly: Plotly = "inline") -> bytes:
    """Return the page for `limit`."""
    from memdiag.reports.limit.page import render

    return render(limit, plotly=plotly)


def draw(limit: MemoryLimit) -> Figure:
    """Return the chart as a picture."""
    from memdiag.reports.limit import picture

    return picture.draw(limit)


REPORT = Report[MemoryLimit](
    name="memory limit",
    files=file_names("limit"),
    show=show,
    page=_page,
    markdown=markdown,
    draw=draw,
)
