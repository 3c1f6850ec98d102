"""A test for each model that ``--memdiag-models`` names."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from pathlib import Path

import pytest

from memdiag.pytest_plugin import MARK
from memdiag.pytest_plugin.settings import SETTINGS


class ModelFile(pytest.File):
    """A model, as pytest's tree of tests sees it: it holds one test."""

    def collect(self) -> Iterator[pytest.Item]:
        """Yield the one test."""
        item: ModelItem = ModelItem.from_parent(self, name=MARK)
        item.add_marker(getattr(pytest.mark, MARK)(self.path))
        yield item


class ModelItem(pytest.Item):
    """Holds a model to its budget and baseline, like any test that has the marker for it."""

    def runtest(self) -> None:
        """Do nothing more: the marker's model was measured and judged before."""

    def reportinfo(self) -> tuple[Path, None, str]:
        """Return where it comes from, for headings."""
        return self.path, None, f"{MARK} of {self.path.name}"


def model_items(session: pytest.Session) -> Iterator[pytest.Item]:
    """Yield a test for each model that a pattern matches, in the order of their paths.

    Raises:
        pytest.UsageError: a pattern matches nothing.
    """
    settings = session.config.stash[SETTINGS]
    found: set[Path] = set()
    for pattern in settings.models:
        names = glob.glob(pattern, root_dir=settings.root, recursive=True)
        if not names:
            raise pytest.UsageError(
                f"--memdiag-models: no file matches {pattern!r} in {settings.root}"
            )
        found.update(settings.root / name for name in names)
    for path in sorted(found):
        file: ModelFile = ModelFile.from_parent(session, path=path)
        yield from file.collect()
