"""A report as a list of blocks, which is printed, written as Markdown, and laid out as a page.

A kind of record states once, in a function that returns a `Document`, what its report has. The
renderers, here and in `memdiag.reports.page`, know the kinds of blocks and nothing of records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memdiag.detail import Detail
from memdiag.reports import markdown as md
from memdiag.reports.console import print_files, print_labelled_text, print_line, terminal_text
from memdiag.reports.findings import (
    FindingText,
    findings_markdown,
    print_findings,
)
from memdiag.reports.table import (
    ALL_FORMATS,
    Cell,
    Column,
    OutputFormat,
    Row,
    Table,
    markdown_table,
    print_table,
)
from memdiag.reports.text import capitalized, plain
from memdiag.units import counted

if TYPE_CHECKING:
    from rich.console import Console


PAGE_ONLY: tuple[OutputFormat, ...] = ("html",)
TERMINAL_ONLY: tuple[OutputFormat, ...] = ("console",)
NOT_ON_PAGES: tuple[OutputFormat, ...] = ("console", "markdown")
NOT_ON_TERMINALS: tuple[OutputFormat, ...] = ("markdown", "html")
"""Formats of blocks that not all outputs have."""

_MAX_MARKDOWN_ROWS = 50


@dataclass(frozen=True, kw_only=True)
class Block:
    """A part of a report below its answer.

    Attributes:
        title: its heading; on a page every block but a sentence has one.
        detail: how much has to be asked for, so that a terminal prints it.
        short: what names it among what a terminal left out, such as ``2 notes``.
        formats: the outputs that have it.
        is_folded: whether pages and Markdown show the title only, which unfolds it.
    """

    title: str = ""
    detail: Detail = Detail.USUAL
    short: str = ""
    formats: Sequence[OutputFormat] = ALL_FORMATS
    is_folded: bool = False


@dataclass(frozen=True, kw_only=True)
class SentenceBlock(Block):
    """One sentence, or several in a row. On a terminal it is printed next to its title.

    Without a title, it continues the sentence before.

    Attributes:
        command: what to enter in a shell; empty for nothing.
    """

    text: str
    command: str = ""


@dataclass(frozen=True, kw_only=True)
class BulletBlock(Block):
    """Sentences one below the other. On a terminal each has a `prefix`.

    Attributes:
        short_texts: what a terminal prints unless everything is asked for; None for `texts`.
    """

    texts: Sequence[str]
    short_texts: Sequence[str] | None = None
    prefix: str = ""


@dataclass(frozen=True, kw_only=True)
class TableBlock(Block):
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
class CodeBlock(Block):
    """Text in a language, which users copy."""

    text: str
    language: str


@dataclass(frozen=True, kw_only=True)
class FactsBlock(Block):
    """Names and values: a card of a page, and folded in Markdown."""

    formats: Sequence[OutputFormat] = NOT_ON_TERMINALS
    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class FindingsBlock(Block):
    """Findings, each with its place, its cost and the documentation of its rule.

    Attributes:
        summary: a sentence on all of them.
        max_rows: how many a terminal prints unless everything is asked for.
    """

    findings: Sequence[FindingText]
    summary: str = ""
    max_rows: int | None = None


@dataclass(frozen=True, kw_only=True)
class PictureBlock(Block):
    """The picture of the record: on a page only, and there with `alt` for those who do not see it.

    Attributes:
        hint: how to read it.
    """

    formats: Sequence[OutputFormat] = PAGE_ONLY
    alt: str
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class ChartBlock(Block):
    """A chart that a script of the page draws.

    Attributes:
        name: the `id` of the element that it is drawn in.
        script: the file of the script in ``templates``.
        data: returns what the script draws, by the names under which it finds it.
        alt: what the chart shows, for those who do not see it.
        hints: how to read it.
        has_ranges: whether users choose the range of time that it shows, also by keys.
        below: returns HTML that the script works on as well.
    """

    formats: Sequence[OutputFormat] = PAGE_ONLY
    name: str
    script: str
    data: Callable[[], Mapping[str, Any]]
    alt: str
    hints: Sequence[str] = ()
    has_ranges: bool = False
    below: Callable[[], str] | None = None


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
        rest: the rest of the answer, which is printed with it whatever is asked for.
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
    rest: str = ""
    seconds: Sequence[str] = ()
    facts: str = ""
    ended: str = ""
    blocks: Sequence[Block]

    def filled(self, format: OutputFormat) -> list[Block]:
        """Return the blocks that have content in `format`."""
        return [each for each in self.blocks if format in each.formats and _has_block_content(each)]


def notes_block(notes: Iterable[str], *, detail: Detail = Detail.ALL) -> BulletBlock:
    """Return the notes of a record, which a terminal prints on request unless `detail` is less."""
    texts = tuple(map(plain, notes))
    short = counted(len(texts), "note")
    return BulletBlock(title="Notes", texts=texts, prefix="note: ", detail=detail, short=short)


def print_document(
    document: Document, console: Console, *, written: Sequence[Path], detail: Detail
) -> None:
    """Print `document`; `written` are the files to name; `detail` is how much."""
    print_line(console, document.line or f"{document.subject}: {document.answer}", document.style)
    print_line(console, document.rest)
    if detail is not Detail.ANSWER:
        for text in document.seconds:
            print_line(console, text)
        print_line(console, document.facts, "dim")
    printable = document.filled("console")
    printed = [each for each in printable if each.detail <= detail]
    left_out = [
        each.short
        for each in printable
        if each.short and (each.detail > detail or _is_block_shortened(each))
    ]
    # What users copy is last.
    codes = [each for each in printed if isinstance(each, CodeBlock)]
    print_blocks([each for each in printed if not isinstance(each, CodeBlock)], console, detail)
    is_usual = detail is Detail.USUAL
    hint = f"With -v: {', '.join(left_out)}." if left_out and is_usual else ""
    # Not below a blank line, as the files: a usual summary has few lines.
    print_line(console, hint)
    if document.ended:
        console.print()
        print_line(console, document.ended, "bold red")
    if written and detail is not Detail.ANSWER:
        if document.ended or not hint:
            console.print()
        print_files(console, written, is_short=is_usual)
    for each in codes:
        console.print()
        _print_block(each, console, detail)


def print_blocks(blocks: Sequence[Block], console: Console, detail: Detail) -> None:
    """Print `blocks`, each below a blank line, unless only the answer is asked for."""
    last: Block | None = None
    for each in blocks:
        is_further = isinstance(each, SentenceBlock) and isinstance(last, SentenceBlock)
        if not is_further and detail is not Detail.ANSWER:
            console.print()
        _print_block(each, console, detail)
        last = each


def _print_block(each: Block, console: Console, detail: Detail) -> None:
    from rich.text import Text

    if isinstance(each, BulletBlock):
        is_short = detail is not Detail.ALL and each.short_texts is not None
        for text in each.short_texts or () if is_short else each.texts:
            print_line(console, f"{each.prefix}{text}")
    elif isinstance(each, SentenceBlock):
        print_labelled_text(console, each.title, each.text)
        print_labelled_text(console, "", each.command, "bold")
    elif isinstance(each, FindingsBlock):
        shown = {Detail.ANSWER: 1, Detail.USUAL: each.max_rows, Detail.ALL: None}[detail]
        print_findings(each.findings, console, shown)
        print_line(console, each.summary)
    elif isinstance(each, TableBlock):
        # One of several tables is named, and one that was asked for.
        if each.detail is Detail.ALL or each.max_rows is not None:
            print_line(console, f"{each.title}:")
        table = each.table if detail is Detail.ALL else each.short_table or each.table
        shown = len(table.rows) if detail is Detail.ALL else each.max_rows or len(table.rows)
        print_table(console, table.first_rows(shown).fitted(console.width, each.optional))
        print_line(console, more_rows(table, shown), "dim")
    elif isinstance(each, CodeBlock):
        for text in each.text.splitlines():
            # Not wrapped: a program whose lines were broken would not run.
            console.print(Text(terminal_text(console, text)), highlight=False, soft_wrap=True)


def document_markdown(document: Document) -> str:
    """Return `document` as Markdown, for an issue or a pull request."""
    return md.document(
        (
            f"## {capitalized(document.kind)}: {md.code_span(document.subject)}",
            f"**{md.escape(capitalized(document.answer))}**",
            f"**{md.escape(document.ended)}**" if document.ended else "",
            *map(md.escape, (document.rest, *document.seconds, document.facts)),
            *map(_block_markdown, document.filled("markdown")),
        )
    )


def _block_markdown(each: Block) -> str:
    title = md.escape(each.title)
    if isinstance(each, SentenceBlock):
        command = f" {md.code_span(each.command)}" if each.command else ""
        return f"**{title}:** {md.escape(each.text)}{command}".removeprefix("**:** ")
    body = "\n\n".join(filter(None, _block_parts_markdown(each)))
    is_folded = each.is_folded or isinstance(each, FactsBlock)
    return md.folded_section(title, body) if is_folded else md.section(title, body)


def _block_parts_markdown(each: Block) -> Iterator[str]:
    match each:
        case BulletBlock():
            yield md.bullet_list(each.texts)
        case CodeBlock():
            yield md.code_block(each.text.splitlines(), each.language)
        case FactsBlock():
            yield markdown_table(_facts_table(each))
        case FindingsBlock():
            yield md.escape(each.summary)
            yield findings_markdown(each.findings)
        case TableBlock(table=table):
            yield markdown_table(table.first_rows(_MAX_MARKDOWN_ROWS))
            yield more_rows(table, _MAX_MARKDOWN_ROWS)
            yield md.escape(each.caption or table.caption)


def _facts_table(facts: FactsBlock) -> Table:
    rows = (Row(name, Cell(value, is_code=True)) for name, value in facts.rows)
    return Table(columns=(Column(), Column()), rows=tuple(rows))


def more_rows(table: Table, shown: int) -> str:
    """Return how many rows of `table` are not shown, if `shown` are; empty if all are."""
    more = len(table.rows) - shown
    return f"and {counted(more, 'more row')}" if more > 0 else ""


def _is_block_shortened(each: Block) -> bool:
    """Return whether a terminal prints less of `each` unless everything is asked for."""
    if not isinstance(each, BulletBlock) or each.short_texts is None:
        return False
    return list(each.short_texts) != list(each.texts)


def _has_block_content(each: Block) -> bool:
    match each:
        case SentenceBlock(text=content) | CodeBlock(text=content):
            return bool(content)
        case BulletBlock(texts=content):
            return bool(content)
        case FactsBlock(rows=content) | TableBlock(table=Table(rows=content)):
            return bool(content)
        case FindingsBlock():
            return bool(each.findings or each.summary)
    return True
