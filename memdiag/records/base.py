"""Base classes of records: frozen, and strict about unknown fields.

msgspec does not inherit `kw_only`: each record declares it.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all records; sizes are `int` bytes, times and durations `float` seconds."""


class Shown(Record, frozen=True):
    """Base of the records that functions of the Python API return, with text for notebooks.

    The reporters that render them are loaded when a method is called.
    """

    def __repr__(self) -> str:
        """Return one line: the answer."""
        from memdiag.reports import notebook

        return notebook.one_line(self)

    def _repr_html_(self) -> str:
        """Return the answer, with a summary to unfold, as HTML for notebooks."""
        from memdiag.reports import notebook

        return notebook.html(self)

    def to_dataframe(self) -> Any:
        """Return a pandas data frame.

        Rows are phases, columns, remedies, points, copies, owners or sessions.

        Raises:
            UsageError: pandas is not installed, or the record has no rows.
        """
        from memdiag.reports import notebook

        return notebook.data_frame(self)


class Savable(Shown, frozen=True):
    """Base of the records that have a schema, so that `memdiag.load` can read them again."""

    def save(self, path: str | PathLike[str]) -> None:
        """Write this record to the file `path` as JSON, as the command line does.

        Raises:
            ReportError: the file cannot be written.
        """
        from memdiag.records.codec import encode
        from memdiag.records.files import save_bytes

        save_bytes(encode(self), Path(path))


class Drawn(Savable, frozen=True):
    """Base of the records that have a picture."""

    def plot(self) -> Figure:
        """Return the picture of the reports as a matplotlib figure.

        Raises:
            ReportError: the record cannot be drawn.
        """
        from memdiag.reports import notebook

        return notebook.figure(self)
