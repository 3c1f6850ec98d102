"""What a check found, on a terminal, in the manner of a linter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from memdiag.records.finding import Check, Finding
from memdiag.reports.terminal import draw, line
from memdiag.reports.views import findings as view
from memdiag.reports.views.text import plain
from memdiag.units import format_size

if TYPE_CHECKING:
    from rich.console import Console

_MOST_OF_A_RULE = 5


def show_check(check: Check, console: Console, *, quiet: bool = False) -> None:
    """Print `check` on `console`; `quiet` prints the last line only.

    Names are printed as they are, never as markup, and nothing is told by colour alone.
    """
    draw(console, lambda: _show(check, console, quiet))


def show_findings(
    findings: Sequence[Finding], console: Console, *, named: bool = False, told: str = ""
) -> None:
    """Print `findings`, the first ones of each rule in full; `named` begins each with its model.

    The sentences of a finding that are in `told`, which is printed above, are left out.
    """
    for finding in _first(findings):
        one = view.build(finding)
        title = f"{one.model}: " if named else ""
        if one.message.rstrip(".") in told and one.detail.rstrip(".") in told:
            line(console, f"{title}The finding above [{one.name}]", "bold")
            line(console, f"  {one.facts}", "dim")
            continue
        line(console, f"{title}{one.message} [{one.name}]", "dim" if one.is_refuted else "bold")
        line(console, f"  {one.detail}" if one.detail else "")
        line(console, f"  {one.facts}", "dim")
    for text in _left_out(findings):
        line(console, text)


def _show(check: Check, console: Console, quiet: bool) -> None:
    if not quiet:
        for model in check.models:
            found = [one for one in check.findings if one.model == model.path]
            show_findings(found, console, named=True)
            for note in model.notes:
                line(console, f"{plain(model.path)}: note: {plain(note)}", "dim")
        names = dict.fromkeys(plain(one.name) for one in check.findings)
        if names:
            hints = " · ".join(f"memdiag explain {name}" for name in names)
            line(console, f"explained by: {hints}", "dim")
    line(console, view.check_summary(check))


def _first(findings: Sequence[Finding]) -> Iterator[Finding]:
    seen: Counter[str] = Counter()
    for finding in findings:
        seen[finding.rule] += 1
        if seen[finding.rule] <= _MOST_OF_A_RULE:
            yield finding


def _left_out(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield what is said of the findings of rules that have many."""
    for name in dict.fromkeys(one.name for one in findings):
        rest = [one for one in findings if one.name == name][_MOST_OF_A_RULE:]
        if rest:
            size = format_size(sum(one.bytes for one in rest))
            more = f"and {len(rest):,} more of {plain(name)}"
            yield f"{more}, {size} together (all with --format json)"
