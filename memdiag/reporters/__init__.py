"""A profile becomes files: one reporter a module, found by its name and imported when asked for.

A file reporter is a module of this package with `FORMAT`, `FILE_NAME` and
``render(profile) -> bytes``; it is called like its format (or ``<format>_file``) and imports
heavy libraries inside its functions only. `console.show` prints instead of writing.
"""

import contextlib
import importlib
import os
import pkgutil
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from memdiag.errors import ReportError, UsageError
from memdiag.records.profile import Profile

if TYPE_CHECKING:
    from memdiag.reporters.page import Plotly

DEFAULT_FORMATS = ("html", "png", "markdown", "json")


class _Reporter(Protocol):
    FORMAT: str
    FILE_NAME: str

    def render(self, profile: Profile, **options: "Plotly") -> bytes: ...


def formats() -> tuple[str, ...]:
    """Return the formats that can be written, in alphabetical order."""
    modules = (importlib.import_module(f"{__name__}.{name}") for name in _module_names())
    return tuple(sorted(module.FORMAT for module in modules if hasattr(module, "FORMAT")))


def render(profile: Profile, format: str) -> bytes:
    """Return `profile` in `format`.

    Raises:
        UsageError: there is no such format.
        ReportError: the profile cannot be shown that way.
    """
    return _reporter(format).render(profile)


def write(
    profile: Profile, directory: Path, formats: Sequence[str], *, plotly: "Plotly" = "inline"
) -> tuple[Path, ...]:
    """Write `profile` into `directory`, made where it is missing, and return the files' paths.

    All formats are rendered before the first one is written. `plotly` says where the page has the
    library that draws.

    Raises:
        UsageError: there is no such format.
        ReportError: a file could not be written.
    """
    reporters = [_reporter(name) for name in dict.fromkeys(formats)]
    contents = []
    for each in reporters:
        options = {"plotly": plotly} if each.FORMAT == "html" else {}
        contents.append((directory / each.FILE_NAME, each.render(profile, **options)))
        if each.FORMAT == "html":
            from memdiag.reporters.page import beside

            contents += [(directory / name, content) for name, content in beside(plotly)]
    return write_files(contents)


def write_files(contents: Sequence[tuple[Path, bytes]]) -> tuple[Path, ...]:
    """Write files with their contents, their folders made where missing, and return their paths.

    All are written beside their target before the first one replaces it, so that an error leaves
    what was there, and never half a file.

    Raises:
        ReportError: a file could not be written.
    """
    staged: list[tuple[Path, Path]] = []
    target = Path()
    try:
        for path, content in contents:
            target = path.parent
            target.mkdir(parents=True, exist_ok=True)
            target = path
            beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
            staged.append((beside, target))
            with beside.open("xb") as file:
                file.write(content)
        for beside, target in staged:
            os.replace(beside, target)
    except OSError as error:
        raise ReportError(
            f"{target}: cannot be written ({error.strerror}); choose another folder or free it."
        ) from error
    finally:
        for beside, _ in staged:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
    return tuple(target for target, _ in contents)


def _module_names() -> tuple[str, ...]:
    return tuple(module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg)


def _reporter(format: str) -> _Reporter:
    for name in (format, f"{format}_file"):
        if name in _module_names():
            module = importlib.import_module(f"{__name__}.{name}")
            if getattr(module, "FORMAT", None) == format:
                return cast("_Reporter", module)
    raise UsageError(f"{format!r} is not a report format; choose from {', '.join(formats())}.")
