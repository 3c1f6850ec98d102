"""Profiles for tests: isolated children measure them, one at a time; equal options share them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import memdiag
from memdiag.api.budget import with_pinned_malloc
from memdiag.api.measurement_lock import measurement_lock
from memdiag.defaults import XrayTime
from memdiag.errors import MeasurementError, UsageError
from memdiag.pytest_plugin import BUDGET_MARKER
from memdiag.pytest_plugin.settings import SETTINGS_STASH_KEY
from memdiag.records.profile import Profile
from memdiag.reports.profile.headline import profile_headline

_CACHED_PROFILES = pytest.StashKey[dict[object, list[Profile]]]()


def isolated_profile(
    config: pytest.Config,
    model: Path,
    options: Mapping[str, Any],
    *,
    pinned: bool = True,
    xray: XrayTime = "steady",
) -> Profile:
    """Return the profile of `model` with the settings of the plugin.

    Args:
        config: pytest's configuration.
        model: the model, relative to the rootdir.
        options: the options of `memdiag.profile`.
        pinned: make malloc release freed memory, so that figures are reproducible.
        xray: as in `memdiag.profile`.

    Raises:
        MemdiagError: as `memdiag.profile`.
    """
    settings = config.stash[SETTINGS_STASH_KEY]
    arguments = {"python": settings.python, **options}
    if pinned:
        arguments["environment"] = with_pinned_malloc(arguments.get("environment") or {})
    with nullcontext() if settings.parallel else measurement_lock():
        try:
            return memdiag.profile(path_from_here(config, model), xray=xray, **arguments)
        except KeyboardInterrupt:
            # pytest prints the name of the exception.
            raise KeyboardInterrupt from None


class CachedProfileRunner:
    """Profiles one model with one set of options; tests with equal options share the profiles.

    A model whose file has changed is profiled again.
    """

    def __init__(
        self, config: pytest.Config, model: Path, options: Mapping[str, Any], *, pinned: bool
    ) -> None:
        self._arguments = (config, model, options)
        self._pinned = pinned
        self._used = 0
        profiles_by_key = config.stash.setdefault(_CACHED_PROFILES, {})
        self._profiles = profiles_by_key.setdefault(self._cache_key(), [])

    def __call__(self, with_xray: bool) -> Profile:
        """Return the next profile, measured now or for an earlier test."""
        if self._used == len(self._profiles):
            xray: XrayTime = "steady" if with_xray else "none"
            self._profiles.append(
                isolated_profile(*self._arguments, pinned=self._pinned, xray=xray)
            )
        self._used += 1
        return self._profiles[self._used - 1]

    def _cache_key(self) -> object:
        config, model, options = self._arguments
        if options.get("inputs"):
            return object()  # arrays cannot be compared by a key
        path = config.stash[SETTINGS_STASH_KEY].root / model
        stat = path.stat() if path.exists() else None
        file_version = (stat.st_mtime_ns, stat.st_size) if stat else None
        values = sorted((name, repr(value)) for name, value in options.items())
        return (path, file_version, tuple(values), self._pinned)


def marked_model(mark: pytest.Mark) -> Path:
    """Return the path of the model of a marker.

    Raises:
        UsageError: the marker has no path, or more than one argument without a name.
    """
    if len(mark.args) != 1 or not isinstance(mark.args[0], str | Path):
        raise UsageError(
            f'{BUDGET_MARKER} needs the path of one model, as {BUDGET_MARKER}("model.onnx", …).'
        )
    return Path(mark.args[0])


def path_from_here(config: pytest.Config, model: Path) -> Path:
    """Return `model`, a path relative to the rootdir, relative to the current folder."""
    path = config.stash[SETTINGS_STASH_KEY].root / model
    current_folder = Path.cwd()
    return path.relative_to(current_folder) if path.is_relative_to(current_folder) else path


def outcome_sentence(profile: Profile) -> str:
    """Return a sentence on how an incomplete profile ended."""
    return f"{profile.model.path}: {profile_headline(profile).first}"


def require_completed_profile(profile: Profile) -> Profile:
    """Return `profile` if it completed.

    Raises:
        MeasurementError: it did not complete.
    """
    if not profile.outcome.completed:
        raise MeasurementError(outcome_sentence(profile))
    return profile
