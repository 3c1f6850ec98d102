"""The report of a fix: what was changed, the figures before and after, and what they depend on.

A tuning is a fix with points; its report uses these sentences and tables as well.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isinf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memdiag.records import codec
from memdiag.records.fix import Figures, Fix, LatencyAt, Point, Remedy, RemedyStatus
from memdiag.reports import markdown as md
from memdiag.reports.console import block, files, line, print_plain
from memdiag.reports.page import Plotly, SizeBar, page, size_bar_table
from memdiag.reports.palette import LIGHT as COLOR
from memdiag.reports.report import Report, file_names
from memdiag.reports.table import Cell, Column, Row, Table, markdown_table, print_table
from memdiag.reports.text import (
    at_sizes,
    capitalized,
    listed,
    model_file,
    plain,
    shortened,
    time_limit,
)
from memdiag.units import format_duration, format_size, format_sizes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Console

REWRITE = "rewrite"
"""The name that records give the fixed model among the options of a tuning."""

_STATUS_ORDER: tuple[RemedyStatus, ...] = (
    *("applied", "unverified", "possible", "undecided", "rejected", "refused", "untried"),
)
_MAX_WEIGHTS = 3
_MAX_NAMES = 6
_MAX_CONSOLE_LABEL = 30
_MAX_PICTURE_LABEL = 22
_MAX_RATIOS = 6
_BAR_HEIGHT = 0.36
_RATIO_RANGE = (0.9, 1.1)  # at least, so that small differences do not look large


@dataclass(frozen=True, kw_only=True)
class Change:
    """One figure before and after.

    Attributes:
        ratio: after ÷ before; empty if it says nothing.
        note: the ratio and its uncertainty.
        exact: both figures in bytes or seconds.
    """

    label: str
    before: str
    after: str
    ratio: str
    note: str
    exact: tuple[str, str]


def memory_changes(fix: Fix) -> tuple[Change, ...]:
    """Return memory, loading time and files before and after: peak and steady first.

    Empty if one of both is unknown.
    """
    before, after = fix.before, fix.after
    if before is None or after is None:
        return ()
    peak_spread = max(before.peak_spread_bytes, after.peak_spread_bytes)
    steady_spread = max(before.steady_spread_bytes, after.steady_spread_bytes)
    return (
        _size_change("peak", before.peak_bytes, after.peak_bytes, peak_spread),
        _size_change("steady", before.steady_bytes, after.steady_bytes, steady_spread),
        _size_change("  anonymous", before.anonymous_bytes, after.anonymous_bytes),
        _size_change("  mapped files", before.file_bytes, after.file_bytes),
        _duration_change("load", before.load_s, after.load_s),
        _size_change("on disk", before.disk_bytes, after.disk_bytes),
    )


def latency_changes(fix: Fix) -> tuple[Change, ...]:
    """Return the latencies before and after, by inputs; empty if one of both is unknown."""
    if fix.before is None or fix.after is None:
        return ()
    return tuple(map(_latency_change, fix.latencies))


def change_table(changes: Sequence[Change], heading: str = "") -> Table:
    """Return the table of `changes`; `heading` is that of their labels."""
    return Table(
        columns=(
            Column(heading, max_width=_MAX_CONSOLE_LABEL, css="name"),
            Column("before", "right"),
            Column("after", "right", css="strong"),
            Column("after ÷ before", css="shape", formats=("markdown", "html")),
            Column(wraps=True, formats=("console",)),
        ),
        rows=tuple(
            Row(
                change.label,
                Cell(change.before, title=change.exact[0]),
                Cell(change.after, title=change.exact[1]),
                change.note,
                change.note,
            )
            for change in changes
        ),
    )


def remedy_table(fix: Fix) -> Table:
    """Return what became of each remedy: the applied remedies first."""
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


def show_remedies(fix: Fix, console: Console) -> None:
    """Print what became of each remedy."""
    remedies = _ordered(fix.remedies)
    names = [shortened(plain(remedy.name), _MAX_CONSOLE_LABEL) for remedy in remedies]
    width = max(map(len, names), default=0)
    for remedy, name in zip(remedies, names, strict=True):
        style = "bold" if remedy.status == "applied" else ""
        reason = _reason_with_weights(remedy, fix.remedies)
        line(console, f"{remedy.status:<10}  {name:<{width}}  {reason}", style)


def show_changes(fix: Fix, console: Console) -> None:
    """Print the figures before and after, below a blank line; nothing if there are none."""
    latencies = (
        replace(change, label=f"latency, {change.label}") for change in latency_changes(fix)
    )
    changes = (*memory_changes(fix), *latencies)
    if changes:
        console.print()
        print_table(console, change_table(changes))
        line(console, f"outputs: {outputs_text(fix)}")


def outputs_text(fix: Fix) -> str:
    """Return how far the outputs differ from the original's."""
    largest = fix.largest_difference
    if largest is None:
        return "not compared"
    if not largest:
        return "equal, bit by bit"
    if isinf(largest) or fix.bound is None:
        return "differ"
    bound = f"bound {fix.bound:.1e}: {plain(fix.bound_reason)}" if fix.bound else "no bound"
    return f"largest difference {largest:.1e} of the largest value ({bound})"


