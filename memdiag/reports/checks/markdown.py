"""What a check found, for a pull request: GitHub's Markdown."""

from collections.abc import Sequence

from memdiag.records.finding import Check, Finding
from memdiag.reports.markdown_text import code, escape, table
from memdiag.reports.views import findings as view
from memdiag.reports.views.text import plain

_MOST_FINDINGS = 50


def render(check: Check) -> str:
    """Return `check` as Markdown: the answer, a table of the findings, and what was not seen."""
    blocks = ["## Memory check", f"**{escape(view.check_summary(check))}**"]
    for model in check.models:
        found = [one for one in check.findings if one.model == model.path]
        if model.error is None and not found and not model.notes:
            continue
        blocks.append(f"### {code(plain(model.path))}")
        if model.error is not None:
            blocks.append(escape(plain(model.error)))
        blocks += section(found)
        blocks.append("\n".join(f"- {escape(plain(note))}" for note in model.notes))
    return "\n\n".join(block for block in blocks if block) + "\n"


def section(findings: Sequence[Finding]) -> list[str]:
    """Return the blocks that show `findings`: a table, and what was left out of it."""
    rows = []
    for finding in findings[:_MOST_FINDINGS]:
        one = view.build(finding)
        sentences = f"{one.message} {one.detail}".strip()
        rows.append(
            (
                code(one.name, in_table=True),
                escape(sentences),
                escape(one.cost.removeprefix("costs ")),
                escape(one.evidence),
                ", ".join(code(remedy, in_table=True) for remedy in one.remedies),
            )
        )
    left = len(findings) - len(rows)
    return [
        table(("rule", "finding", "cost", "evidence", "remedy"), rows, left=range(5))
        if rows
        else "",
        f"and {left:,} more" if left else "",
    ]
