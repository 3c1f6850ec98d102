"""A report as a list of blocks, which is printed, written as Markdown, and laid out as a page.

A kind of record states once, in a function that returns a `Document`, what its report has. The
renderers know the kinds of blocks and nothing of records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from memdiag.detail import Detail
from memdiag.records import codec
from memdiag.records.base import Record
from memdiag.reports import markdown as md
from memdiag.reports.console import block, files, labelled, line, terminal_text
from memdiag.reports.page import page
from memdiag.reports.picture import embedded
from memdiag.reports.table import Table, markdown_table, print_table
from memdiag.reports.text import capitalized, plain
from memdiag.units import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console


_MAX_MARKDOWN_ROWS = 50
_MAX_PAGE_ROWS = 1000


@dataclass(frozen=True, kw_only=True)
class Block:
    """A part of a report below its answer.

    Attributes:
        title: its heading; on a page every block has one.
        detail: how much has to be asked for, so that a terminal prints it; None for never.
        short: what names it among what a terminal left out, such as ``2 notes``.
    """

    title: str = ""
    detail: Detail | None = Detail.USUAL
    short: str = ""


@dataclass(frozen=True, kw_only=True)
class Sentence(Block):
    """One sentence, or several in a row. On a terminal it is printed next to its title."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Points(Block):
    """Sentences one below the other. On a terminal each has a `prefix`."""

    texts: Sequence[str]
    prefix: str = ""


@dataclass(frozen=True, kw_only=True)
class Figures(Block):
    """A table.

    Attributes:
        short_table: what a terminal prints unless everything is asked for; None for `table`.
        max_rows: how many rows it prints unless everything is asked for; None for all.
        caption: a sentence below it, on pages and in Markdown.
        optional: headings of columns that a narrow terminal leaves out, the first one first.
        is_sortable: whether a page lets users sort its rows.
    """

    table: Table
    short_table: Table | None = None
    max_rows: int | None = None
    caption: str = ""
    optional: Sequence[str] = ()
    is_sortable: bool = False


@dataclass(frozen=True, kw_only=True)
class Code(Block):
    """Text in a language, which users copy."""

    text: str
    language: str


@dataclass(frozen=True, kw_only=True)
class Picture(Block):
    """The picture of the record: on a page only, and there with `alt` for those who do not see it.

    Attributes:
        hint: how to read it.
    """

    detail: Detail | None = None
    alt: str
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class Document:
    """The report of one record.

    Attributes:
        subject: the model, program or process.
        kind: the kind of report, such as ``memory limit``.
        answer: the answer in a sentence.
        line: the same with the subject, for a terminal; by default both, with a colon.
        style: the colour of the answer on a terminal.
        is_bad: whether the answer is a finding.
        seconds: sentences below it.
        facts: on the conditions, in a few words.
        ended: why the record is not complete, with its label; empty if it is.
        blocks: what follows, in order. Those without content are left out.
    """

    subject: str
    kind: str
    answer: str
    line: str = ""
    style: str = "bold"
    is_bad: bool = False
    seconds: Sequence[str] = ()
    facts: str = ""
    ended: str = ""
    blocks: Sequence[Block]

    @property
    def filled(self) -> list[Block]:
        """The blocks with content."""
        return [each for each in self.blocks if _has_content(each)]


def notes_block(notes: Iterable[str], *, detail: Detail = Detail.ALL) -> Points:
    """Return the notes of a record, which a terminal prints on request unless `detail` is less."""
    texts = tuple(map(plain, notes))
    short = counted(len(texts), "note")
    return Points(title="Notes", texts=texts, prefix="note: ", detail=detail, short=short)


def print_document(
    document: Document, console: Console, *, written: Sequence[Path], detail: Detail
) -> None:
    """Print `document`; `written` are the files to name; `detail` is how much."""
    line(console, document.line or f"{document.subject}: {document.answer}", document.style)
    if detail is not Detail.ANSWER:
        for text in document.seconds:
            line(console, text)
        line(console, document.facts, "dim")
    printable = [each for each in document.filled if each.detail is not None]
    printed = [each for each in printable if (each.detail or 0) <= detail]
    left_out = [each.short for each in printable if each not in printed and each.short]
    # What users copy is last.
    codes = [each for each in printed if isinstance(each, Code)]
    last: Block | None = None
    for each in printed:
        if each in codes:
            continue
        is_further = isinstance(each, Sentence) and isinstance(last, Sentence)
        if not is_further and detail is not Detail.ANSWER:
            console.print()
        _print_block(each, console, detail)
        last = each
    if left_out and detail is Detail.USUAL:
        block(console, [f"With -v: {', '.join(left_out)}."])
    if document.ended:
        console.print()
        line(console, document.ended, "bold red")
    if detail is not Detail.ANSWER:
        files(console, written)
    for each in codes:
        console.print()
        _print_block(each, console, detail)


