"""A comparison becomes files: one reporter a module, found by its name.

A module with `FORMAT`, `FILE_NAME` and ``render(comparison) -> bytes``, as for profiles;
`console.show` prints instead of writing.
"""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from memdiag.records.comparison import Comparison
from memdiag.reporters import write_files

_MODULES = {"html": "html", "png": "png", "markdown": "markdown", "json": "json_file"}


def write(comparison: Comparison, directory: Path, formats: Sequence[str]) -> tuple[Path, ...]:
    """Write `comparison` into `directory` in `formats`, and return the files' paths.

    Raises:
        ReportError: a file could not be written; what was there before is left.
    """
    modules = [import_module(f"{__name__}.{_MODULES[name]}") for name in formats]
    return write_files(
        [(directory / module.FILE_NAME, module.render(comparison)) for module in modules]
    )
