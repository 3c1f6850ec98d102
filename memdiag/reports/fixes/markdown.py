"""A fix for a pull request or an issue, in GitHub's Markdown."""

from collections.abc import Sequence

from memdiag.records.fix import Fix
from memdiag.reports.markdown_text import code, escape, table
from memdiag.reports.views import fix as view
from memdiag.reports.views import fix_glance

FORMAT = "markdown"
FILE_NAME = "fix.md"


def render(fix: Fix) -> bytes:
    """Return the answer, the figures before and after, and what became of each remedy."""
    return document("Fix", fix, ())


def document(what: str, fix: Fix, tried: Sequence[str]) -> bytes:
    """Return the report of `fix`, which is a `what`, with the blocks `tried` after the answer."""
    glance, shown = fix_glance.build(fix), view.build(fix)
    figures = shown.memory if glance.changes else ()
    blocks = [
        f"## {what} of {code(glance.model)}",
        f"**{escape(glance.answer)}** {escape(glance.facts)}",
        "\n".join(f"- {label}: {escape(said)}" for label, said in glance.sentences),
        _figures("figure", figures),
        *tried,
        _figures("latency with", shown.latencies if figures else ()),
        *_remedies(shown),
        "\n".join(f"- {escape(note)}" for note in shown.notes),
    ]
    return ("\n\n".join(block for block in blocks if block) + "\n").encode()


def _figures(what: str, rows: Sequence[view.Row]) -> str:
    cells = [(escape(row.label.strip()), row.before, row.after, escape(row.note)) for row in rows]
    headings = (what, "before", "after", "after ÷ before")
    return table(headings, cells, left=(0, 3)) if cells else ""


def _remedies(shown: view.FixView) -> list[str]:
    rows = [
        (
            row.status,
            code(row.name, in_table=True),
            code(row.rule, in_table=True),
            escape(row.said),
        )
        for row in shown.remedies
    ]
    headings = ("status", "remedy", "rule", "why")
    return ["### Remedies", table(headings, rows, left=range(4))] if rows else []
