"""An X-ray of a process in GitHub's Markdown."""

from memdiag.records.attribution import Attribution
from memdiag.reports.markdown import owners_section
from memdiag.reports.markdown_text import code, escape, table
from memdiag.reports.views import attribution as view
from memdiag.reports.views import insight

FORMAT = "markdown"
FILE_NAME = "xray.md"


def render(attribution: Attribution) -> bytes:
    """Return the headline, what to do, the models, the owners and the weights."""
    found, owned = insight.build(attribution), view.build(attribution)
    headings, rows = view.model_table(owned.models)
    models = [(code(name, in_table=True), *cells) for name, *cells in rows]
    blocks = [
        f"## Memory of process {attribution.pid}",
        f"**{escape(found.headline)}.**",
        "\n".join(f"- **What to do:** {escape(text)}" for text in found.advice),
        table(headings, models, left=(0,)) if models else "",
        escape(view.PER_MODEL) if models else "",
        *owners_section(owned),
        escape(f"{owned.timing}."),
    ]
    return ("\n\n".join(block for block in blocks if block) + "\n").encode()
