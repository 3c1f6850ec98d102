"""A model compared with its budget and baseline: which figure exceeds its limit, and why."""

import shlex
from collections.abc import Callable, Iterator, Sequence

from memdiag.budgets.evaluation import PEAK_FIGURES, main_breach
from memdiag.budgets.figures import BUDGET_PHASES, FIGURES_BY_NAME
from memdiag.records.attribution import ARENA_SLACK_NAME, Owner
from memdiag.records.baseline import CopyTotal
from memdiag.records.budget import Breach, Judgement
from memdiag.records.dimension import dimensions_text
from memdiag.reports import markdown as md
from memdiag.reports.table import Cell, Column, Row, Table, markdown_table
from memdiag.reports.text import capitalized, plain, shortened
from memdiag.reports.xray import ARENA_ADVICE
from memdiag.reports.xray.memory_owners import owner_label
from memdiag.units import MIB, format_limit, format_size

_MAX_NEW_COPIES = 3
_MAX_COPY_NAME = 100
_WHOLE_PEAK_FIGURES = ("peak", "process_peak")
_MIN_SLACK_SHARE = 0.25
"""Share of the breached figure from which on arena slack is what to reduce first."""

_MAX_ABOVE_STEADY = 1.1
"""The owners at steady state also explain a peak that is at most this many times as large."""


def judgement_verdict(judgement: Judgement) -> str:
    """Return the main breach, or that no limit is exceeded; empty if there is no limit."""
    if judgement.is_met:
        limits = "its budget" if judgement.budget.limits else ""
        baseline = "its baseline" if judgement.baseline else ""
        against = " and ".join(part for part in (limits, baseline) if part)
        return f"within {against}" if against else ""
    breach = main_breach(judgement.breaches)
    if breach.figure == "copies":
        return f"{breach.measured} copies of a weight; its {breach.against} is {breach.limit}"
    run_text = " a run" if breach.figure == "growth_per_run" else ""
    excess = f"{format_size(breach.over)}{run_text} over its {breach.against}"
    if breach.figure in BUDGET_PHASES:
        return f"{excess} in {breach.figure}"
    if breach.figure in _WHOLE_PEAK_FIGURES and breach.phase is not None:
        return f"{breach.figure} {excess} ({_peak_phase_text(breach)})"
    return excess if run_text else f"{breach.figure} {excess}"


def _peak_phase_text(breach: Breach) -> str:
    """Return when a peak is reached. Steady is spelled out, because a figure is called so, too."""
    return "in the runs after the first" if breach.phase == "steady" else f"in {breach.phase}"


def judgement_result_line(judgement: Judgement) -> str:
    """Return the result of a judgement in one line."""
    against = "budget" if judgement.is_met else judgement.breaches[0].against
    parts = (judgement_verdict(judgement), judged_sizes_text(judgement))
    answer = ", ".join(part for part in parts if part)
    return f"memory {against}: {plain(judgement.model)}: {answer}"


def baseline_status_line(judgement: Judgement, status: str) -> str:
    """Return that the baseline of a model was ``created``, ``updated`` or ``kept``."""
    parts = (status, judged_sizes_text(judgement))
    answer = ", ".join(part for part in parts if part)
    return f"memory baseline: {plain(judgement.model)}: {answer}"


def judged_sizes_text(judgement: Judgement) -> str:
    """Return the sizes of free dimensions: ``at batch 1 × sequence 128``; empty for none."""
    return f"at {plain(dimensions_text(judgement.dimensions))}" if judgement.dimensions else ""


def judgement_lines(judgement: Judgement) -> tuple[str, ...]:
    """Return the lines of a judgement: its result, then the figures and the reasons."""
    figures = judged_figure_table(judgement, only_breaches=not judgement.is_met)
    details = (*_aligned_figure_lines(figures), *breach_explanations(judgement))
    return (judgement_result_line(judgement), *(f"  {text}" for text in details))


def judged_figure_table(judgement: Judgement, *, only_breaches: bool = False) -> Table:
    """Return the figures that have a limit, each with its budget and baseline."""
    limited = judgement.budget.limits.keys() | judgement.baseline.keys()
    breaches = {breach.figure: breach for breach in reversed(judgement.breaches)}
    names = [name for name in FIGURES_BY_NAME if name in limited & judgement.figures.keys()]
    if only_breaches:
        names = [name for name in names if name in breaches]
    headings = ("measured", "budget", "baseline", "over")
    return Table(
        columns=(Column("figure"), *(Column(heading, "right") for heading in headings)),
        rows=tuple(_judged_figure_row(judgement, name, breaches.get(name)) for name in names),
    )