def releases_text(fix: Fix) -> str:
    """Return the releases of onnxruntime that verified the output, and those that can load it.

    Empty without an output.
    """
    if fix.output is None:
        return ""
    verified_on = ", ".join(map(plain, fix.verified_on))
    verified = f"verified on {verified_on}" if verified_on else "not verified"
    loadable = "no release is known that can load it"
    if fix.oldest_onnxruntime is not None:
        oldest = plain(fix.oldest_onnxruntime)
        loadable = f"by what it declares, {oldest} and newer can load it"
    reason = f" ({plain(fix.oldest_reason)})" if fix.oldest_reason else ""
    return f"{verified}; {loadable}{reason}"


def written_text(fix: Fix) -> str:
    """Return the last line of the summary: which files were written, or why none were."""
    model, duration = plain(fix.model), format_duration(fix.duration_s)
    if fix.output is not None:
        written = (path for path in fix.output_files if path not in fix.kept_files)
        verified = "" if fix.verified else ", unverified"
        return f"wrote {', '.join(map(plain, written))} in {duration}{verified}{_kept_clause(fix)}"
    if not fix.remedies:
        return f"{model}: nothing to fix was found, in {duration}"
    if possible := _with_status(fix, "possible"):
        remedies = "1 remedy" if len(possible) == 1 else f"{len(possible)} remedies"
        return f"{model}: {remedies} would be tried; nothing was written"
    if undecided := _with_status(fix, "undecided"):
        names = ", ".join(undecided)
        return f"{model}: undecided about {names}, in {duration}; nothing was written"
    if _with_status(fix, "untried"):
        return (
            f"{model}: {_search_progress(fix)}; nothing was written; give it more with --time-limit"
        )
    return f"{model}: nothing was worth changing, in {duration}; nothing was written"


