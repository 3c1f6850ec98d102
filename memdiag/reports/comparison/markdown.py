"""A comparison for a pull request or an issue, in GitHub's Markdown."""

from collections.abc import Sequence

from memdiag.records.comparison import Comparison
from memdiag.reports.markdown_text import code, escape, table
from memdiag.reports.views import comparison as view

FORMAT = "markdown"
FILE_NAME = "comparison.md"


def render(comparison: Comparison) -> bytes:
    """Return the answer, the tables, what differs and why, and what was not compared."""
    shown = view.build(comparison)
    blocks = [
        f"## {escape(shown.title)}",
        f"**{_sentence(shown.answer)}**",
        f"**{_sentence(shown.found)}**" if shown.found else "",
        *_listed("What differs", shown.changes),
        *(part for each in shown.tables for part in _table(each)),
        *_listed("Copies of weights that differ", shown.copies),
        *_listed("What could not be measured, and remarks", shown.problems),
        *_listed("Notes", shown.notes),
    ]
    return ("\n\n".join(part for part in blocks if part) + "\n").encode()


def _table(shown: view.Table) -> list[str]:
    rows = [(code(row[0], in_table=True), *map(escape, row[1:])) for row in shown.rows]
    headings = ("", *shown.headings[1:])
    left = [0, *(index for index, name in enumerate(headings) if name == "in")]
    caption = f"{_sentence(shown.caption)}" if shown.caption else ""
    return [f"### {shown.title}", table(headings, rows, left=left), caption]


def _listed(title: str, lines: Sequence[str]) -> list[str]:
    return [f"### {title}", "\n".join(f"- {escape(one)}" for one in lines)] if lines else []


def _sentence(text: str) -> str:
    return f"{escape(text[:1].upper() + text[1:])}."
