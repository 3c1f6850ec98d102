"""A report as a list of blocks, which is printed, written as Markdown, and laid out as a page.

A kind of record states once, in a function that returns a `Document`, what its report has. The
renderers know the kinds of blocks and nothing of records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from memdiag.detail import Detail
from memdiag.records import codec
from memdiag.records.base import Record
from memdiag.reports import markdown as md
from memdiag.reports.console import block, files, labelled, line
from memdiag.reports.page import page
from memdiag.reports.picture import embedded
from memdiag.reports.table import Table, markdown_table, print_table
from memdiag.reports.text import capitalized, plain
from memdiag.units import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console


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
    """One sentence, or several in a row. On a terminal it is printed beside its title."""

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
        optional: headings of columns that a narrow terminal leaves out, the first one first.
        is_sortable: whether a page lets users sort its rows.
    """

    table: Table
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
    left_out = []
    for each in document.filled:
        if each.detail is None:
            continue
        if each.detail.value <= detail.value:
            _print_block(each, console)
        elif each.short:
            left_out.append(each.short)
    if left_out and detail is Detail.USUAL:
        block(console, [f"With -v: {', '.join(left_out)}."])
    if document.ended:
        console.print()
        line(console, document.ended, "bold red")
    if detail is not Detail.ANSWER:
        files(console, written)


def _print_block(each: Block, console: Console) -> None:
    if isinstance(each, Points):
        block(console, [f"{each.prefix}{text}" for text in each.texts])
        return
    console.print()
    if isinstance(each, Sentence):
        labelled(console, each.title, each.text)
    elif isinstance(each, Figures):
        if each.detail is Detail.ALL:
            line(console, f"{each.title}:")
        print_table(console, each.table.fitted(console.width, each.optional))
    elif isinstance(each, Code):
        for text in each.text.splitlines():
            console.print(text, markup=False, highlight=False, soft_wrap=True)


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
    if isinstance(each, Sentence):
        return f"**{each.title}:** {md.escape(each.text)}"
    if isinstance(each, Points):
        return md.section(each.title, md.bullets(each.texts))
    if isinstance(each, Code):
        return md.section(each.title, md.code_block(each.text.splitlines(), each.language))
    if isinstance(each, Figures):
        caption = md.escape(each.table.caption)
        return md.section(each.title, f"{markdown_table(each.table)}\n\n{caption}".strip())
    return ""


def document_page(
    document: Document, record: Record, name: str, draw: Callable[[], Figure] | None
) -> bytes:
    """Return `document` as a page, with `record` to be saved as ``<name>.json``.

    `draw` draws its picture; None without one.
    """
    blocks = [each for each in document.filled if draw is not None or not isinstance(each, Picture)]
    return page(
        "document.html.j2",
        None,
        {
            "document": document,
            "blocks": [(type(each).__name__, each) for each in blocks],
            "picture": embedded(draw) if draw is not None else "",
        },
        charts={},
        record=codec.encode(record),
        record_name=name,
        record_kind="record",
    )


def _has_content(each: Block) -> bool:
    match each:
        case Sentence(text=content) | Code(text=content):
            return bool(content)
        case Points(texts=content):
            return bool(content)
        case Figures(table=content):
            return bool(content.rows)
    return True
