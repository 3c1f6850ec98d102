"""Cached environments, each with packages of its own, under ``.cache`` or ``MEMDIAG_CACHE``."""

import os
from collections.abc import Sequence
from pathlib import Path

from memdiag.comparison import environments
from memdiag.comparison.environments import CACHE_VARIABLE
from memdiag.errors import ProvisionError as ProvisionError

_DEFAULT_CACHE = Path(__file__).parents[1] / ".cache"


def environment(name: str, packages: Sequence[str]) -> Path:
    """Return the interpreter of the environment `name` with `packages`, made where missing.

    Raises:
        ProvisionError: they cannot be installed.
    """
    cache = Path(os.environ.get(CACHE_VARIABLE) or _DEFAULT_CACHE)
    return environments.provided_interpreter(cache.absolute() / name, packages)
