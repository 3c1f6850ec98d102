"""The report of growth: whether memory leaks, which owner grows, and what to do."""

from memdiag.detail import Detail
from memdiag.records.growth import Growth
from memdiag.reports.blocks import Document, PictureBlock, SentenceBlock, TableBlock, notes_block
from memdiag.reports.growth.blocks import malloc_block_table
from memdiag.reports.growth.chart import growth_chart
from memdiag.reports.growth.headline import growth_headline, reload_line
from memdiag.reports.growth.owners import growth_owner_table, has_later_reading
from memdiag.reports.growth.picture import draw
from memdiag.reports.report import ISSUE_FILE, Report, file_names
from memdiag.units import counted


def document(growth: Growth) -> Document:
    """Return the report of `growth`."""
    answer = growth_headline(growth)
    stayed_blocks = malloc_block_table(growth)
    blocks = [
        SentenceBlock(title="What to do", text=answer.advice, detail=Detail.ANSWER),
        _growth_picture_block(growth),
        TableBlock(
            title="Blocks of malloc that came into use and stayed",
            table=stayed_blocks,
            detail=Detail.ALL,
            short=f"{counted(len(stayed_blocks.rows), 'kind')} of blocks that stayed",
        ),
        notes_block(growth.notes),
    ]
    if has_later_reading(growth):
        blocks.insert(2, TableBlock(title="Owners", table=growth_owner_table(growth)))
    return Document(
        subject=answer.subject,
        kind="growth of memory",
        answer=answer.first,
        style=answer.style,
        is_bad=growth.is_leak_or_kept,
        seconds=(reload_line(growth),),
        facts=answer.facts,
        ended=f"Ended early: {answer.ended}" if answer.ended else "",
        blocks=blocks,
    )


def _growth_picture_block(growth: Growth) -> PictureBlock:
    hints = ["The shaded part is the warm-up."]
    has_owners = bool(growth_chart(growth).layers)
    if has_owners:
        hints.append(
            "Stripes and dotted lines mark memory that nothing uses: slack of arenas, and freed"
            " blocks."
        )
    owners = ", growth of each owner, and all owners on top of each other" if has_owners else ""
    return PictureBlock(
        title=f"Memory over {growth.unit}s",
        alt=f"Resident set{owners}. {growth_headline(growth).first}",
        hint=" ".join(hints),
    )


REPORT: Report[Growth] = Report("growth record", file_names("growth") | ISSUE_FILE, document, draw)
