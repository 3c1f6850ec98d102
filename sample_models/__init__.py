"""Sample models of any size that each show one waste of memory; each file in `recipes` builds one.

A megabyte is a million bytes here: 64 of them are 64 MB, or 61 MiB.
"""

import importlib
import pkgutil
from pathlib import Path
from typing import Protocol, cast


class Recipe(Protocol):
    """The interface of a module in `recipes`."""

    NAME: str
    """The name on the command line, and the file's."""

    SUMMARY: str
    """One line: what the model is and what it wastes."""

    def build(self, megabytes: float, path: Path, external: bool) -> None:
        """Write the model to `path`; with `external` its weights to `path` + ``.data``.

        Raises:
            memdiag.errors.UsageError: no model of that size can be built, or it is too large to be
                embedded.
        """


def load_recipes() -> dict[str, Recipe]:
    """Return every recipe by its name, in alphabetical order."""
    package = importlib.import_module("sample_models.recipes")
    modules = (
        importlib.import_module(f"{package.__name__}.{found.name}")
        for found in pkgutil.iter_modules(package.__path__)
    )
    return {module.NAME: cast(Recipe, module) for module in modules}
