"""A tuning for a pull request or an issue, in GitHub's Markdown."""

from memdiag.records.fix import Fix
from memdiag.reports.fixes.markdown import document
from memdiag.reports.markdown_text import code, code_block, escape, table
from memdiag.reports.views import tuning as view

FORMAT = "markdown"
FILE_NAME = "tune.md"


def render(tuning: Fix) -> bytes:
    """Return the answer, the program that sets it up, and the points on the Pareto front."""
    shown = view.build(tuning)
    rows = [
        (
            code(row.label, in_table=True),
            row.peak,
            row.steady,
            row.ratio,
            f"**{row.remark}**" if row.is_chosen else escape(row.remark),
        )
        for row in shown.rows
    ]
    tried = (
        f"Program for {escape(shown.program)}:" if shown.snippet else "",
        code_block(shown.snippet, "python") if shown.snippet else "",
        "### Options tried",
        table(("options", "peak", "steady", "latency", ""), rows, left=(0, 4)),
        f"{len(tuning.points)} point{'' if len(tuning.points) == 1 else 's'}, of which the Pareto"
        f" front, the defaults and the chosen one are shown; {escape(shown.effort)}.",
        "\n".join(f"- {escape(offer)}" for offer in shown.offers),
    )
    return document("Tuning", tuning, tried)
