"""The tables of a fix: the combinations that were measured, and the rewrites."""

from collections.abc import Iterator, Sequence

from memdiag.records.fix import Fix, Point, Remedy, RemedyStatus
from memdiag.reports.fix.before_and_after import memory_word
from memdiag.reports.fix.chart import point_label, point_sizes
from memdiag.reports.fix.sentences import point_problem_text, points_by_memory
from memdiag.reports.table import Cell, Column, Row, Table
from memdiag.reports.text import listed_names, plain
from memdiag.units import format_duration, format_size, format_sizes

_STATUS_ORDER: tuple[RemedyStatus, ...] = ("applied", "rejected", "refused", "untried")
_ONLY_GROUPS = ("rewrites", "options")
"""Names of ``--only`` that stand for many changes."""

_STATUS_WORDS: dict[RemedyStatus, str] = {
    "applied": "verified",
    "rejected": "not kept",
    "refused": "not possible",
    "untried": "not verified",
}
_MAX_WEIGHTS = 3


def is_point_listed(fix: Fix, point: Point) -> bool:
    """Return whether summaries list `point`.

    They list the Pareto front, the defaults, the chosen point, and points that save memory without
    a comparison of their latency.
    """
    is_chosen = point.option_names == fix.chosen
    return point.on_front or not point.option_names or is_chosen or point.offered


def points_table(fix: Fix, *, only_listed: bool, limit: int | None = None) -> Table:
    """Return the table of the points, unless `only_listed` with unlisted points at the end.

    `limit` points are kept: the chosen point and the defaults, then points that save memory but
    were not compared, other listed points, and all others.
    """
    points = points_by_memory(fix)
    if limit is not None:
        first_points = sorted(points, key=lambda point: _point_rank(fix, point))[:limit]
        points = [point for point in points if point in first_points]
    sizes = point_sizes(points)
    rows = [
        (is_point_listed(fix, point), _tried_point_row(fix, point, *size))
        for point, size in zip(points, sizes, strict=True)
    ]
    listed_rows = tuple(cells for is_listed, cells in rows if is_listed)
    unlisted_rows = tuple(cells for is_listed, cells in rows if not is_listed)
    table = Table(
        columns=(
            Column("changes", wraps=True, css="name"),
            Column(memory_word(fix, "peak"), "right"),
            Column(memory_word(fix, "steady"), "right"),
            Column("anonymous", "right", formats=("html",)),
            Column("mapped", "right", formats=("html",)),
            Column("load", "right", formats=("html",)),
            Column("latency", "right"),
            Column(formats=("console", "markdown")),
        ),
        rows=listed_rows if only_listed else listed_rows + unlisted_rows,
    )
    return table if fix.device is None else table.without_empty_columns()


def _point_rank(fix: Fix, point: Point) -> tuple[bool, ...]:
    is_needed = point.option_names == fix.chosen or not point.option_names
    is_compared = point.ratio is not None
    return not is_needed, not point.offered, not is_point_listed(fix, point), not is_compared


def _tried_point_row(fix: Fix, point: Point, peak: str, steady: str) -> Row:
    figures = point.figures
    is_chosen = fix.is_chosen(point)
    remark = _point_remark(point, fix.max_slowdown, is_chosen=is_chosen)
    ratio = "" if point.problem else "not compared"
    if point.ratio is not None:
        ratio = _point_latency_text(point)
    name = Cell(
        point_label(point),
        is_code=True,
        tags=(remark,) if is_chosen or remark == "undecided" else (),
        note="on the front" if point.on_front else "",
        problem=point_problem_text(point),
    )
    sizes = (
        (
            figures.peak_bytes,
            figures.steady_bytes,
            # Memory on a GPU has no such parts.
            figures.anonymous_bytes if fix.device is None else None,
            figures.file_and_shared_bytes if fix.device is None else None,
        )
        if figures
        else (None, None, None, None)
    )
    texts = (peak, steady, *(format_size(size) if size is not None else "" for size in sizes[2:]))
    return Row(
        name,
        *(_point_size_cell(text, size) for text, size in zip(texts, sizes, strict=True)),
        Cell(
            format_duration(figures.load_s) if figures else "",
            sort_key=figures.load_s if figures else -1,
        ),
        Cell(ratio, sort_key=-1 if point.ratio is None else point.ratio),
        Cell(remark, is_strong=is_chosen),
        is_strong=is_chosen,
    )


def _point_size_cell(text: str, size: int | None) -> Cell:
    if size is None:
        return Cell(text, sort_key=-1)
    return Cell(text, title=f"{size:,} bytes", sort_key=size)


