"""The project's own settings: ``[tool.memdiag]`` of the nearest ``pyproject.toml``."""

import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from memdiag.budgets.parsing import merged, parse_budget
from memdiag.errors import UsageError
from memdiag.records.budget import Budget
from memdiag.units import parse_size

_FILE = "pyproject.toml"


class Configuration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """What ``[tool.memdiag]`` says; the fields are those of `memdiag check`'s options.

    `min_bytes` is a number of bytes or a text such as ``"1 MiB"``. `dim` are sizes of free
    dimensions by name. `budgets` are limits of figures by pattern of the model's path, as
    ``[tool.memdiag.budgets."models/*.onnx"]``.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    min_bytes: int | str | None = None
    for_onnxruntime: str | None = None
    dim: dict[str, int] = {}
    budgets: dict[str, dict[str, Any]] = {}

    @property
    def least_bytes(self) -> int | None:
        """The bytes that `min_bytes` means; None where it is not set.

        Raises:
            UsageError: the text is no size.
        """
        return parse_size(self.min_bytes) if isinstance(self.min_bytes, str) else self.min_bytes

    def budget_for(self, model: str) -> Budget:
        """Return the budget of the model at path `model`, as patterns see it; empty where none is.

        Where several patterns match, what a later one says comes before what an earlier one says;
        ``*`` stands for any signs, folders too.

        Raises:
            UsageError: a budget means nothing.
        """
        found = Budget()
        for pattern, values in self.budgets.items():
            budget = parse_budget(values, where=f'budgets."{pattern}"')
            if fnmatchcase(model, pattern):
                found = merged(found, budget)
        return found


def read_configuration(start: Path | None = None) -> Configuration:
    """Return the settings for the folder `start` (the current one where None).

    They are those of the nearest ``pyproject.toml`` in that folder or above it that has a table
    ``[tool.memdiag]``; without one, nothing is set.

    Raises:
        UsageError: the file is no TOML, or the table has a key or a value that means nothing.
    """
    folder = (start or Path()).absolute()
    for path in (each / _FILE for each in (folder, *folder.parents)):
        table = _table(path)
        if table is not None:
            try:
                configuration = msgspec.convert(table, Configuration)
                _ = configuration.least_bytes
                configuration.budget_for("")
            except (msgspec.ValidationError, UsageError) as error:
                raise UsageError(f"{path}: in [tool.memdiag]: {error}") from error
            return configuration
    return Configuration()


def _table(path: Path) -> dict[str, Any] | None:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: not valid TOML ({error}). Correct the file.") from error
    tools = content.get("tool")
    table = tools.get("memdiag") if isinstance(tools, dict) else None
    if table is not None and not isinstance(table, dict):
        raise UsageError(f"{path}: tool.memdiag is not a table. Write it as [tool.memdiag].")
    return table