def judgement_markdown(judgement: Judgement) -> str:
    """Return a judgement in Markdown: the result, a table of all limits, the reasons."""
    title = "Memory budget" if judgement.budget.limits else "Memory baseline"
    answer = judgement_verdict(judgement)
    blocks = (
        f"## {title} of {md.code_span(plain(judgement.model))}",
        f"**{md.escape(capitalized(answer))}.**" if answer else "",
        markdown_table(judged_figure_table(judgement)),
        md.bullet_list(breach_explanations(judgement)),
    )
    return "\n\n".join(block for block in blocks if block)


def breach_explanations(judgement: Judgement) -> Iterator[str]:
    """Yield explanations of a breach: runtime, copies of weights, owners, what to try."""
    baseline_release, release = judgement.baseline_onnxruntime, judgement.onnxruntime
    if judgement.baseline and baseline_release != release:
        yield (
            f"onnxruntime {plain(release or '?')};"
            f" the baseline is of {plain(baseline_release or '?')}"
        )
    if not judgement.is_met and "copies" in judgement.figures:
        yield from _copy_explanations(judgement)
    if not judgement.is_met:
        if not judgement.copies_are_new:
            yield from _breach_memory_lines(judgement)
        yield from _breach_advice(judgement)
    yield from judgement.notes


def _breach_memory_lines(judgement: Judgement) -> Iterator[str]:
    """Yield what takes the memory of the breached figures."""
    breach = main_breach(judgement.breaches)
    is_transient = _is_transient_peak(judgement, breach)
    terms = [term for term in judgement.peak_terms if term.bytes >= MIB]
    if is_transient and terms:
        sizes = (f"{term.name} {format_size(term.bytes)}" for term in terms)
        yield f"largest parts of {_breached_peak_text(breach)}, as estimated: {', '.join(sizes)}"
    elif is_transient and judgement.owners:
        yield (
            f"the owners at {_breached_peak_text(breach)} are not known: the X-ray is of the steady"
            " state"
        )
    if not is_transient or any(breach.figure not in PEAK_FIGURES for breach in judgement.breaches):
        owners = [owner for owner in judgement.owners if owner.bytes >= MIB]
        sizes = (f"{owner_label(owner)} {format_size(owner.bytes)}" for owner in owners)
        if owners:
            yield f"largest owners at steady state: {', '.join(sizes)}"


def _is_transient_peak(judgement: Judgement, breach: Breach) -> bool:
    """Return whether the figure of `breach` is a peak that the steady state does not explain."""
    if breach.figure not in PEAK_FIGURES:
        return False
    peak = judgement.figures["peak"] if breach.figure == "process_peak" else breach.measured
    steady = judgement.figures.get("steady")
    is_estimate = not judgement.processes
    return is_estimate or steady is None or peak > _MAX_ABOVE_STEADY * steady


def _breached_peak_text(breach: Breach) -> str:
    is_whole = breach.figure in _WHOLE_PEAK_FIGURES and breach.phase is not None
    return f"the peak {_peak_phase_text(breach)}" if is_whole else f"the peak in {breach.figure}"


def _breach_advice(judgement: Judgement) -> Iterator[str]:
    """Yield what to try.

    That is a comparison with the baseline's model or release if no copy is new, and a rewrite, a
    rule to read about, settings, or an estimate.
    """
    suspect = judgement.suspect
    model = shlex.quote(plain(judgement.model))
    breach = main_breach(judgement.breaches)
    sizes = _shell_arguments_text(judgement.arguments[:2], only="--dim")
    is_regression = (
        breach.against == "baseline"
        and breach.figure not in ("copies", "growth_per_run")
        and bool(judgement.processes)
        and not judgement.copies_are_new
    )
    if is_regression:
        yield _comparison_advice(judgement, f"{model}{sizes}")
    slack = _arena_slack_owner_bytes(judgement.owners)
    if suspect is not None and suspect.can_be_fixed:
        yield f"try: memdiag fix {plain(judgement.model)} --only {suspect.name}"
    elif suspect is not None:
        yield f"see: memdiag explain {suspect.name}"
    elif judgement.onnxruntime is None or breach.figure == "copies":
        return  # a probed process has no model
    elif breach.figure == "growth_per_run":
        yield f"try: memdiag leak {model}"
    elif is_regression:
        return
    elif slack >= _MIN_SLACK_SHARE * breach.measured:
        yield f"arena slack is free memory that onnxruntime keeps for later runs. {ARENA_ADVICE}"
        yield f"try: memdiag fix {model}{sizes}"
    elif not judgement.processes or _is_transient_peak(judgement, breach):
        command = f"memdiag estimate {model}{_shell_arguments_text(judgement.arguments)}"
        yield f"try: {command} (shows what takes the peak, and what lowers it)"
    else:
        yield f"try: memdiag fix {model}{sizes} (measures session options and settings of malloc)"


