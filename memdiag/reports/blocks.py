"""A report as a list of blocks, which is printed, written as Markdown, and laid out as a page.

Each kind of record has a function that returns a `Document`, the content of its report. The
renderers, here and in `memdiag.reports.page`, know the kinds of blocks, but no records.
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
"""Formats of blocks that only some outputs have."""

_MAX_MARKDOWN_ROWS = 50


@dataclass(frozen=True, kw_only=True)
class Block:
    """A part of a report below its answer.

    Attributes:
        title: its heading. On a page, every block except a sentence has one.
        detail: the detail from which on a terminal prints it.
        short: its name in the list of what a terminal left out, such as ``2 notes``.
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
    """One sentence, or several in a row. A terminal prints them next to the title.

    Without a title, they continue the sentence before.

    Attributes:
        command: what to enter in a shell; empty for nothing.
    """

    text: str
    command: str = ""


@dataclass(frozen=True, kw_only=True)
class BulletBlock(Block):
    """Sentences one below the other. On a terminal each has a `prefix`.

    Attributes:
        short_texts: what a terminal prints unless the user asks for everything; None for `texts`.
    """

    texts: Sequence[str]
    short_texts: Sequence[str] | None = None
    prefix: str = ""


@dataclass(frozen=True, kw_only=True)
class TableBlock(Block):
    """A table.

    Attributes:
        short_table: what a terminal prints unless the user asks for everything; None for `table`.
        max_rows: the rows that it prints unless the user asks for everything; None for all.
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
        max_rows: how many a terminal prints unless the user asks for everything.
    """

    findings: Sequence[FindingText]
    summary: str = ""
    max_rows: int | None = None