def _print_block(each: Block, console: Console, detail: Detail) -> None:
    from rich.text import Text

    if isinstance(each, Points):
        for text in each.texts:
            line(console, f"{each.prefix}{text}")
    elif isinstance(each, Sentence):
        labelled(console, each.title, each.text)
    elif isinstance(each, Figures):
        # One of several tables is named, and one that was asked for.
        if each.detail is Detail.ALL or each.max_rows is not None:
            line(console, f"{each.title}:")
        table = each.table if detail is Detail.ALL else each.short_table or each.table
        shown = len(table.rows) if detail is Detail.ALL else each.max_rows or len(table.rows)
        print_table(console, table.first_rows(shown).fitted(console.width, each.optional))
        line(console, _more_rows(table, shown), "dim")
    elif isinstance(each, Code):
        for text in each.text.splitlines():
            # Not wrapped: a program whose lines were broken would not run.
            console.print(Text(terminal_text(console, text)), highlight=False, soft_wrap=True)


def document_markdown(document: Document) -> str:
    """Return `document` as Markdown, for an issue or a pull request."""
    return md.document(
        (
            f"## {capitalized(document.kind)}: {md.code(document.subject)}",
            f"**{md.escape(capitalized(document.answer))}**",
            f"**{md.escape(document.ended)}**" if document.ended else "",
            *map(md.escape, document.seconds),
            md.escape(document.facts),
            *map(_block_markdown, document.filled),
        )
    )


def _block_markdown(each: Block) -> str:
    title = md.escape(each.title)
    match each:
        case Sentence():
            return f"**{title}:** {md.escape(each.text)}"
        case Points():
            return md.section(title, md.bullets(each.texts))
        case Code():
            return md.section(title, md.code_block(each.text.splitlines(), each.language))
        case Figures(table=table):
            parts = (
                markdown_table(table.first_rows(_MAX_MARKDOWN_ROWS)),
                _more_rows(table, _MAX_MARKDOWN_ROWS),
                md.escape(each.caption or table.caption),
            )
            return md.section(title, "\n\n".join(filter(None, parts)))
    return ""


def _more_rows(table: Table, shown: int) -> str:
    """Return how many rows of `table` are not shown, if `shown` are; empty if all are."""
    more = len(table.rows) - shown
    return f"and {counted(more, 'more row')}" if more > 0 else ""


def document_page(
    document: Document, record: Record, name: str, draw: Callable[[], Figure] | None
) -> bytes:
    """Return `document` as a page, with `record` to be saved as ``<name>.json``.

    `draw` draws its picture; None without one.
    """
    blocks = [
        _cut(each) for each in document.filled if draw is not None or not isinstance(each, Picture)
    ]
    return page(
        "document.html.j2",
        (),
        {
            "document": document,
            "blocks": [
                (kind.__name__, [*group] if kind is Sentence else each)
                for kind, group in groupby(blocks, type)
                for each in ([group] if kind is Sentence else group)
            ],
            "picture": embedded(draw) if draw is not None else "",
        },
        charts={},
        record=codec.encode(record),
        record_name=name,
        record_kind="record",
    )


def _cut(each: Block) -> Block:
    """Return a block whose table is not too long for a page."""
    if not isinstance(each, Figures) or len(each.table.rows) <= _MAX_PAGE_ROWS:
        return each
    more = f"{_more_rows(each.table, _MAX_PAGE_ROWS)}, in the record (JSON)."
    caption = f"{each.caption or each.table.caption} {more}".strip()
    return replace(each, table=each.table.first_rows(_MAX_PAGE_ROWS), caption=caption)


def _has_content(each: Block) -> bool:
    match each:
        case Sentence(text=content) | Code(text=content):
            return bool(content)
        case Points(texts=content):
            return bool(content)
        case Figures(table=content):
            return bool(content.rows)
    return True
