"""A comparison becomes files: one reporter a module, found by its name.

A module with `FORMAT`, `FILE_NAME` and ``render(comparison) -> bytes``, as for profiles;
`console.show` prints instead of writing.
"""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from memdiag.records.comparison import Comparison
from memdiag.reporters import write_files
from memdiag.reporters.page import Plotly, beside

_MODULES = {"html": "html", "png": "png", "markdown": "markdown", "json": "json_file"}


def write(
    comparison: Comparison, directory: Path, formats: Sequence[str], *, plotly: Plotly = "inline"
) -> tuple[Path, ...]:
    """Write `comparison` into `directory` in `formats`, and return the files' paths.

    Raises:
        ReportError: a file could not be written; what was there before is left.
    """
    contents = []
    for name in formats:
        module = import_module(f"{__name__}.{_MODULES[name]}")
        options = {"plotly": plotly} if name == "html" else {}
        contents.append((directory / module.FILE_NAME, module.render(comparison, **options)))
    if "html" in formats:
        contents += [(directory / name, content) for name, content in beside(plotly)]
    return write_files(contents)