def is_conclusive(tuning: Fix) -> bool:
    """Return whether an option was compared with the defaults, or no option was left out."""
    is_compared = any(point.ratio is not None for point in tuning.points if point.options)
    return is_compared or not (tuning.untried or any(point.offered for point in tuning.points))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A fix or a tuning at a glance.

    Attributes:
        changes: peak and steady memory; empty if nothing was changed, or nothing measured.
        sentences: what was changed, latency, outputs, what it depends on, each with a label.
    """

    model: str
    facts: str
    answer: str
    changes: tuple[Change, ...]
    sentences: tuple[tuple[str, str], ...]


def answer(fix: Fix) -> Answer:
    """Return `fix` at a glance."""
    changes = memory_changes(fix)[:2] if _is_changed(fix) else ()
    needed_files = _needed_files(fix)
    sentences = (
        ("What was changed", _changed(fix)),
        ("Latency", _latency_sentence(fix.latencies) if changes and fix.latencies else ""),
        ("Outputs", f"{capitalized(outputs_text(fix))}." if changes else ""),
        ("It depends on", _dependencies(fix) if _is_changed(fix) else ""),
        ("Files", needed_files),
        ("onnxruntime", f"{capitalized(releases_text(fix))}." if needed_files else ""),
        ("What to do", _next_step(fix)),
    )
    facts = (
        at_sizes(fix.dimensions),
        f"onnxruntime {plain(fix.onnxruntime)}",
        f"took {format_duration(fix.duration_s)}",
    )
    return Answer(
        model=model_file(fix.model),
        facts=" · ".join(part for part in facts if part),
        answer=_answer_sentence(fix),
        changes=changes,
        sentences=tuple((label, text) for label, text in sentences if text),
    )


def fix_outcome(fix: Fix) -> str:
    """Return what `fix` saves and what to do, for the report of the model's profile.

    Empty if nothing was tried.
    """
    if not _is_changed(fix):
        if fix.points:
            return f"Options of the session were tried. {_changed(fix)}"
        return f"A fix was tried. {_changed(fix)}" if fix.before else ""
    names = listed(fix.chosen if fix.points else _applied(fix), limit=_MAX_NAMES, separator=" + ")
    changes = memory_changes(fix)[:2]
    if not changes:
        return f"Fixed by {names}, unverified: the model could not be run. {_next_step(fix)}"
    parts = [
        *(f"{change.label} {change.before} → {change.after}" for change in changes),
        *([f"latency {_ratio(_slowest(fix.latencies))}"] if fix.latencies else []),
        f"outputs {_outputs_clause(fix)}",
    ]
    nearest = "" if _fits(fix) else ", the nearest to a budget that nothing fits"
    end = f"It depends on: {_dependencies(fix)}" if fix.points else _next_step(fix)
    onnxruntime = f"onnxruntime {plain(fix.onnxruntime)}"
    return f"Fixed by {names}{nearest}: {', '.join(parts)} ({onnxruntime}). {end}"


def _size_change(label: str, before: int, after: int, spread: int = 0) -> Change:
    ratio = f"{after / before:.2f} ×" if before > 0 and after >= 0 else ""
    uncertainty = f" (± {format_size(spread // 2)})" if spread and ratio else ""
    texts = format_sizes(before, after)
    return Change(
        label=label,
        before=texts[0],
        after=texts[1],
        ratio=ratio,
        note=ratio + uncertainty,
        exact=(f"{before:,} bytes", f"{after:,} bytes"),
    )


def _latency_change(at: LatencyAt) -> Change:
    interval = f"{_ratio(at).removesuffix(')')}, {at.pairs} pairs)"
    return _duration_change(
        plain(at.inputs), at.before_s, at.after_s, f"{at.ratio:.2f} ×", interval
    )


def _duration_change(
    label: str, before: float, after: float, ratio: str = "", note: str = ""
) -> Change:
    return Change(
        label=label,
        before=format_duration(before),
        after=format_duration(after),
        ratio=ratio,
        note=note,
        exact=(f"{before:.6g} s", f"{after:.6g} s"),
    )


def _ratio(at: LatencyAt) -> str:
    """Return the ratio of latencies with its interval: ``0.99 × (0.97–1.01)``."""
    return f"{at.ratio:.2f} × ({at.low:.2f}–{at.high:.2f})"


def _ordered(remedies: Sequence[Remedy]) -> list[Remedy]:
    return sorted(remedies, key=lambda remedy: _STATUS_ORDER.index(remedy.status))


def _weights(remedy: Remedy) -> str:
    return listed(remedy.weights, limit=_MAX_WEIGHTS)


def _reason_with_weights(remedy: Remedy, remedies: Sequence[Remedy]) -> str:
    """Return the reason, after the weights if the remedy ended differently for other weights."""
    reason, weights = plain(remedy.reason), _weights(remedy)
    same = [r for r in remedies if (r.name, r.rule) == (remedy.name, remedy.rule)]
    return f"{weights}: {reason}" if len(same) > 1 and weights else reason


def _with_status(fix: Fix, status: RemedyStatus) -> list[str]:
    """Return the names of the remedies with `status`."""
    return [plain(remedy.name) for remedy in fix.remedies if remedy.status == status]


def _search_progress(fix: Fix) -> str:
    """Return how far the search got before its time limit."""
    count = len(_with_status(fix, "untried"))
    limit = time_limit(fix.command)
    if not _with_status(fix, "rejected"):
        return f"no remedy was tried to the end in {limit}"
    were = "1 remedy was" if count == 1 else f"{count} remedies were"
    return f"nothing worth changing was found in {limit}; {were} not tried"


def _kept_clause(fix: Fix) -> str:
    """Return which files of the original the output needs."""
    if not fix.kept_files:
        return ""
    names = ", ".join(plain(path) for path in fix.kept_files)
    together = "both files" if len(fix.output_files) == 2 else f"all {len(fix.output_files)} files"
    return f"; it keeps {format_size(fix.kept_bytes)} in {names}: keep {together} together"


def _is_changed(fix: Fix) -> bool:
    """Return whether something other than the original is to be used."""
    return bool(fix.chosen) if fix.points else fix.output is not None


def _applied(fix: Fix) -> list[str]:
    return [*_with_status(fix, "applied"), *_with_status(fix, "unverified")]


def _answer_sentence(fix: Fix) -> str:
    if not _is_changed(fix):
        return _changed(fix)
    changes = memory_changes(fix)[:2]
    if not changes:
        return "Changed, but not verified: the model could not be run."
    text = ", ".join(
        f"{c.label} {c.before} → {c.after}{f' ({c.ratio})' if c.ratio else ''}" for c in changes
    )
    nearest = "" if _fits(fix) else "Nothing fits the budget; the nearest is: "
    return capitalized(f"{nearest}{text}.")


def _changed(fix: Fix) -> str:
    """Return what was changed, or why nothing was."""
    if fix.points and not fix.chosen:
        if not is_conclusive(fix):
            return f"Nothing: no option was compared in {time_limit(fix.command)}."
        return "No option is worth it: the defaults are the best that was found."
    if fix.points:
        return f"The session's options: {_joined(fix.chosen)}."
    if fix.output is not None:
        return f"Remedies applied to a copy of the model: {_joined(_applied(fix))}."
    if not fix.remedies:
        return "Nothing to fix was found."
    if possible := _with_status(fix, "possible"):
        return f"Nothing yet; these remedies would be tried: {_joined(possible)}."
    if undecided := _with_status(fix, "undecided"):
        return f"Nothing yet; these may be too slow, which is undecided: {_joined(undecided)}."
    if _with_status(fix, "untried"):
        return f"Nothing yet: {_search_progress(fix)}."
    return "Nothing: no remedy that was tried is worth it."


def _joined(names: Sequence[str]) -> str:
    return listed(names, limit=_MAX_NAMES, separator=" + ")


def _latency_sentence(latencies: Sequence[LatencyAt]) -> str:
    slowest = _slowest(latencies)
    if len(latencies) == 1:
        return f"{_ratio(slowest)} that before."
    return f"At worst {_ratio(slowest)} that before, with {plain(slowest.inputs)}."


def _slowest(latencies: Sequence[LatencyAt]) -> LatencyAt:
    return max(latencies, key=lambda at: at.ratio)


def _outputs_clause(fix: Fix) -> str:
    largest = fix.largest_difference
    if fix.bound and largest and largest <= fix.bound:
        return f"within {fix.bound:.1e} of the largest value"
    return outputs_text(fix)


def _dependencies(fix: Fix) -> str:
    """Return the options and variables that the saving depends on beside the files."""
    point = _chosen_point(fix)
    parts = [
        *(f"{name}={value}" for name, value in fix.session_options.items()),
        *(f"${name}={value} in the environment" for name, value in fix.environment.items()),
        *(_point_settings(point) if point else ()),
    ]
    if not parts:
        return "The files alone: no option has to be set, and no variable."
    return f"{', '.join(map(plain, parts))}."


def _point_settings(point: Point) -> Sequence[str]:
    """Return what a point sets beside session options and environment."""
    return [
        *(f"{name}={value} for each run" for name, value in point.run_options.items()),
        *(f"without the optimizer {name}" for name in point.disabled_optimizers),
        *(["one arena for all sessions"] if point.shared_arena else []),
        *(["the optimized model, saved once"] if point.saved_options else []),
        *(["the model's bytes instead of its path"] if point.load_from == "bytes" else []),
        *(["weights mapped once for all sessions"] if point.shares_weights else []),
    ]


def _chosen_point(fix: Fix) -> Point | None:
    return next((point for point in fix.points if point.options == fix.chosen), None)


def _fits(fix: Fix) -> bool:
    point = _chosen_point(fix)
    return point is None or point.fits


def _needed_files(fix: Fix) -> str:
    """Return the files that the changed model needs; empty if it is not used."""
    if fix.output is None or (fix.points and REWRITE not in fix.chosen):
        return ""
    names = ", ".join(map(plain, fix.output_files))
    if len(fix.output_files) == 1:
        return f"{names}."
    kept = ", ".join(map(plain, fix.kept_files))
    reason = f", because {format_size(fix.kept_bytes)} of the weights are in {kept}" if kept else ""
    return f"{names}: keep them together{reason}."


def _next_step(fix: Fix) -> str:
    if fix.points:
        if not fix.chosen and not is_conclusive(fix):
            return "Run it again with a longer --time-limit, or none."
        if not fix.chosen:
            return "Keep the defaults."
        return "Create the session as the program below does."
    if fix.output is None:
        if _with_status(fix, "possible"):
            return "Run it again without --dry-run."
        if _with_status(fix, "undecided"):
            return "Run it again on a quieter machine, or with a higher --max-slowdown."
        if _with_status(fix, "untried"):
            return "Run it again with a longer --time-limit, or none."
        return "Options of the session may still help: let memdiag tune look for them."
    if not fix.verified:
        return f"Compare the outputs of {plain(fix.output)} with the original's before using it."
    return f"Load {plain(fix.output)} instead of {plain(fix.model)}."


def show(fix: Fix, console: Console, *, written: Sequence[Path] = (), quiet: bool = False) -> None:
    """Print `fix` on `console`; `written` are the files to name, `quiet` the answer only."""
    print_plain(console, lambda: _show(fix, console, written, quiet))


def _show(fix: Fix, console: Console, written: Sequence[Path], quiet: bool) -> None:
    sizes = at_sizes(fix.dimensions)
    if sizes:
        line(console, f"{plain(fix.model)}: measured {sizes}")
    if quiet:
        line(console, written_text(fix))
        return
    show_remedies(fix, console)
    show_changes(fix, console)
    block(console, [f"onnxruntime: {releases_text(fix)}"] if fix.output is not None else [])
    block(console, [f"note: {plain(note)}" for note in fix.notes])
    block(console, [written_text(fix)])
    files(console, written)


def markdown(fix: Fix) -> str:
    """Return the answer, the figures before and after, and what became of each remedy."""
    return document_of("Fix", fix)


def document_of(kind: str, fix: Fix, *further_blocks: str) -> str:
    """Return the report of a `kind` of fix, with `further_blocks` after the answer."""
    glance = answer(fix)
    changes = memory_changes(fix) if glance.changes else ()
    latencies = latency_changes(fix) if changes else ()
    stripped = [replace(change, label=change.label.strip()) for change in changes]
    return md.document(
        (
            f"## {kind} of {md.code(glance.model)}",
            f"**{md.escape(glance.answer)}** {md.escape(glance.facts)}",
            "\n".join(f"- {label}: {md.escape(text)}" for label, text in glance.sentences),
            markdown_table(change_table(stripped, "figure")),
            *further_blocks,
            markdown_table(change_table(latencies, "latency with")),
            md.section("Remedies", markdown_table(remedy_table(fix))),
            md.bullets(map(plain, fix.notes)),
        )
    )


def page_values(fix: Fix) -> dict[str, Any]:
    """Return what the pages of fixes and of tunings have in common."""
    glance = answer(fix)
    sides = (("before", fix.before), ("after", fix.after))
    bars = [
        SizeBar(label=label, peak=f.peak_bytes, steady=f.steady_bytes, mapped=f.file_bytes)
        for label, f in sides
        if f is not None
    ]
    return {
        "glance": glance,
        "bars": size_bar_table(bars) if glance.changes else None,
        "memory": change_table(memory_changes(fix)),
        "latencies": change_table(latency_changes(fix), "inputs"),
        "outputs": f"{outputs_text(fix)}.",
        "remedies": remedy_table(fix),
        "notes": tuple(map(plain, fix.notes)),
        "command": shlex.join(map(plain, fix.command)),
    }


def page_charts(fix: Fix) -> dict[str, Any]:
    """Return what the script draws of fixes and of tunings."""
    return {
        "latencies": [
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
    }


def _page(fix: Fix, *, plotly: Plotly = "inline") -> bytes:
    return page(
        "fix.html.j2",
        ("fix.js",),
        {"kind": "fix", **page_values(fix)},
        charts=page_charts(fix),
        record=codec.encode(fix),
        record_name="fix",
        plotly=plotly,
    )


def draw(fix: Fix) -> Figure:
    """Return bars of memory and files, the latencies below them; only words if nothing is known."""
    from memdiag.reports import picture

    glance = answer(fix)
    ratios = sorted(fix.latencies, key=lambda at: -at.ratio)[:_MAX_RATIOS]
    if fix.before is None or fix.after is None:
        return picture.figure(1.2, glance.model, glance.answer)
    heights = [2.6, 0.5 + 0.34 * len(ratios)] if ratios else [2.6]
    figure = picture.figure(1.3 + sum(heights), glance.model, glance.answer)
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
    labels = [shortened(plain(at.inputs), _MAX_PICTURE_LABEL) for at in latencies]
    axes.set_yticks(range(len(latencies)), labels)
    axes.set_ylim(len(latencies) - 0.5, -0.5)
    of = "" if count == len(latencies) else f", the largest {len(latencies)} of {count}"
    picture.style(axes, f"latency, × that before, with its interval{of}", grid="x")


REPORT = Report[Fix](
    name="fix",
    files=file_names("fix"),
    show=show,
    page=_page,
    markdown=markdown,
    draw=draw,
)
