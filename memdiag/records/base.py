"""Base classes of records: frozen, and strict about unknown fields.

Each record declares `kw_only` itself, as msgspec does not inherit it.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all records. Sizes are `int` bytes; times and durations are `float` seconds."""


class NotebookRecord(Record, frozen=True):
    """Base of the records that the Python API returns, with a representation for notebooks.

    The reporters that render them are imported when a method is called.
    """

    def __repr__(self) -> str:
        """Return the summary of the record in one line."""
        from memdiag.reports import notebook

        return notebook.one_line(self)

    def _repr_html_(self) -> str:
        """Return the summary as HTML for notebooks, with details to unfold."""
        from memdiag.reports import notebook

        return notebook.record_html(self)

    def to_dataframe(self) -> Any:
        """Return a pandas data frame.

        Rows are phases, columns, remedies, points of a fix or an estimate, configurations, copies,
        owners, sessions, moments or jobs.

        Raises:
            UsageError: pandas is not installed, or the record has no rows.
        """
        from memdiag.reports import notebook

        return notebook.data_frame(self)


class SavableRecord(NotebookRecord, frozen=True):
    """Base of the records that have a schema: `save` writes them, and `memdiag.load` reads them."""

    def save(self, path: str | PathLike[str]) -> None:
        """Write this record to the file `path` as JSON, as the command line does.

        Raises:
            ReportError: the file cannot be written.
        """
        from memdiag.records.codec import encode
        from memdiag.records.files import save_bytes

        save_bytes(encode(self), Path(path))


class PlottableRecord(SavableRecord, frozen=True):
    """Base of the records that can be drawn with matplotlib."""

    def plot(self) -> Figure:
        """Return the picture that reports contain, as a matplotlib figure.

        Raises:
            ReportError: the record cannot be drawn.
        """
        from memdiag.reports import notebook

        return notebook.record_figure(self)

    def write_reports(
        self, folder: str | PathLike[str], formats: Sequence[str] = ()
    ) -> tuple[Path, ...]:
        """Write the reports to `folder`, as the command line does, and return their files.

        Args:
            folder: the folder, which is created if missing.
            formats: html, issue, json, markdown, png, svg or trace; the default ones if empty.

        Raises:
            UsageError: there is no such format.
            ReportError: a file cannot be written.
        """
        from memdiag.reports import notebook

        return notebook.write_reports(self, Path(folder), formats)
