"""Reports of a record: the formats it can be written in, and its summary on a terminal.

Each kind of record has a module with a `REPORT`; `memdiag.reports.report_of` finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from memdiag.detail import Detail
from memdiag.errors import ReportError, UsageError
from memdiag.records import codec
from memdiag.records.base import Record
from memdiag.records.files import save_files
from memdiag.reports.blocks import Document, document_markdown, print_document
from memdiag.reports.console import plain_output
from memdiag.reports.page import document_page

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

    from memdiag.records.schemas import ReportedRecord

R = TypeVar("R", bound=Record)

_DEFAULT_FORMATS = ("html", "png", "markdown", "json", "trace")


@dataclass(frozen=True)
class Report(Generic[R]):
    """The report of one kind of record.

    Attributes:
        name: the kind of record in messages, such as ``comparison``.
        files: the file name by format: html, issue, json, markdown, png, svg, trace.
        document: returns the content of the report.
        draw: returns the picture; None for records without one.
        trace: returns the trace for ui.perfetto.dev; None for records without times.
        outlines_letters: whether letters in an SVG are outlines, because their positions depend on
            the font.
    """

    name: str
    files: Mapping[str, str]
    document: Callable[[R], Document]
    draw: Callable[[R], Figure] | None = None
    trace: Callable[[R], bytes] | None = None
    outlines_letters: bool = field(default=False, kw_only=True)

    def markdown(self, record: R) -> str:
        """Return the report of `record` in Markdown."""
        return document_markdown(self.document(record))

    def formats(self) -> tuple[str, ...]:
        """Return the available formats, in alphabetical order."""
        return tuple(sorted(self.files))

    def default_formats(self) -> tuple[str, ...]:
        """Return the formats that are written unless the user asks for others."""
        return tuple(format for format in _DEFAULT_FORMATS if format in self.files)

    def render(self, record: R, format: str) -> bytes:
        """Return `record` in `format`.

        Raises:
            UsageError: there is no such format.
            ReportError: the record cannot be rendered.
        """
        self.file_name(format)
        record = codec.escaped_record(record)
        if format == "issue":
            from memdiag.reports.issue import issue_markdown

            return issue_markdown(cast("ReportedRecord", record), self.markdown(record)).encode()
        draw = None if self.draw is None else partial(self.draw, record)
        if format == "html":
            name = Path(self.files["json"]).stem
            return document_page(self.document(record), record, name, draw)
        if format == "json":
            return codec.encode(record)
        if format == "markdown":
            return self.markdown(record).encode()
        if format == "trace" and self.trace is not None:
            return self.trace(record)
        from memdiag.reports.picture import rendered_picture

        assert draw is not None, "files has a picture"
        return rendered_picture(
            draw, "svg" if format == "svg" else "png", outlined=self.outlines_letters
        )

    def file_name(self, format: str) -> str:
        """Return the name of the file in `format`.

        Raises:
            UsageError: there is no such format.
        """
        if format not in self.files:
            raise UsageError(
                f"{format!r} is not a report format of a {self.name}."
                f" Choose from {', '.join(self.formats())}."
            )
        return self.files[format]

    def write(self, record: R, directory: Path, formats: Sequence[str]) -> tuple[Path, ...]:
        """Write `record` into `directory`, which is created if missing, and return the paths.

        All formats are rendered before the first file is written, and all files are written under
        temporary names before the first one replaces its target. So an error keeps the earlier
        files, and never leaves half a file.

        Raises:
            UsageError: there is no such format.
            ReportError: a file could not be written.
        """
        contents = [
            (directory / self.file_name(format), self.render(record, format))
            for format in dict.fromkeys(formats)
        ]
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ReportError(
                f"{directory}: cannot be written ({error.strerror}). Choose another folder."
            ) from error
        save_files(contents)
        return tuple(path for path, _ in contents)

    def print_summary(
        self,
        record: R,
        console: Console,
        *,
        report_paths: Sequence[Path] = (),
        detail: Detail = Detail.USUAL,
    ) -> None:
        """Print the summary of `record` on `console`.

        `detail` is how much; `report_paths` are files to name.
        """
        with plain_output(console):
            document = self.document(codec.escaped_record(record))
            print_document(document, console, report_paths=report_paths, detail=detail)


ISSUE_FILE = {"issue": "issue.md"}
"""The file of the report for an issue, for the `files` of records that have it."""


def file_names(stem: str) -> dict[str, str]:
    """Return the file names of the usual formats: ``stem.html``, ``stem.json`` and so on."""
    suffixes = {"html": "html", "json": "json", "markdown": "md", "png": "png", "svg": "svg"}
    return {format: f"{stem}.{suffix}" for format, suffix in suffixes.items()}
