"""Records with other values, their reports as text, and the approved files of these texts."""

import io
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from rich.console import Console

from memdiag.detail import Detail
from memdiag.records.base import Record
from memdiag.records.schemas import ReportedRecord
from memdiag.reports import report_of
from memdiag.reports.table import Table, print_table
from tests.snapshots import assert_approved

APPROVED = Path(__file__).parent / "approved"

R = TypeVar("R", bound=Record)


def replaced(record: R, **changes: Any) -> R:
    """Return `record` with other values; ``session__runs=2`` is one of the record in `session`."""
    values = {name: value for name, value in changes.items() if "__" not in name}
    parts: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for path in changes.keys() - values.keys():
        name, _, field = path.partition("__")
        parts[name][field] = changes[path]
    for name, fields in parts.items():
        values[name] = replaced(values.get(name, getattr(record, name)), **fields)
    return msgspec.structs.replace(record, **values)


def captured(
    show: Callable[[Console], None],
    *,
    width: int = 80,
    encoding: str = "utf-8",
    is_terminal: bool = False,
    is_colored: bool = False,
) -> str:
    """Return what `show` prints, as a pipe, a terminal or one with colours gets it."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(
        file=file,
        width=width,
        highlight=False,
        force_terminal=is_terminal or is_colored,
        color_system="standard" if is_colored else None,
    )
    show(console)
    file.seek(0)
    return file.read()


def printed(
    record: ReportedRecord,
    *,
    detail: Detail = Detail.ALL,
    written: tuple[Path, ...] = (),
    **terminal: Any,
) -> str:
    """Return the summary of `record` on a `terminal`."""
    summary = partial(report_of(record).print_summary, record, report_paths=written, detail=detail)
    return captured(summary, **terminal)


def words(record: ReportedRecord, *, detail: Detail = Detail.ALL, width: int = 80) -> str:
    """Return the summary of `record` in one line."""
    return " ".join(printed(record, detail=detail, width=width).split())


def section(record: ReportedRecord, title: str, *, width: int = 80) -> list[str]:
    """Return the lines of the summary from the one that begins with `title` to the next blank."""
    lines = printed(record, width=width).splitlines()
    (start, *_) = (i for i, line in enumerate(lines) if line.startswith(title))
    end = lines.index("", start) if "" in lines[start:] else len(lines)
    return lines[start:end]


def table_lines(table: Table, *, width: int = 120) -> list[str]:
    """Return the lines of `table` and of its caption, as a terminal shows them."""
    return captured(lambda console: print_table(console, table), width=width).splitlines()


def markdown(record: ReportedRecord) -> str:
    """Return the Markdown of `record`."""
    return report_of(record).markdown(record)


def html(record: ReportedRecord) -> str:
    """Return the page of `record`."""
    return report_of(record).render(record, "html").decode()


def assert_sentences_approved(name: str, sentences: Mapping[str, Iterable[str]]) -> None:
    """Compare the sentences of each case with the approved file `name`; a dash is no sentence."""
    lines = []
    for case, texts in sentences.items():
        lines += ["", f"[{case}]", *([text for text in texts if text] or ["-"])]
    assert_approved("\n".join(lines[1:]), APPROVED / f"{name}.txt")


class Page(HTMLParser):
    """Collects a page's elements, and the text of those outside of scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.text = ""
        self.open: tuple[str, dict[str, str | None]] = ("", {})
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open = (tag, dict(attrs))
        self.elements.append(self.open)

    def handle_endtag(self, tag: str) -> None:
        self.open = ("", {})

    def handle_data(self, data: str) -> None:
        tag, attrs = self.open
        if tag == "script":
            self.scripts.append((attrs, data))
        elif tag != "style":
            self.text += data

    @property
    def links(self) -> set[str | None]:
        """The addresses that elements refer to."""
        return {
            value
            for _, attrs in self.elements
            for name, value in attrs.items()
            if name in ("src", "href", "srcset", "action", "data")
        }

    def embedded(self, name: str) -> str:
        """Return the script with the id `name`: the record, or the data of the charts."""
        return "".join(text for attrs, text in self.scripts if attrs.get("id") == name)