def _point_latency_text(point: Point) -> str:
    interval = f" ({point.low:.2f}–{point.high:.2f})" if point.low and point.high else ""
    return f"{point.ratio:.2f} ×{interval}"


def _point_remark(point: Point, max_slowdown: float, *, is_chosen: bool) -> str:
    if is_chosen:
        return "chosen, undecided" if point.undecided else "chosen"
    if point.problem:
        return "cannot be used"
    if point.undecided:
        return "undecided"
    return "slower" if point.is_too_slow(max_slowdown) else ""


def requested_change_table(fix: Fix) -> Table:
    """Return what became of each change that the user asked for by name."""
    requested_results = [
        (name, result)
        for name in fix.only
        if name not in _ONLY_GROUPS
        for result in [*_named_change_results(fix, name)] or [_missing_result_reason(fix, name)]
    ]
    rows = tuple(
        Row(Cell(plain(name), is_code=True), plain(text)) for name, text in requested_results
    )
    columns = (Column("asked for", css="name"), Column("result", wraps=True, css="prose"))
    return Table(columns=columns, rows=rows)


def _missing_result_reason(fix: Fix, name: str) -> str:
    """Return why there is no result for `name`."""
    return plain(fix.failed_optimizers.get(name, "nothing to try in this model"))


def _named_change_results(fix: Fix, name: str) -> Iterator[str]:
    """Yield the results for `name`, which is a rewrite, a rule, an option or an optimizer."""
    for remedy in fix.remedies:
        if name in (remedy.name, remedy.rule):
            subject = f"{plain(remedy.name)} " if name == remedy.rule else ""
            reason = _reason_with_weights(remedy, fix.remedies)
            yield f"{subject}{_STATUS_WORDS[remedy.status]}: {reason}"
    single_point = next((point for point in fix.points if point.option_names == (name,)), None)
    if single_point is not None:
        yield _single_option_result(fix, single_point)
    elif any(name in point.option_names for point in fix.points):
        yield "measured together with others only"
    elif name in fix.untried:
        yield "not tried: the search ended before"


def _single_option_result(fix: Fix, point: Point) -> str:
    """Return what became of an option that was measured without others."""
    if point.problem or point.figures is None:
        return f"cannot be used: {point_problem_text(point)}"
    original = fix.points[0].figures or point.figures
    peak = " → ".join(format_sizes(original.peak_bytes, point.figures.peak_bytes))
    steady = " → ".join(format_sizes(original.steady_bytes, point.figures.steady_bytes))
    change = f"peak {peak}, steady {steady}"
    if point.ratio is None:
        outcome = "saves memory, but its latency was not compared" if point.offered else "not kept"
        return f"{outcome} ({change})"
    is_chosen = point.option_names == fix.chosen
    remark = _point_remark(point, fix.max_slowdown, is_chosen=is_chosen) or "verified"
    return f"{remark}: {change}, latency {_point_latency_text(point)}"


def remedy_table(fix: Fix) -> Table:
    """Return the result of each rewrite, the applied ones first."""
    rows = []
    for remedy in sorted(fix.remedies, key=lambda remedy: _STATUS_ORDER.index(remedy.status)):
        status = Cell(remedy.status, is_strong=remedy.status == "applied")
        name, rule = Cell(plain(remedy.name), is_code=True), Cell(plain(remedy.rule), is_code=True)
        reason = _reason_with_weights(remedy, fix.remedies)
        rows.append(
            Row(status, name, rule, _remedy_weights_text(remedy), plain(remedy.reason), reason)
        )
    return Table(
        columns=(
            Column("status"),
            Column("rewrite", css="name"),
            Column("rule", css="name"),
            Column("weights", css="name", formats=("html",)),
            Column("why", css="prose", formats=("html",)),
            Column("why", formats=("markdown",)),
        ),
        rows=tuple(rows),
    )


def _remedy_weights_text(remedy: Remedy) -> str:
    return listed_names(remedy.weights, limit=_MAX_WEIGHTS)


def _reason_with_weights(remedy: Remedy, remedies: Sequence[Remedy]) -> str:
    """Return the reason; after the weights if there is another result of the rewrite."""
    reason, weights = plain(remedy.reason), _remedy_weights_text(remedy)
    same_rewrite = [
        candidate
        for candidate in remedies
        if (candidate.name, candidate.rule) == (remedy.name, remedy.rule)
    ]
    return f"{weights}: {reason}" if len(same_rewrite) > 1 and weights else reason
