"""Profiling for tests: in an isolated child, one at a time, once for the same question."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import pytest

import memdiag
from memdiag.api.budget import pinned as with_pins
from memdiag.api.measurement_lock import measurement_lock
from memdiag.errors import MeasurementError
from memdiag.pytest_plugin.settings import SETTINGS
from memdiag.records.profile import Profile
from memdiag.reports.views import headline

_PROFILES = pytest.StashKey[dict[object, list[Profile]]]()


def profile(
    config: pytest.Config,
    model: Path,
    options: Mapping[str, Any],
    *,
    pinned: bool = True,
    xray: Literal["steady", "phases", "none"] = "steady",
) -> Profile:
    """Return what `memdiag.profile` says of `model`, with the plugin's settings.

    With `pinned` what the C library keeps of freed memory is made to repeat. The model's path is
    from the rootdir.

    Raises:
        MemdiagError: as `memdiag.profile`.
    """
    settings = config.stash[SETTINGS]
    chosen = {"python": settings.python, **options}
    if pinned:
        chosen["environment"] = with_pins(chosen.get("environment") or {})
    with nullcontext() if settings.parallel else measurement_lock():
        return memdiag.profile(shown_path(config, model), xray=xray, **chosen)


class Once:
    """Profiles of one model with the same options, made when first asked for.

    Tests that ask the same get the same profiles; a model that has changed is another.
    """

    def __init__(
        self, config: pytest.Config, model: Path, options: Mapping[str, Any], *, pinned: bool
    ) -> None:
        self._arguments = (config, model, options)
        self._pinned = pinned
        self._taken = 0
        known = config.stash.setdefault(_PROFILES, {})
        self._profiles = known.setdefault(self._key(), [])

    def __call__(self, xray: Literal["steady", "none"]) -> Profile:
        """Return the next profile."""
        if self._taken == len(self._profiles):
            self._profiles.append(profile(*self._arguments, pinned=self._pinned, xray=xray))
        self._taken += 1
        return self._profiles[self._taken - 1]

    def _key(self) -> object:
        config, model, options = self._arguments
        if options.get("inputs"):
            return object()  # arrays cannot be compared by a key
        path = config.stash[SETTINGS].root / model
        stat = path.stat() if path.exists() else None
        changed = (stat.st_mtime_ns, stat.st_size) if stat else None
        words = sorted((name, repr(value)) for name, value in options.items())
        return (path, changed, tuple(words), self._pinned)


def shown_path(config: pytest.Config, model: Path) -> Path:
    """Return the path of `model`, which is from the rootdir, as the working directory sees it."""
    path = config.stash[SETTINGS].root / model
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def how_it_ended(profile: Profile) -> str:
    """Return the flight recorder's words for a profile that did not complete."""
    return f"{profile.model.path}: {headline.build(profile).first}"


def completed(profile: Profile) -> Profile:
    """Return `profile`.

    Raises:
        MeasurementError: it did not complete.
    """
    if profile.outcome.status != "completed":
        raise MeasurementError(how_it_ended(profile))
    return profile
