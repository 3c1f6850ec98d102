"""The report of a fix: what it saves, how to use it, and everything that was tried."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from memdiag.detail import Detail
from memdiag.records import codec
from memdiag.records.fix import Fix
from memdiag.reports import markdown as md
from memdiag.reports.console import block, files, labelled, line, terminal_text
from memdiag.reports.fix.before_and_after import (
    change_table,
    latency_changes,
    memory_changes,
    outputs_text,
)
from memdiag.reports.fix.chart import draw_points, named_points, pareto_points
from memdiag.reports.fix.sentences import (
    answer,
    conditions,
    facts,
    next_step,
    offers,
    search_cost,
    why,
    written_files,
)
from memdiag.reports.fix.tables import named_table, points_table, remedy_table
from memdiag.reports.page import Plotly, SizeBar, page, size_bar_table
from memdiag.reports.report import Report, file_names
from memdiag.reports.table import markdown_table, print_table
from memdiag.reports.text import model_file, plain, plain_lines
from memdiag.units import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

_MAX_POINTS = 4
"""The rows of the summary on a terminal, which has room for a program below."""


def show(
    fix: Fix, console: Console, *, written: Sequence[Path] = (), detail: Detail = Detail.USUAL
) -> None:
    """Print the answer, why, and what to do; then the main points and the program.

    `written` are the files to name; `detail` is how much.
    """
    line(console, answer(fix), "bold")
    labelled(console, "Why", why(fix))
    labelled(console, "Do", next_step(fix))
    if detail is Detail.ANSWER:
        return
    if fix.points:
        console.print()
        print_table(console, points_table(fix, only_listed=False, limit=_MAX_POINTS))
    named = named_table(fix)
    if named.rows:
        console.print()
        print_table(console, named)
    last = [written_files(fix)] if written_files(fix) else []
    if fix.points and not written:
        last.append(f"{_measured(fix)}; --out DIR writes all, with notes")
    block(console, [" · ".join(last)])
    files(console, written)
    _show_program(fix, console)


def _measured(fix: Fix) -> str:
    return f"{counted(len(fix.points), 'combination')} measured, {search_cost(fix)}"


def _show_program(fix: Fix, console: Console) -> None:
    from rich.text import Text

    lines = plain_lines(fix.program)
    if lines:
        console.print()
    for text in lines:
        # Not wrapped: a program whose lines were broken would not run.
        console.print(Text(terminal_text(console, text)), highlight=False, soft_wrap=True)


def markdown(fix: Fix) -> str:
    """Return the answer, the program, the figures before and after, and what was tried."""
    program = plain_lines(fix.program)
    sentences = (("Why", why(fix)), ("What to do", next_step(fix)), *conditions(fix))
    changes = [replace(each, label=each.label.strip()) for each in memory_changes(fix)]
    is_changed = bool(fix.chosen)
    points = markdown_table(points_table(fix, only_listed=True)) if fix.points else ""
    remedies = md.section("Rewrites", markdown_table(remedy_table(fix))) if fix.remedies else ""
    return md.document(
        (
            f"## Fix of {md.code(model_file(fix.model))}",
            f"**{md.escape(answer(fix))}** {md.escape(facts(fix))}",
            "\n".join(f"- {label}: {md.escape(text)}" for label, text in sentences if text),
            f"Program for {md.escape(' + '.join(map(plain, fix.chosen)))}:" if program else "",
            md.code_block(program, "python"),
            markdown_table(change_table(changes, "figure")) if is_changed else "",
            "### What was tried" if points else "",
            points,
            f"{_measured(fix)}; the Pareto front, the defaults, the chosen one, and what was not"
            " compared although it takes less are shown."
            if points
            else "",
            md.bullets(offers(fix)),
            markdown_table(change_table(latency_changes(fix), "latency with"))
            if is_changed
            else "",
            remedies,
            md.bullets(map(plain, fix.notes)),
        )
    )


def _page(fix: Fix, *, plotly: Plotly = "inline") -> bytes:
    points = pareto_points(fix)
    figures_by_label = {"before": fix.before, "after": fix.after}
    bars = [
        SizeBar(label=label, peak=f.peak_bytes, steady=f.steady_bytes, mapped=f.file_bytes)
        for label, f in figures_by_label.items()
        if f is not None
    ]
    sentences = (("Why", why(fix)), ("What to do", next_step(fix)), *conditions(fix))
    return page(
        "fix.html.j2",
        ("fix.js",),
        {
            "model": model_file(fix.model),
            "facts": facts(fix),
            "answer": answer(fix),
            "sentences": [(label, text) for label, text in sentences if text],
            "bars": size_bar_table(bars) if fix.chosen else None,
            "memory": change_table(memory_changes(fix)),
            "latencies": change_table(latency_changes(fix), "inputs") if fix.chosen else None,
            "outputs": f"{outputs_text(fix)}.",
            "measured_once": fix.measured_once,
            "remedies": remedy_table(fix),
            "options": " + ".join(map(plain, fix.chosen)),
            "program": plain_lines(fix.program),
            "points": points_table(fix, only_listed=False),
            "measured": f"{_measured(fix)}.",
            "offers": tuple(offers(fix)),
            "has_chart": bool(points),
            "notes": tuple(map(plain, fix.notes)),
            "command": shlex.join(map(plain, fix.command)),
        },
        charts={
            "latencies": _drawn_latencies(fix) if fix.chosen else [],
            "points": [asdict(point) for point in points],
        },
        record=codec.encode(fix),
        record_name="fix",
        record_kind="fix",
        plotly=plotly,
    )


def _drawn_latencies(fix: Fix) -> list[dict[str, str | float]]:
    return [
        {
            "inputs": plain(at.inputs),
            "ratio": at.ratio,
            "low": at.low,
            "high": at.high,
            "before": change.before,
            "after": change.after,
        }
        for at, change in zip(fix.latencies, latency_changes(fix), strict=False)
    ]


def draw(fix: Fix) -> Figure:
    """Return the charts of the points, below the answer."""
    from memdiag.reports import picture

    points = pareto_points(fix)
    height = 5.9 + 0.22 * len(named_points(points)) if points else 1.2
    figure = picture.figure(height, model_file(fix.model), answer(fix))
    if points:
        draw_points(figure, points)
    return figure


REPORT = Report[Fix](
    name="fix",
    files=file_names("fix"),
    show=show,
    page=_page,
    markdown=markdown,
    draw=draw,
)
