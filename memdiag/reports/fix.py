"""The report of a fix: the remedies, the figures before and after, and the files."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memdiag.records import codec
from memdiag.records.fix import Fix, Remedy, RemedyStatus
from memdiag.records.measured_change import Figures, LatencyAt
from memdiag.reports import markdown as md
from memdiag.reports.console import block, files, line
from memdiag.reports.measured_change import (
    MEASURED_ONCE,
    ChangeSummary,
    added_by_inputs,
    answer_sentence,
    joined_names,
    latency_clause,
    latency_sentence,
    make_summary,
    markdown_document,
    measured_sizes,
    memory_changes,
    outputs_text,
    page_charts,
    page_values,
    saving_text,
    show_changes,
)
from memdiag.reports.page import Plotly, page
from memdiag.reports.palette import LIGHT as COLOR
from memdiag.reports.report import Report, file_names
from memdiag.reports.table import Cell, Column, Row, Table, markdown_table
from memdiag.reports.text import (
    again_with_time,
    capitalized,
    listed,
    plain,
    shortened,
    time_limit,
)
from memdiag.units import format_duration, format_size, format_sizes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Console

_STATUS_ORDER: tuple[RemedyStatus, ...] = (
    *("applied", "unverified", "possible", "undecided", "rejected", "refused", "untried"),
)
NEEDS_NOTHING_ELSE = "The files alone: no option has to be set, and no variable."
_TRY_OPTIONS = "memdiag optimize tries options of the session and optimizers, too"
_MAX_WEIGHTS = 3
_MAX_NAMES = 6
_MAX_REASON = 120
_MAX_CONSOLE_NAME = 30
_MAX_PICTURE_LABEL = 22
_MAX_RATIOS = 6
_BAR_HEIGHT = 0.36
_RATIO_RANGE = (0.9, 1.1)  # at least, so that small differences do not look large


def show(fix: Fix, console: Console, *, written: Sequence[Path] = (), quiet: bool = False) -> None:
    """Print `fix`; `written` are the files to name; `quiet` prints only the answer."""
    line(console, summary_line(fix), "bold")
    if quiet:
        if fix.output is not None:
            line(console, written_text(fix))
        return
    console.print()
    show_remedies(fix, console)
    show_changes(fix, console)
    block(console, [f"onnxruntime: {releases_text(fix)}"] if fix.output is not None else [])
    block(console, [f"note: {plain(note)}" for note in fix.notes])
    if fix.output is not None:
        block(console, [written_text(fix), _untried_text(fix)])
    files(console, written)


def summary_line(fix: Fix) -> str:
    """Return the saving, its remedies, and the sizes of the inputs; or why there is none."""
    sizes = measured_sizes(fix)
    at = f", {sizes}" if sizes else ""
    changes = memory_changes(fix)[:2]
    if fix.output is None:
        return written_text(fix)
    if not changes:
        return f"{plain(fix.model)}: changed by {joined_names(_applied(fix))}, unverified{at}"
    once = ", memory measured once" if fix.measured_once else ""
    latency = f", {text}" if (text := latency_clause(fix.latencies)) else ""
    return (
        f"{plain(fix.model)}: {saving_text(changes)}{added_by_inputs(fix)}{once}{latency}, by"
        f" {joined_names(_applied(fix))}{at}"
    )


def show_remedies(fix: Fix, console: Console) -> None:
    """Print the result of each remedy."""
    remedies = _ordered(fix.remedies)
    names = [shortened(plain(remedy.name), _MAX_CONSOLE_NAME) for remedy in remedies]
    width = max(map(len, names), default=0)
    for remedy, name in zip(remedies, names, strict=True):
        style = "bold" if remedy.status == "applied" else ""
        reason = _reason_with_weights(remedy, fix.remedies)
        line(console, f"{remedy.status:<10}  {name:<{width}}  {reason}", style)


def remedy_table(fix: Fix) -> Table:
    """Return the result of each remedy: the applied remedies first."""
    rows = []
    for remedy in _ordered(fix.remedies):
        status = Cell(remedy.status, is_strong=remedy.status == "applied")
        name, rule = Cell(plain(remedy.name), is_code=True), Cell(plain(remedy.rule), is_code=True)
        reason = _reason_with_weights(remedy, fix.remedies)
        rows.append(Row(status, name, rule, _weights(remedy), plain(remedy.reason), reason))
    return Table(
        columns=(
            Column("status"),
            Column("remedy", css="name"),
            Column("rule", css="name"),
            Column("weights", css="name", formats=("html",)),
            Column("why", css="prose", formats=("html",)),
            Column("why", formats=("markdown",)),
        ),
        rows=tuple(rows),
    )


def remedy_section(fix: Fix) -> str:
    """Return the section of the remedies in Markdown; empty if there are none."""
    return md.section("Remedies", markdown_table(remedy_table(fix)))


def written_text(fix: Fix, *, with_duration: bool = True) -> str:
    """Return the last line of the summary: which files were written, or why none were."""
    model, duration = plain(fix.model), format_duration(fix.duration_s)
    if fix.output is not None:
        written = (path for path in fix.output_files if path not in fix.kept_files)
        verified = "" if fix.verified else ", unverified"
        after = f" in {duration}" if with_duration else ""
        return f"wrote {', '.join(map(plain, written))}{after}{verified}{_kept_clause(fix)}"
    if not fix.remedies:
        return f"{model}: nothing to fix was found, in {duration}. {_TRY_OPTIONS}"
    if possible := _with_status(fix, "possible"):
        remedies = "1 remedy" if len(possible) == 1 else f"{len(possible)} remedies"
        return f"{model}: {remedies} would be tried; nothing was written"
    if undecided := _with_status(fix, "undecided"):
        names = ", ".join(undecided)
        left = f". {capitalized(_untried_text(fix))}" if _with_status(fix, "untried") else ""
        return f"{model}: undecided about {names}, in {duration}; nothing was written{left}"
    if _with_status(fix, "untried"):
        return f"{model}: {_search_progress(fix)}. Nothing was written. {_again(fix)}"
    if reason := _common_refusal(fix):
        return f"{model}: no remedy can be applied ({reason}); nothing was written. {_TRY_OPTIONS}"
    return (
        f"{model}: nothing was worth changing, in {duration}; nothing was written. {_TRY_OPTIONS}"
    )


def _common_refusal(fix: Fix) -> str:
    """Return the most frequent reason if all remedies were refused; empty otherwise."""
    if any(remedy.status != "refused" for remedy in fix.remedies):
        return ""
    ((reason, _),) = Counter(remedy.reason for remedy in fix.remedies).most_common(1)
    return shortened(plain(reason), _MAX_REASON)


def _untried_text(fix: Fix) -> str:
    """Return the sentences on untried changes; empty if all were tried."""
    return f"{_search_progress(fix)}. {_again(fix)}" if _with_status(fix, "untried") else ""


def releases_text(fix: Fix) -> str:
    """Return the releases of onnxruntime that verified the output or can load it.

    Empty without an output.
    """
    if fix.output is None:
        return ""
    verified_on = ", ".join(map(plain, fix.verified_on))
    verified = f"verified on {verified_on}" if verified_on else "not verified"
    loadable, reason = "no release is known that can load it", fix.oldest_reason
    if fix.oldest_onnxruntime is not None:
        loadable = f"{plain(fix.oldest_onnxruntime)} and newer can load it"
        reason = reason or "by its versions of the IR and operators"
    return f"{verified}; {loadable}{f' ({plain(reason)})' if reason else ''}"


def needed_files(fix: Fix) -> str:
    """Return the files that the fixed model needs; empty if none was written."""
    if fix.output is None:
        return ""
    names = ", ".join(map(plain, fix.output_files))
    if len(fix.output_files) == 1:
        return f"{names}."
    kept = ", ".join(map(plain, fix.kept_files))
    reason = f", because {format_size(fix.kept_bytes)} of the weights are in {kept}" if kept else ""
    return f"{names}: keep them together{reason}."


def fix_summary(fix: Fix) -> ChangeSummary:
    """Return the summary of `fix`."""
    is_changed = fix.output is not None
    changes = memory_changes(fix)[:2] if is_changed else ()
    answer = _changed(fix)
    if is_changed:
        unverified = "Changed, but not verified: the model could not be run."
        answer = answer_sentence(fix, changes) if changes else unverified
    return make_summary(
        fix,
        answer,
        changes,
        (
            ("What was changed", _changed(fix)),
            ("Memory", MEASURED_ONCE if fix.measured_once else ""),
            ("Latency", latency_sentence(fix.latencies) if changes else ""),
            ("Outputs", f"{capitalized(outputs_text(fix))}." if changes else ""),
            ("Settings", NEEDS_NOTHING_ELSE if is_changed else ""),
            ("Files", needed_files(fix)),
            ("onnxruntime", f"{capitalized(releases_text(fix))}." if is_changed else ""),
            ("What to do", _next_step(fix)),
        ),
    )


def markdown(fix: Fix) -> str:
    """Return the answer, the figures before and after, and the result of each remedy."""
    return markdown_document("Fix", fix, fix_summary(fix), remedies=remedy_section(fix))


def _page(fix: Fix, *, plotly: Plotly = "inline") -> bytes:
    return page(
        "fix.html.j2",
        ("fix.js",),
        {"kind": "fix", **page_values(fix, fix_summary(fix)), "remedies": remedy_table(fix)},
        charts=page_charts(fix),
        record=codec.encode(fix),
        record_name="fix",
        record_kind="fix",
        plotly=plotly,
    )


def _changed(fix: Fix) -> str:
    """Return the sentence on the applied remedies, or why there are none."""
    if fix.output is not None:
        return f"Remedies applied to a copy of the model: {joined_names(_applied(fix))}."
    if not fix.remedies:
        return "Nothing to fix was found."
    if possible := _with_status(fix, "possible"):
        return f"Nothing yet; these remedies would be tried: {joined_names(possible)}."
    if undecided := _with_status(fix, "undecided"):
        return (
            f"Nothing yet. It is not clear whether these are too slow: {joined_names(undecided)}."
        )
    if _with_status(fix, "untried"):
        return f"Nothing yet: {_search_progress(fix)}."
    if reason := _common_refusal(fix):
        return f"Nothing: no remedy can be applied ({reason})."
    return "Nothing: no remedy that was tried is worth it."


def _next_step(fix: Fix) -> str:
    if fix.output is None:
        if _with_status(fix, "possible"):
            return "Run it again without --dry-run."
        if _with_status(fix, "untried"):
            return _again(fix)
        if _with_status(fix, "undecided"):
            return "Run it again on a quieter machine, or with a higher --max-slowdown."
        return "Options of the session may still help: let memdiag tune search for them."
    if not fix.verified:
        return f"Compare the outputs of {plain(fix.output)} with the original's before using it."
    return f"Load {plain(fix.output)} instead of {plain(fix.model)}."


def _search_progress(fix: Fix) -> str:
    """Return which remedies were not tried when the search was ended."""
    untried = _with_status(fix, "untried")
    ended = "the search was interrupted"
    if fix.ended_by != "interrupt":
        ended = f"{time_limit(fix.command)} passed"
    subject = "this remedy was" if len(untried) == 1 else "these remedies were"
    return f"{ended} before {subject} tried to the end: {listed(untried, limit=_MAX_NAMES)}"


def _again(fix: Fix) -> str:
    """Return the sentence on how the untried remedies can be tried."""
    if fix.ended_by == "interrupt":
        return "Run it again."
    return f"{capitalized(again_with_time(fix.sufficient_time_limit_s))}."


def _kept_clause(fix: Fix) -> str:
    """Return which files of the original the output needs."""
    if not fix.kept_files:
        return ""
    names = ", ".join(plain(path) for path in fix.kept_files)
    together = "both files" if len(fix.output_files) == 2 else f"all {len(fix.output_files)} files"
    left = format_size(fix.kept_bytes)
    return f"; {left} of its weights are still in {names}: move {together} together"


def _applied(fix: Fix) -> list[str]:
    return [*_with_status(fix, "applied"), *_with_status(fix, "unverified")]


def _with_status(fix: Fix, status: RemedyStatus) -> list[str]:
    """Return the names of the remedies with `status`."""
    return [plain(remedy.name) for remedy in fix.remedies if remedy.status == status]


def _ordered(remedies: Sequence[Remedy]) -> list[Remedy]:
    return sorted(remedies, key=lambda remedy: _STATUS_ORDER.index(remedy.status))


def _weights(remedy: Remedy) -> str:
    return listed(remedy.weights, limit=_MAX_WEIGHTS)


def _reason_with_weights(remedy: Remedy, remedies: Sequence[Remedy]) -> str:
    """Return the reason, after the weights if the remedy ended differently for other weights."""
    reason, weights = plain(remedy.reason), _weights(remedy)
    same = [r for r in remedies if (r.name, r.rule) == (remedy.name, remedy.rule)]
    return f"{weights}: {reason}" if len(same) > 1 and weights else reason


def draw(fix: Fix) -> Figure:
    """Return bars of memory and files, the latencies below them; only words if nothing is known."""
    from memdiag.reports import picture

    summary = fix_summary(fix)
    ratios = sorted(fix.latencies, key=lambda at: -at.ratio)[:_MAX_RATIOS]
    if fix.before is None or fix.after is None:
        return picture.figure(1.2, summary.model, summary.answer)
    heights = [2.6, 0.5 + 0.45 * len(ratios)] if ratios else [2.6]
    figure = picture.figure(1.3 + sum(heights), summary.model, summary.answer)
    grid = figure.add_gridspec(len(heights), 1, height_ratios=heights)
    _draw_sizes(figure.add_subplot(grid[0]), fix.before, fix.after)
    if ratios:
        _draw_ratios(figure.add_subplot(grid[1]), ratios, len(fix.latencies))
    return figure


def _draw_sizes(axes: Axes, before: Figures, after: Figures) -> None:
    """Draw peak, steady memory (mapped files paler) and files, each before and after."""
    from memdiag.reports import picture

    largest = max(*_drawn_sizes(before), *_drawn_sizes(after))
    unit, unit_name = picture.size_unit(largest)
    sides = (
        (-0.5, before, after, COLOR.muted),
        (0.5, after, before, COLOR.anonymous),
    )
    for shift, figures, other, color in sides:
        steady = max(0, figures.steady_bytes)
        mapped = min(steady, max(0, figures.file_bytes))
        anonymous = steady - mapped
        for place, size in enumerate((figures.peak_bytes, anonymous, figures.disk_bytes)):
            axes.barh(place + shift * _BAR_HEIGHT, max(0, size) / unit, _BAR_HEIGHT, color=color)
        axes.barh(
            1 + shift * _BAR_HEIGHT, mapped / unit, _BAR_HEIGHT, left=anonymous / unit,
            color=color, alpha=0.45,
        )  # fmt: skip
        sizes = zip(_drawn_sizes(figures), _drawn_sizes(other), strict=True)
        for place, (size, other_size) in enumerate(sizes):
            axes.annotate(
                format_sizes(size, other_size)[0],
                (max(0, size) / unit, place + shift * _BAR_HEIGHT), xytext=(4, 0),
                textcoords="offset points", va="center", fontsize=picture.SMALL,
                color=COLOR.ink,
            )  # fmt: skip
    axes.set_yticks(range(3), ["peak", "steady", "on disk"])
    axes.set_ylim(2.5, -0.5)
    axes.set_xlim(0, 1.16 * largest / unit if largest > 0 else 1)
    heading = f"{unit_name}, before (grey) and after (blue); mapped files pale"
    picture.style(axes, heading, grid="x")


def _drawn_sizes(figures: Figures) -> tuple[int, int, int]:
    return figures.peak_bytes, figures.steady_bytes, figures.disk_bytes


def _draw_ratios(axes: Axes, latencies: Sequence[LatencyAt], count: int) -> None:
    """Draw the ratio for each set of inputs on its interval, the largest first."""
    from memdiag.reports import picture

    for place, at in enumerate(latencies):
        axes.plot([at.low, at.high], [place, place], color=COLOR.rail, lw=3)
        axes.plot(at.ratio, place, "o", color=COLOR.anonymous, markersize=8)
    axes.axvline(1, color=COLOR.ink, lw=1.2, linestyle=(0, (2, 2)))
    low = min(_RATIO_RANGE[0], *(min(at.low, at.ratio) for at in latencies))
    high = max(_RATIO_RANGE[1], *(max(at.high, at.ratio) for at in latencies))
    axes.set_xlim(low - 0.04 * (high - low), high + 0.04 * (high - low))
    axes.set_yticks(range(len(latencies)), [_picture_label(at) for at in latencies])
    axes.set_ylim(len(latencies) - 0.5, -0.5)
    of = "" if count == len(latencies) else f", the largest {len(latencies)} of {count}"
    picture.style(axes, f"latency, × that before, with its interval{of}", grid="x")


def _picture_label(at: LatencyAt) -> str:
    """Return the inputs in at most two lines."""
    lines = textwrap.wrap(plain(at.inputs), _MAX_PICTURE_LABEL, max_lines=2, placeholder="…")
    return "\n".join(lines)


REPORT = Report[Fix](
    name="fix",
    files=file_names("fix"),
    show=show,
    page=_page,
    markdown=markdown,
    draw=draw,
)
