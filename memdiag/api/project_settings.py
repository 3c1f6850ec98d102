"""The settings of a project: ``[tool.memdiag]`` in the nearest ``pyproject.toml``."""

import tomllib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from memdiag.api.check import RuleSelection
from memdiag.budgets.parsing import merged_budgets, parse_budget
from memdiag.defaults import DEFAULT_MIN_BYTES
from memdiag.errors import UsageError
from memdiag.records.budget import Budget
from memdiag.regular_files import read_regular
from memdiag.units import parse_size

_SETTINGS_FILE = "pyproject.toml"


class ProjectSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """The table ``[tool.memdiag]``; most fields are options of `memdiag check`.

    Attributes:
        select: rules to run.
        ignore: rules to skip.
        min_bytes: a number of bytes, or a text such as ``"1 MiB"``.
        for_onnxruntime: the release to predict for.
        dim: sizes of free dimensions by name.
        budgets: limits of figures by pattern of the model's path, as in
            ``[tool.memdiag.budgets."models/*.onnx"]``.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    min_bytes: int | str = DEFAULT_MIN_BYTES
    for_onnxruntime: str | None = None
    dim: dict[str, int] = {}
    budgets: dict[str, dict[str, Any]] = {}

    def selection(self, *, select: Sequence[str] = (), ignore: Sequence[str] = ()) -> RuleSelection:
        """Return the selection of rules; the arguments override the settings.

        Raises:
            UsageError: there is no such rule, or `min_bytes` is not a size.
        """
        return RuleSelection(
            select=select or self.select,
            ignore=ignore or self.ignore,
            min_bytes=self.min_size,
        )

    @property
    def min_size(self) -> int:
        """The number of bytes of `min_bytes`.

        Raises:
            UsageError: the text is not a size.
        """
        return parse_size(self.min_bytes) if isinstance(self.min_bytes, str) else self.min_bytes

    def budget_for(self, model: str) -> Budget:
        """Return the budget of the model at path `model`; empty if no pattern matches.

        If several patterns match, later ones override earlier ones. ``*`` matches any characters,
        folders too.

        Raises:
            UsageError: a budget is not valid.
        """
        budget_of_model = Budget()
        for pattern, values in self.budgets.items():
            budget = parse_budget(values, where=f'budgets."{pattern}"')
            if fnmatchcase(model, pattern):
                budget_of_model = merged_budgets(budget_of_model, budget)
        return budget_of_model


def read_project_settings(start: Path | None = None) -> ProjectSettings:
    """Return the settings for the folder `start`, by default the current one.

    They are in the nearest ``pyproject.toml``, in that folder or above it, that has a table
    ``[tool.memdiag]``. Without such a file there are no settings.

    Raises:
        UsageError: the file is not TOML, or the table has an unknown key or an invalid value.
    """
    folder = (start or Path()).absolute()
    for path in (parent / _SETTINGS_FILE for parent in (folder, *folder.parents)):
        table = _settings_table(path)
        if table is not None:
            try:
                settings = msgspec.convert(table, ProjectSettings)
                _ = settings.min_size
                settings.budget_for("")
            except (msgspec.ValidationError, UsageError) as error:
                raise UsageError(f"{path}: in [tool.memdiag]: {error}") from error
            return settings
    return ProjectSettings()


def _settings_table(path: Path) -> dict[str, Any] | None:
    try:
        content = tomllib.loads(read_regular(path).decode())
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}). Correct the file.") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not valid TOML ({error}). Correct the file.") from error
    tools = content.get("tool")
    table = tools.get("memdiag") if isinstance(tools, dict) else None
    if table is not None and not isinstance(table, dict):
        raise UsageError(f"{path}: tool.memdiag is not a table. Write it as [tool.memdiag].")
    return table
