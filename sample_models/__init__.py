"""Small models that each show one waste of memory, at any size; a recipe is one file in `recipes`.

A megabyte is a million bytes here, so that 64 of them are 64 MB and not 61 MiB.
"""

import importlib
import pkgutil
from pathlib import Path
from typing import Protocol, cast


class Recipe(Protocol):
    """What a file in `recipes` offers."""

    NAME: str
    """The name on the command line, and the file's."""

    SUMMARY: str
    """One line: what the model is and what it wastes."""

    def build(self, megabytes: float, path: Path, external: bool) -> None:
        """Write the model to `path`, its weights in `path` + ``.data`` where `external`.

        Raises:
            memdiag.errors.UsageError: the size is none, or too large to be embedded.
        """


def load_recipes() -> dict[str, Recipe]:
    """Return every recipe by its name, in alphabetical order."""
    package = importlib.import_module("sample_models.recipes")
    modules = (
        importlib.import_module(f"{package.__name__}.{found.name}")
        for found in pkgutil.iter_modules(package.__path__)
    )
    return {module.NAME: cast(Recipe, module) for module in modules}