def _comparison_advice(judgement: Judgement, model: str) -> str:
    """Return how to find out what changed since the baseline: the release, or the model."""
    baseline_release, release = judgement.baseline_onnxruntime, judgement.onnxruntime
    if baseline_release and release and baseline_release != release:
        versions = shlex.quote(f"{plain(baseline_release)},{plain(release)}")
        return (
            f"try: memdiag compare {model} --onnxruntime {versions} (shows what changed, and why)"
        )
    return (
        f"try: memdiag compare OLD {model} (shows what changed, and why), where OLD is the model of"
        " the baseline, for example from version control"
    )


def _arena_slack_owner_bytes(owners: Sequence[Owner]) -> int:
    return sum(
        owner.bytes for owner in owners if owner.kind == "arena" and owner.name == ARENA_SLACK_NAME
    )


def _shell_arguments_text(arguments: Sequence[str], *, only: str = "") -> str:
    """Return `arguments` quoted for a shell, after a blank.

    Empty if there are none, or if the first one is not `only`.
    """
    if not arguments or (only and arguments[0] != only):
        return ""
    return f" {shlex.join(map(plain, arguments))}"


def _aligned_figure_lines(table: Table) -> Iterator[str]:
    """Yield the rows of `table` as text, with the headings of the limits next to their figures."""
    columns = []
    for index, column in enumerate(table.columns):
        texts = [row.cells[index].text for row in table.rows]
        width = max(map(len, texts), default=0)
        if not width:
            continue
        heading = f"{column.heading} " if column.heading in ("budget", "baseline") else ""
        columns.append(
            [
                (heading if text else " " * len(heading))
                + (text.rjust(width) if column.align == "right" else text.ljust(width))
                for text in texts
            ]
        )
    for cells in zip(*columns, strict=True):
        yield "   ".join(cells).rstrip()


def _judged_figure_row(judgement: Judgement, name: str, breach: Breach | None) -> Row:
    figure, measured = FIGURES_BY_NAME[name], judgement.figures[name]
    budget, baseline = judgement.budget.limits.get(name), judgement.baseline.get(name)
    show: Callable[[int], str] = figure.show
    show_limit = format_limit if figure.unit == "bytes" else show
    if breach and figure.unit == "bytes" and show(measured) == show(breach.limit):
        show = show_limit = _exact_bytes_text  # rounded, both sizes look the same
    return Row(
        Cell(name, is_strong=breach is not None),
        show(measured),
        "" if budget is None else show_limit(budget),
        "" if baseline is None else show(baseline),
        figure.show(breach.over, signed=True) if breach else "",
    )


def _exact_bytes_text(value: int) -> str:
    return f"{value:,} B"


def _copy_explanations(judgement: Judgement) -> Iterator[str]:
    """Yield the new copies, or the copies of the weight that has most."""
    copies = judgement.copies
    if judgement.copies_are_new:
        first_copies = "; ".join(_new_copy_text(copy) for copy in copies[:_MAX_NEW_COPIES])
        further_copies = copies[_MAX_NEW_COPIES:]
        further_size = format_size(sum(copy.bytes for copy in further_copies))
        further_text = f"; and {len(further_copies)} more, {further_size}" if further_copies else ""
        yield f"new since the baseline: {first_copies}{further_text}"
    elif "copies" in judgement.baseline:
        yield "no copy of a weight is new since the baseline"
    elif copies:
        name = shortened(plain(copies[0].weight), _MAX_COPY_NAME)
        count, size = sum(copy.count for copy in copies), sum(copy.bytes for copy in copies)
        kinds = ", ".join(f"{_counted_copy_kind(copy)}{_copy_maker_text(copy)}" for copy in copies)
        yield f"most copies: {name}, {count} of them, {format_size(size)}: {kinds}"


def _new_copy_text(copy: CopyTotal) -> str:
    name = shortened(plain(copy.weight), _MAX_COPY_NAME)
    return (
        f"{_counted_copy_kind(copy)} copy of {name}, {format_size(copy.bytes)}"
        f"{_copy_maker_text(copy)}"
    )


def _counted_copy_kind(copy: CopyTotal) -> str:
    return copy.kind if copy.count == 1 else f"{copy.count} times {copy.kind}"


def _copy_maker_text(copy: CopyTotal) -> str:
    return f" ({shortened(plain(copy.made_by), _MAX_COPY_NAME)})" if copy.made_by else ""