@dataclass(frozen=True, kw_only=True)
class PictureBlock(Block):
    """The picture of the record, on pages only.

    Attributes:
        alt: what the picture shows, for those who do not see it.
        hint: how to read it.
    """

    formats: Sequence[OutputFormat] = PAGE_ONLY
    alt: str
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class ChartBlock(Block):
    """A chart that a script of the page draws.

    Attributes:
        name: the `id` of the element in which it is drawn.
        script: the file of the script in ``templates``.
        data: returns what the script draws, by the names that the script uses.
        alt: what the chart shows, for those who do not see it.
        hints: how to read it.
        has_ranges: whether users choose the range of time that it shows, also by keys.
        below: returns HTML below the chart, which the script uses, too.
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
        line: the subject and the answer as a terminal prints them; by default with a colon.
        style: the colour of the answer on a terminal.
        is_bad: whether the answer is a finding.
        rest: the rest of the answer, which is printed with it at every detail.
        seconds: sentences below it.
        facts: the conditions, in a few words.
        ended: why the record is not complete, with a label; empty if it is complete.
        blocks: the blocks below, in order. Blocks without content are left out.
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
        return [
            block for block in self.blocks if format in block.formats and _has_block_content(block)
        ]


def notes_block(notes: Iterable[str], *, detail: Detail = Detail.ALL) -> BulletBlock:
    """Return the notes of a record, which a terminal prints from `detail` on."""
    texts = tuple(map(plain, notes))
    short = counted(len(texts), "note")
    return BulletBlock(title="Notes", texts=texts, prefix="note: ", detail=detail, short=short)


def print_document(
    document: Document, console: Console, *, report_paths: Sequence[Path], detail: Detail
) -> None:
    """Print as much of `document` as `detail` says, and the names of its `report_paths`."""
    print_line(console, document.line or f"{document.subject}: {document.answer}", document.style)
    print_line(console, document.rest)
    if detail is not Detail.ANSWER:
        for text in document.seconds:
            print_line(console, text)
        print_line(console, document.facts, "dim")
    console_blocks = document.filled("console")
    printed_blocks = [block for block in console_blocks if block.detail <= detail]
    omitted_texts = [
        block.short
        for block in console_blocks
        if block.short and (block.detail > detail or _is_block_shortened(block))
    ]
    # Code is last, because users copy it.
    code_blocks = [block for block in printed_blocks if isinstance(block, CodeBlock)]
    print_blocks(
        [block for block in printed_blocks if not isinstance(block, CodeBlock)], console, detail
    )
    is_usual = detail is Detail.USUAL
    hint = f"With -v: {', '.join(omitted_texts)}." if omitted_texts and is_usual else ""
    # No blank line separates the hint from the files, because a usual summary has few lines.
    print_line(console, hint)
    if document.ended:
        console.print()
        print_line(console, document.ended, "bold red")
    if report_paths and detail is not Detail.ANSWER:
        if document.ended or not hint:
            console.print()
        print_files(console, report_paths, is_short=is_usual)
    for block in code_blocks:
        console.print()
        _print_block(block, console, detail)


def print_blocks(blocks: Sequence[Block], console: Console, detail: Detail) -> None:
    """Print `blocks`. A blank line is above each, unless the user asks only for the answer."""
    previous_block: Block | None = None
    for block in blocks:
        continues_sentence = isinstance(block, SentenceBlock) and isinstance(
            previous_block, SentenceBlock
        )
        if not continues_sentence and detail is not Detail.ANSWER:
            console.print()
        _print_block(block, console, detail)
        previous_block = block


def _print_block(block: Block, console: Console, detail: Detail) -> None:
    from rich.text import Text

    if isinstance(block, BulletBlock):
        is_short = detail is not Detail.ALL and block.short_texts is not None
        for text in block.short_texts or () if is_short else block.texts:
            print_line(console, f"{block.prefix}{text}")
    elif isinstance(block, SentenceBlock):
        print_labelled_text(console, block.title, block.text)
        print_labelled_text(console, "", block.command, "bold")
    elif isinstance(block, FindingsBlock):
        shown_rows = {Detail.ANSWER: 1, Detail.USUAL: block.max_rows, Detail.ALL: None}[detail]
        print_findings(block.findings, console, shown_rows)
        print_line(console, block.summary)
    elif isinstance(block, TableBlock):
        # A title distinguishes several tables. Tables that are printed on request have one, too.
        if block.detail is Detail.ALL or block.max_rows is not None:
            print_line(console, f"{block.title}:")
        table = block.table if detail is Detail.ALL else block.short_table or block.table
        shown_rows = len(table.rows) if detail is Detail.ALL else block.max_rows or len(table.rows)
        print_table(console, table.first_rows(shown_rows).fitted(console.width, block.optional))
        print_line(console, more_rows(table, shown_rows), "dim")
    elif isinstance(block, CodeBlock):
        for text in block.text.splitlines():
            # Lines are not wrapped, because a program with broken lines would not run.
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


def _block_markdown(block: Block) -> str:
    title = md.escape(block.title)
    if isinstance(block, SentenceBlock):
        command = f" {md.code_span(block.command)}" if block.command else ""
        return f"**{title}:** {md.escape(block.text)}{command}".removeprefix("**:** ")
    body = "\n\n".join(filter(None, _block_parts_markdown(block)))
    is_folded = block.is_folded or isinstance(block, FactsBlock)
    return md.folded_section(title, body) if is_folded else md.section(title, body)


def _block_parts_markdown(block: Block) -> Iterator[str]:
    match block:
        case BulletBlock():
            yield md.bullet_list(block.texts)
        case CodeBlock():
            yield md.code_block(block.text.splitlines(), block.language)
        case FactsBlock():
            yield markdown_table(_facts_table(block))
        case FindingsBlock():
            yield md.escape(block.summary)
            yield findings_markdown(block.findings)
        case TableBlock(table=table):
            yield markdown_table(table.first_rows(_MAX_MARKDOWN_ROWS))
            yield more_rows(table, _MAX_MARKDOWN_ROWS)
            yield md.escape(block.caption or table.caption)


def _facts_table(facts: FactsBlock) -> Table:
    rows = (Row(name, Cell(value, is_code=True)) for name, value in facts.rows)
    return Table(columns=(Column(), Column()), rows=tuple(rows))


def more_rows(table: Table, shown_rows: int) -> str:
    """Return how many rows of `table` follow after `shown_rows`; empty if none do."""
    hidden_rows = len(table.rows) - shown_rows
    return f"and {counted(hidden_rows, 'more row')}" if hidden_rows > 0 else ""


def _is_block_shortened(block: Block) -> bool:
    """Return whether a terminal prints less of `block` unless the user asks for everything."""
    if not isinstance(block, BulletBlock) or block.short_texts is None:
        return False
    return list(block.short_texts) != list(block.texts)


def _has_block_content(block: Block) -> bool:
    match block:
        case SentenceBlock(text=content) | CodeBlock(text=content):
            return bool(content)
        case BulletBlock(texts=content):
            return bool(content)
        case FactsBlock(rows=content) | TableBlock(table=Table(rows=content)):
            return bool(content)
        case FindingsBlock():
            return bool(block.findings or block.summary)
    return True
