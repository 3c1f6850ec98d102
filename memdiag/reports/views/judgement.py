"""How a model compares with its budget and baseline, in words: which figure, by how much, why."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from memdiag.budgets.figures import FIGURES
from memdiag.records.baseline import LiveCopy
from memdiag.records.budget import Breach, Judgement
from memdiag.records.dimension import in_words
from memdiag.reports.views.owner_table import owner_label
from memdiag.reports.views.text import plain, shortened
from memdiag.units import MIB, format_size

_MOST_COPIES = 3
_ABOUT = 0.9
_LONGEST_NAME = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure with what it may be: texts, empty where there is no such limit."""

    figure: str
    measured: str
    budget: str
    baseline: str
    over: str
    is_breach: bool


def verdict(judgement: Judgement) -> str:
    """Return what is exceeded by how much, or that all holds; empty where there is no limit."""
    if judgement.holds:
        limits = "its budget" if judgement.budget.limits else ""
        before = "its baseline" if judgement.baseline else ""
        against = " and ".join(part for part in (limits, before) if part)
        return f"within {against}" if against else ""
    breach = _main(judgement)
    if breach.figure == "copies":
        return f"{breach.measured} copies of a weight, where its {breach.against} is {breach.limit}"
    each = " a run" if breach.figure == "growth_per_run" else ""
    where = f" in {breach.phase}" if breach.phase else ""
    return f"{format_size(breach.over)}{each} over its {breach.against}{where}"


def first_line(judgement: Judgement) -> str:
    """Return the answer in one line."""
    against = "budget" if judgement.holds else judgement.breaches[0].against
    parts = (verdict(judgement), measured_sizes(judgement))
    said = ", ".join(part for part in parts if part)
    return f"memory {against}: {plain(judgement.model)}: {said}"


def measured_sizes(judgement: Judgement) -> str:
    """Return the sizes of free dimensions: ``at batch 1 × sequence 128``; empty without any."""
    return f"at {plain(in_words(judgement.dimensions))}" if judgement.dimensions else ""


def lines(judgement: Judgement) -> tuple[str, ...]:
    """Return the answer, and below it what proves and explains it."""
    return (first_line(judgement), *(f"  {line}" for line in _details(judgement)))


def rows(judgement: Judgement, *, breached: bool = False) -> tuple[Row, ...]:
    """Return the figures that have a limit; only those above it where `breached`."""
    limited = judgement.budget.limits.keys() | judgement.baseline.keys()
    over = {breach.figure: breach for breach in reversed(judgement.breaches)}
    return tuple(
        _row(judgement, name, over.get(name))
        for name in FIGURES
        if name in limited & judgement.figures.keys() and (name in over or not breached)
    )


def explanation(judgement: Judgement) -> Iterator[str]:
    """Yield what is behind a breach: the runtime's change, copies of weights, the remedy."""
    before, now = judgement.baseline_onnxruntime, judgement.onnxruntime
    if judgement.baseline and before != now:
        yield f"onnxruntime {plain(now or '?')}; the baseline is of {plain(before or '?')}"
    if not judgement.holds and "copies" in judgement.figures:
        yield from _copies(judgement)
    owners = [one for one in judgement.owners if one.bytes >= MIB]
    if owners and not judgement.copies_are_new:
        said = ", ".join(f"{owner_label(one)} {format_size(one.bytes)}" for one in owners)
        yield f"largest owners at steady state: {said}"
    suspect = judgement.suspect
    if suspect is not None:
        if suspect.can_be_fixed:
            yield f"try: memdiag fix {plain(judgement.model)} --only {suspect.rule}"
        else:
            yield f"see: memdiag explain {suspect.rule}"
    yield from judgement.notes


def _details(judgement: Judgement) -> Iterator[str]:
    shown = rows(judgement, breached=not judgement.holds)
    columns = [
        _column([row.figure for row in shown], to_right=False),
        _column([row.measured for row in shown]),
        _column([row.budget for row in shown], before="budget "),
        _column([row.baseline for row in shown], before="baseline "),
        _column([row.over for row in shown]),
    ]
    for cells in zip(*filter(None, columns), strict=True):
        yield "   ".join(cells).rstrip()
    yield from explanation(judgement)


def _column(cells: Sequence[str], *, before: str = "", to_right: bool = True) -> list[str]:
    """Return `cells` of one width, `before` at the start of each that holds text; none if none."""
    width = max(map(len, cells), default=0)
    if not width:
        return []
    set_side = str.rjust if to_right else str.ljust
    return [f"{before if cell else ' ' * len(before)}{set_side(cell, width)}" for cell in cells]


def _row(judgement: Judgement, name: str, breach: Breach | None) -> Row:
    figure, measured = FIGURES[name], judgement.figures[name]
    budget, before = judgement.budget.limits.get(name), judgement.baseline.get(name)
    show: Callable[[int], str] = figure.show
    if breach and figure.unit == "bytes" and show(measured) == show(breach.limit):
        show = _to_the_byte  # what looks the same and is not
    return Row(
        figure=name,
        measured=show(measured),
        budget="" if budget is None else show(budget),
        baseline="" if before is None else show(before),
        over=figure.show(breach.over, signed=True) if breach else "",
        is_breach=breach is not None,
    )


def _to_the_byte(value: int) -> str:
    return f"{value:,} B"


def _main(judgement: Judgement) -> Breach:
    """Return the breach to name first: the earliest in time of those that are about the largest.

    Memory that one phase takes and keeps is there in all that follow.
    """
    kind = judgement.breaches[0].against
    alike = [one for one in judgement.breaches if one.against == kind]
    sizes = [one for one in alike if FIGURES[one.figure].unit == "bytes"] or alike
    largest = max(one.over for one in sizes)
    return next(one for one in sizes if one.over >= _ABOUT * largest)


def _copies(judgement: Judgement) -> Iterator[str]:
    """Yield what the X-ray says: the copies that are new, or those of the weight with the most."""
    held = judgement.copies
    if judgement.copies_are_new:
        said = "; ".join(_copy(row) for row in held[:_MOST_COPIES])
        more = held[_MOST_COPIES:]
        rest = format_size(sum(row.bytes for row in more))
        yield f"new since the baseline: {said}{f'; and {len(more)} more, {rest}' if more else ''}"
    elif "copies" in judgement.baseline:
        yield "no copy of a weight is new since the baseline"
    elif held:
        name = shortened(plain(held[0].weight), _LONGEST_NAME)
        count, size = sum(row.count for row in held), sum(row.bytes for row in held)
        kinds = ", ".join(f"{_counted(row)}{_maker(row)}" for row in held)
        yield f"most copies: {name}, {count} of them, {format_size(size)}: {kinds}"


def _copy(row: LiveCopy) -> str:
    name = shortened(plain(row.weight), _LONGEST_NAME)
    return f"{_counted(row)} copy of {name}, {format_size(row.bytes)}{_maker(row)}"


def _counted(row: LiveCopy) -> str:
    return row.kind if row.count == 1 else f"{row.count} times {row.kind}"


def _maker(row: LiveCopy) -> str:
    return f" ({shortened(plain(row.made_by), _LONGEST_NAME)})" if row.made_by else ""
