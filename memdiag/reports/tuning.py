"""The report of a tuning: the options that were measured, the chosen ones, and their program."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from memdiag.records import codec
from memdiag.records.fix import Fix
from memdiag.records.tuning import LOAD_BY_PATH, REWRITE, Point, Tuning
from memdiag.reports import fix as fix_report
from memdiag.reports import markdown as md
from memdiag.reports.console import block, files, line, terminal_text
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
from memdiag.reports.pareto_chart import (
    draw_points,
    named_points,
    pareto_points,
    point_label,
    point_sizes,
)
from memdiag.reports.report import Report, file_names
from memdiag.reports.table import Cell, Column, Row, Table, markdown_table, print_table
from memdiag.reports.text import (
    again_with_time,
    capitalized,
    dim_option,
    plain,
    plain_lines,
    shortened,
    time_limit,
)
from memdiag.units import counted, format_duration, format_limit, format_size, format_sizes

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

_MAX_PROBLEM = 200
_MAX_OFFERS = 5
_LEFT_OUT = ("--only", "--time-limit", "--out")


def show(
    tuning: Tuning,
    console: Console,
    *,
    written: Sequence[Path] = (),
    quiet: bool = False,
    every: bool = False,
) -> None:
    """Print `tuning`: the answer only if `quiet`, all points if `every`.

    `written` are the files to name.
    """
    line(console, summary_line(tuning), "bold")
    if quiet:
        if tuning.write_problem:
            line(console, _not_written(tuning))
        return
    fix = _used_fix(tuning)
    found = _fix_to_list(tuning)
    if found is not None and found.remedies:
        console.print()
        fix_report.show_remedies(found, console)
    if tuning.chosen:
        show_changes(tuning, console)
    console.print()
    print_table(console, points_table(tuning, only_listed=not every))
    if every:
        problems = [point for point in points_by_memory(tuning) if point.problem]
        block(console, [f"{point_label(point)}: {_problem(point)}" for point in problems])
    if tuning.write_problem:
        block(console, [_not_written(tuning)])
    elif tuning.output_files:
        block(console, [f"wrote {', '.join(map(plain, tuning.output_files))}"])
    elif fix is not None and fix.output is not None:
        releases = f"onnxruntime: {fix_report.releases_text(fix)}"
        block(console, [fix_report.written_text(fix, with_duration=False), releases])
    notes = [f"note: {plain(note)}" for note in tuning.notes]
    block(console, [_count_line(tuning, every), *offers(tuning), *notes])
    files(console, written)
    _show_program(tuning, console)


def _used_fix(tuning: Tuning) -> Fix | None:
    """Return the fix, unless the chosen point does without its model."""
    return tuning.fix if REWRITE in tuning.chosen or not tuning.chosen else None


def _fix_to_list(tuning: Tuning) -> Fix | None:
    """Return the fix whose remedies are listed: one that is used, or one that wrote no model."""
    fix = tuning.fix
    return fix if fix is not None and fix.output is None else _used_fix(tuning)


def _not_written(tuning: Tuning) -> str:
    return f"the new model was not written: {plain(tuning.write_problem)}"


def _count_line(tuning: Tuning, every: bool) -> str:
    """Return how many combinations were measured and listed."""
    listed = sum(is_listed(tuning, point) for point in tuning.points)
    count = f"{counted(len(tuning.points), 'combination')} measured"
    if listed < len(tuning.points) and not every:
        count += f", {listed} listed here (all with --all)"
    return f"{count}; {search_cost(tuning)}. memdiag explain NAME describes an option"


def _show_program(tuning: Tuning, console: Console) -> None:
    from rich.text import Text

    lines = plain_lines(tuning.program)
    if lines:
        block(console, [f"program for {_all_options(tuning)}:"])
        console.print()
    for text in lines:
        # Not wrapped: a program whose lines were broken would not run.
        console.print(Text(terminal_text(console, text)), highlight=False, soft_wrap=True)


def summary_line(tuning: Tuning) -> str:
    """Return the saving, the options that it needs, and the sizes of the inputs."""
    sizes_of_inputs = measured_sizes(tuning)
    at = f", {sizes_of_inputs}" if sizes_of_inputs else ""
    before, after, chosen = tuning.before, tuning.after, tuning.chosen_point
    if chosen is None:
        return f"{plain(tuning.model)}: the chosen options are not among the combinations"
    start = f"{plain(tuning.model)}: {_budget_words(tuning, chosen)}"
    if tuning.write_problem and chosen.fits:
        start += "the new model was not written; with it "
    if before is None or after is None:
        return f"{start}{point_label(chosen)}{at}"
    if not chosen.options:
        sizes = f"peak {format_size(after.peak_bytes)}, steady {format_size(after.steady_bytes)}"
        if not tuning.is_conclusive and not (tuning.budget and chosen.fits):
            found = f"nothing was verified {_until(tuning)}. The defaults take {sizes}{at}."
            return f"{plain(tuning.model)}: {found} {_most_promising(tuning)}"
        return f"{start}the defaults ({sizes}){at}. {capitalized(_why_defaults(tuning))}"
    clause = latency_clause(tuning.latencies)
    ratio = f", {clause}" if clause else ""
    if ratio and chosen.undecided:
        ratio += ", undecided"
    once = ", memory measured once" if tuning.measured_once else ""
    saving = f"{saving_text(memory_changes(tuning)[:2])}{added_by_inputs(tuning)}"
    left = _uncompared(tuning)
    return f"{start}{saving}{once}{ratio}, by {point_label(chosen)}{at}{left}"


def _uncompared(tuning: Tuning) -> str:
    """Return the clause on the points that take less but were not compared; empty for none."""
    count = sum(point.offered for point in tuning.points)
    if not count:
        return ""
    some = "1 combination takes" if count == 1 else f"{count} combinations take"
    latency = "its latency" if count == 1 else "their latency"
    but = f"there was no time to compare {latency}"
    if tuning.ended_by == "interrupt":
        but = f"{latency} was not compared"
    return f"; {some} less memory, but {but}"


def _most_promising(tuning: Tuning) -> str:
    """Return the sentence on what the search would verify next, and how to have it verified."""
    offered = _offered(tuning)
    if not offered:
        text = f"Of the options {_outcomes(tuning)}"
    else:
        figures, label = offered[0].figures, point_label(offered[0])
        assert figures is not None
        sizes = (
            f"peak {format_size(figures.peak_bytes)}, steady {format_size(figures.steady_bytes)}"
        )
        text = (
            f"The most promising is {label} ({sizes}), whose outputs and latency were not compared"
        )
    return text if tuning.ended_by == "interrupt" else f"{text}; {_again(tuning)}"


def _budget_words(tuning: Tuning, chosen: Point) -> str:
    """Return the words on whether the chosen point fits the budget; empty without one."""
    nothing, nearest = _nothing(tuning), "the nearest is "
    if tuning.write_problem:
        nearest = "the nearest, whose model was not written, is "
    if not tuning.budget:
        return "" if chosen.fits else f"{nothing} fits; {nearest}"
    limits = " and ".join(
        f"{format_limit(size)} {plain(name)}" for name, size in tuning.budget.items()
    )
    if chosen.fits:
        return f"fits the budget of {limits}: "
    return f"{nothing} fits the budget of {limits}; {nearest}"


def _nothing(tuning: Tuning) -> str:
    """Return the subject of a sentence on a budget that no compared combination fits."""
    return "nothing" if tuning.is_complete else "nothing that was compared"


def _why_defaults(tuning: Tuning) -> str:
    """Return the sentence on why the defaults were kept, with tried and untried options."""
    if tuning.budget and _fits(tuning):
        return "no option that was compared is clearly faster"
    start = f"{_no_option(tuning)} is worth it"
    outcomes = _outcomes(tuning)
    return f"{start}: {outcomes}" if outcomes else start


def _outcomes(tuning: Tuning) -> str:
    """Return what became of the options, with how many or the name of a single one."""
    tried = [point for point in tuning.points if point.options]
    problems = Counter(_problem(point) for point in tried if point.problem)
    often = ", most often" if problems.total() > 1 else ""
    reason = "".join(f"{often}: {problem}" for problem, _ in problems.most_common(1))
    least = _memory(tuning.points[0])
    unusable = [point for point in tried if point.problem]
    saving = [point for point in tried if not point.problem and _memory(point) < least]
    undecided = [point for point in saving if point.undecided]
    slower = [point for point in saving if point.is_too_slow(tuning.max_slowdown)]
    offered = [point for point in saving if point.offered]
    containing = [
        point
        for point in saving
        if point.ratio is None
        if not point.offered
        if any({*slow.options} < {*point.options} for slow in slower)
    ]
    others = [*unusable, *undecided, *slower, *offered, *containing]
    idle = [point for point in tried if point not in others]
    untried = tuning.untried
    was = "was" if len(untried) == 1 else "were"
    parts = (
        (_named(idle), "saved too little memory"),
        (_named(slower), "saved memory but lost too much time"),
        (_named(containing), "contained options that lost too much time"),
        (_named(undecided), "saved memory but may be too slow"),
        (_named(offered), f"saved memory but latency was not compared{_in_time(tuning)}"),
        (untried[0] if len(untried) == 1 else len(untried), f"{was} not tried{_in_time(tuning)}"),
        (_named(unusable), f"could not be used{reason}"),
    )
    return ", ".join(f"{subject} {text}" for subject, text in parts if subject)


def _no_option(tuning: Tuning) -> str:
    return "no option" if tuning.is_complete else "no option that was compared"


def _named(points: Sequence[Point]) -> str | int:
    """Return the name of a single point, or the number of points."""
    return point_label(points[0]) if len(points) == 1 else len(points)


def _in_time(tuning: Tuning) -> str:
    """Return what is said of steps that are missing, unless the user ended the search."""
    return "" if tuning.ended_by == "interrupt" else " in time"


def _until(tuning: Tuning) -> str:
    """Return the end of the search as a clause."""
    if tuning.ended_by == "interrupt":
        return "before the interruption"
    return f"within {time_limit(tuning.command)}"


def offers(tuning: Tuning) -> Iterator[str]:
    """Yield a sentence on each point whose latency was not compared, and how to continue."""
    offered = _offered(tuning)
    advice = _advice_on_one(tuning, offered[0]) if len(offered) == 1 else ""
    for point in offered[:_MAX_OFFERS]:
        assert point.figures is not None
        peak, steady = format_sizes(point.figures.peak_bytes, point.figures.steady_bytes)
        yield f"not compared: {point_label(point)} takes peak {peak}, steady {steady}{advice}"
    if len(offered) > _MAX_OFFERS:
        left = len(offered) - _MAX_OFFERS
        more = "combination that saves" if left == 1 else "combinations that save"
        yield f"not compared: {left} more {more} memory"
    if len(offered) > 1:
        yield (
            f"to compare the latency of all of them, {_again(tuning)}; to compare one, and get its"
            " program if it is fast enough, add --only with its names, separated by commas"
        )
    if tuning.untried:
        again = "" if len(offered) > 1 else f"; to try all, {_again(tuning)}"
        yield f"not tried{_in_time(tuning)}: {', '.join(tuning.untried)}{again}"


def _advice_on_one(tuning: Tuning, point: Point) -> str:
    """Return how to compare the latency of `point`, which is the only one that is offered."""
    model = shlex.quote(plain(tuning.model)) + dim_option(tuning.dimensions)
    all_names = {name for each in tuning.points for name in each.options} | {*tuning.untried}
    names = [name for name in point.options if name != REWRITE]
    command = "tune" if tuning.fix is None else "optimize"
    start = _without_limits(tuning.command) or f"memdiag {command} {model}"
    again = f"run {start} --only {','.join(names)}"
    # Rewrites are tried in any case, and so are all names if these are all.
    if not names or {*names} == all_names - {REWRITE}:
        again = _again(tuning)
    return f". To compare its latency, and get its program if it is fast enough, {again}"


def _without_limits(command: Sequence[str]) -> str:
    """Return `command` without what limits it, and without the folder of this report."""
    kept: list[str] = []
    is_value = False
    for word in command:
        if not is_value and word.partition("=")[0] not in _LEFT_OUT:
            kept.append(word)
        is_value = word in _LEFT_OUT
    return plain(shlex.join(kept))


def _all_options(tuning: Tuning) -> str:
    return " + ".join(map(plain, tuning.chosen))


def search_cost(tuning: Tuning) -> str:
    """Return how many sessions were started, and how long it took."""
    sessions = f"{tuning.sessions} sessions a process, " if tuning.sessions > 1 else ""
    duration = format_duration(tuning.duration_s)
    processes = f"{tuning.processes} processes together, " if tuning.processes > 1 else ""
    return f"{processes}{sessions}{tuning.session_count} sessions were started in {duration}"


def tuning_summary(tuning: Tuning) -> ChangeSummary:
    """Return the summary of `tuning`."""
    is_changed = bool(tuning.chosen)
    changes = memory_changes(tuning)[:2] if is_changed else ()
    answer = _changed(tuning)
    if changes:
        answer = answer_sentence(tuning, changes)
        if not _fits(tuning):
            nothing = capitalized(_nothing(tuning))
            answer = f"{nothing} fits the budget; the nearest is: {saving_text(changes)}."
    fix = _used_fix(tuning)
    releases = f"{capitalized(fix_report.releases_text(fix))}." if fix and fix.output else ""
    return make_summary(
        tuning,
        answer,
        changes,
        (
            ("What was changed", _changed(tuning)),
            ("Memory", MEASURED_ONCE if tuning.measured_once else ""),
            ("Latency", _latency(tuning) if changes else ""),
            ("Outputs", f"{capitalized(outputs_text(tuning))}." if changes else ""),
            ("Settings", _dependencies(tuning) if is_changed else ""),
            ("Files", _needed_files(tuning)),
            ("onnxruntime", releases),
            ("What to do", _next_step(tuning)),
        ),
    )


def _latency(tuning: Tuning) -> str:
    """Return the largest ratio of latencies, and whether it is undecided."""
    point = tuning.chosen_point
    doubt = ""
    if point is not None and point.undecided:
        doubt = f" Undecided: the interval includes the bound of {tuning.max_slowdown:.2f} ×."
    return f"{latency_sentence(tuning.latencies)}{doubt}"


def _changed(tuning: Tuning) -> str:
    """Return the sentence on the chosen options, or why there are none."""
    if tuning.chosen:
        return f"Chosen: {joined_names(tuning.chosen)}."
    if not tuning.is_conclusive:
        return f"Nothing was verified {_until(tuning)}."
    if not _fits(tuning):
        nothing = capitalized(_nothing(tuning))
        return f"{nothing} fits the budget: the defaults are the nearest that was found."
    no_option = capitalized(_no_option(tuning))
    return f"{no_option} is worth it: the defaults are the best that was found."


def _needed_files(tuning: Tuning) -> str:
    """Return the files of the chosen model; empty for the original."""
    if tuning.write_problem:
        return f"{capitalized(_not_written(tuning))}"
    if tuning.output_files:
        return f"{', '.join(map(plain, tuning.output_files))}."
    fix = _used_fix(tuning)
    return fix_report.needed_files(fix) if fix else ""


def _next_step(tuning: Tuning) -> str:
    if tuning.write_problem:
        return "Run it again where the new model can be written."
    if tuning.program:
        return "Create the session as the program below does."
    if not tuning.is_complete:
        return f"{capitalized(_again(tuning))}."
    if not _fits(tuning):
        return "Keep the defaults, and raise the budget or --max-slowdown."
    return "Keep the defaults."


def _again(tuning: Tuning) -> str:
    """Return the advice to continue a search that ended early."""
    if tuning.ended_by == "interrupt":
        return "run it again"
    return again_with_time(tuning.sufficient_time_limit_s)


def _fits(tuning: Tuning) -> bool:
    point = tuning.chosen_point
    return point is None or point.fits


def _dependencies(tuning: Tuning) -> str:
    """Return the settings that the saving depends on."""
    point = tuning.chosen_point
    settings = [*_point_settings(point)] if point else []
    return f"{', '.join(map(plain, settings))}." if settings else fix_report.NEEDS_NOTHING_ELSE


def _point_settings(point: Point) -> Iterator[str]:
    """Yield the settings of a point."""
    yield from (f"{name}={value}" for name, value in point.session_options.items())
    yield from (f"${name}={value} in the environment" for name, value in point.environment.items())
    yield from (f"{name}={value} for each run" for name, value in point.run_options.items())
    yield from (f"without the graph transformer {name}" for name in point.disabled_optimizers)
    if point.shared_arena:
        yield "one arena for all sessions"
    if point.saved_options:
        yield "the optimized model, saved once"
    if LOAD_BY_PATH in point.options:
        yield "the model's path instead of its bytes"
    if point.shares_weights:
        yield "weights mapped once for all sessions"


def points_by_memory(tuning: Tuning) -> list[Point]:
    """Return the points, the least memory first."""
    return sorted(tuning.points, key=_memory)


def is_listed(tuning: Tuning, point: Point) -> bool:
    """Return whether summaries list `point`.

    They list the Pareto front, the defaults, the chosen point, and points that save memory but
    whose latency was not compared.
    """
    is_chosen = point.options == tuning.chosen
    return point.on_front or not point.options or is_chosen or point.offered


def points_table(tuning: Tuning, *, only_listed: bool) -> Table:
    """Return the table of the points; on pages unlisted points are at the end."""
    points = points_by_memory(tuning)
    sizes = point_sizes(points)
    rows = [
        (is_listed(tuning, point), _point_cells(tuning, point, *size))
        for point, size in zip(points, sizes, strict=True)
    ]
    listed = tuple(cells for kept, cells in rows if kept)
    others = tuple(cells for kept, cells in rows if not kept)
    return Table(
        columns=(
            Column("options", wraps=True, css="name"),
            Column("peak", "right"),
            Column("steady", "right"),
            Column("anonymous", "right", formats=("html",)),
            Column("mapped", "right", formats=("html",)),
            Column("load", "right", formats=("html",)),
            Column("latency", "right"),
            Column(formats=("console", "markdown")),
        ),
        rows=listed if only_listed else listed + others,
    )


def _point_cells(tuning: Tuning, point: Point, peak: str, steady: str) -> Row:
    figures = point.figures
    is_chosen = tuning.is_chosen(point)
    remark = _remark(point, tuning.max_slowdown, is_chosen=is_chosen)
    ratio = "" if point.problem else "not compared"
    if point.ratio is not None:
        interval = f" ({point.low:.2f}–{point.high:.2f})" if point.low and point.high else ""
        ratio = f"{point.ratio:.2f} ×{interval}"
    name = Cell(
        point_label(point),
        is_code=True,
        tags=(remark,) if is_chosen or remark == "undecided" else (),
        note="on the front" if point.on_front else "",
        problem=_problem(point),
    )
    sizes = (
        (figures.peak_bytes, figures.steady_bytes, figures.anonymous_bytes, figures.file_bytes)
        if figures
        else (None, None, None, None)
    )
    texts = (peak, steady, *(format_size(size) if size is not None else "" for size in sizes[2:]))
    return Row(
        name,
        *(_size_cell(text, size) for text, size in zip(texts, sizes, strict=True)),
        Cell(
            format_duration(figures.load_s) if figures else "",
            sort_key=figures.load_s if figures else -1,
        ),
        Cell(ratio, sort_key=-1 if point.ratio is None else point.ratio),
        Cell(remark, is_strong=is_chosen),
        is_strong=is_chosen,
    )


def _size_cell(text: str, size: int | None) -> Cell:
    if size is None:
        return Cell(text, sort_key=-1)
    return Cell(text, title=f"{size:,} bytes", sort_key=size)


def _remark(point: Point, max_slowdown: float, *, is_chosen: bool) -> str:
    if is_chosen:
        return "chosen, undecided" if point.undecided else "chosen"
    if point.problem:
        return "cannot be used"
    if point.undecided:
        return "undecided"
    return "slower" if point.is_too_slow(max_slowdown) else ""


def _problem(point: Point) -> str:
    return shortened(plain(point.problem), _MAX_PROBLEM)


def _memory(point: Point) -> tuple[bool, int]:
    figures = point.figures
    return figures is None, figures.peak_bytes + figures.steady_bytes if figures else 0


def _offered(tuning: Tuning) -> list[Point]:
    return [point for point in points_by_memory(tuning) if point.offered]


def markdown(tuning: Tuning) -> str:
    """Return the answer, the program that sets it up, and the points on the Pareto front."""
    program = plain_lines(tuning.program)
    points = (
        "### Options tried",
        markdown_table(points_table(tuning, only_listed=True)),
        f"{counted(len(tuning.points), 'combination')}; the Pareto front, the defaults, the chosen"
        " one, and what was not compared although it takes less are shown;"
        f" {md.escape(search_cost(tuning))}.",
    )
    return markdown_document(
        "Tuning",
        tuning,
        tuning_summary(tuning),
        f"Program for {md.escape(_all_options(tuning))}:" if program else "",
        md.code_block(program, "python"),
        *points,
        md.bullets(offers(tuning)),
        remedies=fix_report.remedy_section(fix) if (fix := _fix_to_list(tuning)) else "",
    )


def _page(tuning: Tuning, *, plotly: Plotly = "inline") -> bytes:
    points = pareto_points(tuning)
    return page(
        "tuning.html.j2",
        ("fix.js",),
        {
            "kind": "tuning",
            **page_values(tuning, tuning_summary(tuning)),
            "remedies": fix_report.remedy_table(fix) if (fix := _fix_to_list(tuning)) else None,
            "options": _all_options(tuning),
            "program": plain_lines(tuning.program),
            "points": points_table(tuning, only_listed=False),
            "point_count": counted(len(tuning.points), "combination"),
            "search_cost": search_cost(tuning),
            "offers": tuple(offers(tuning)),
            "has_chart": bool(points),
        },
        charts={**page_charts(tuning), "points": [asdict(point) for point in points]},
        record=codec.encode(tuning),
        record_name="tune",
        record_kind="tuning",
        plotly=plotly,
    )


def draw(tuning: Tuning) -> Figure:
    """Return the charts of the points, below the answer."""
    from memdiag.reports import picture

    points = pareto_points(tuning)
    summary = tuning_summary(tuning)
    height = 5.9 + 0.22 * len(named_points(points))
    figure = picture.figure(height, summary.model, summary.answer)
    draw_points(figure, points)
    return figure


REPORT = Report[Tuning](
    name="tuning",
    files=file_names("tune"),
    show=show,
    page=_page,
    markdown=markdown,
    draw=draw,
)
