"""A record becomes files: one reporter a module of a package, found by its format.

A file reporter is a module with `FORMAT`, `FILE_NAME` and ``render(record) -> bytes``; it is called
like its format (or ``<format>_file``) and imports heavy libraries inside its functions only. The
module called ``console`` prints instead, with ``show(record, console)``.
"""

import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from memdiag.errors import ReportError, UsageError
from memdiag.records.base import Record
from memdiag.records.codec import escaped
from memdiag.records.files import save_files

if TYPE_CHECKING:
    from rich.console import Console

    from memdiag.reports.page import Plotly

R = TypeVar("R", bound=Record)
R_contra = TypeVar("R_contra", bound=Record, contravariant=True)


class _Reporter(Protocol[R_contra]):
    FORMAT: str
    FILE_NAME: str

    def render(self, record: R_contra, **options: "Plotly") -> bytes: ...


@dataclass(frozen=True)
class Reporters(Generic[R]):
    """The reporters of one kind of record: the modules of `package`; `what` is the kind's name."""

    package: str
    what: str

    def formats(self) -> tuple[str, ...]:
        """Return the formats that can be written, in alphabetical order."""
        modules = map(self._module, self._module_names())
        return tuple(sorted(module.FORMAT for module in modules if hasattr(module, "FORMAT")))

    def render(self, record: R, format: str) -> bytes:
        """Return `record` in `format`.

        Raises:
            UsageError: there is no such format.
            ReportError: the record cannot be shown that way.
        """
        return self._reporter(format).render(escaped(record))

    def write(
        self, record: R, directory: Path, formats: Sequence[str], *, plotly: "Plotly" = "inline"
    ) -> tuple[Path, ...]:
        """Write `record` into `directory`, made where it is missing, and return the files' paths.

        All formats are rendered before the first one is written. `plotly` says where the page has
        the library that draws.

        Raises:
            UsageError: there is no such format.
            ReportError: a file could not be written.
        """
        record = escaped(record)
        reporters = [self._reporter(name) for name in dict.fromkeys(formats)]
        contents = []
        for each in reporters:
            options = {"plotly": plotly} if each.FORMAT == "html" else {}
            contents.append((directory / each.FILE_NAME, each.render(record, **options)))
            if each.FORMAT == "html":
                from memdiag.reports.page import beside

                contents += [(directory / name, content) for name, content in beside(plotly)]
        return write_files(contents)

    def show(
        self,
        record: R,
        console: "Console",
        *,
        written: Sequence[Path] = (),
        quiet: bool = False,
        **options: bool,
    ) -> None:
        """Print the summary of `record` on `console`; `written` are the files to name.

        With `quiet` it is the answer only; `options` are those of the kind's own console.
        """
        self._module("console").show(
            escaped(record), console, written=written, quiet=quiet, **options
        )

    def _module_names(self) -> tuple[str, ...]:
        path = importlib.import_module(self.package).__path__
        return tuple(module.name for module in pkgutil.iter_modules(path) if not module.ispkg)

    def _module(self, name: str) -> Any:
        return importlib.import_module(f"{self.package}.{name}")

    def _reporter(self, format: str) -> _Reporter[R]:
        for name in (format, f"{format}_file"):
            if name in self._module_names():
                module = self._module(name)
                if getattr(module, "FORMAT", None) == format:
                    return cast("_Reporter[R]", module)
        raise UsageError(
            f"{format!r} is not a report format of a {self.what}."
            f" Choose from {', '.join(self.formats())}."
        )


def write_files(contents: Sequence[tuple[Path, bytes]]) -> tuple[Path, ...]:
    """Write files with their contents, their folders made where missing, and return their paths.

    All are written beside their target before the first one replaces it, so that an error leaves
    what was there, and never half a file.

    Raises:
        ReportError: a file could not be written.
    """
    for folder in dict.fromkeys(path.parent for path, _ in contents):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ReportError(
                f"{folder}: cannot be written ({error.strerror}). Choose another folder."
            ) from error
    save_files(contents)
    return tuple(path for path, _ in contents)
