"""Where environments are kept from one comparison to the next."""

import os
import sys
from pathlib import Path

VARIABLE = "MEMDIAG_CACHE"


def cache_folder() -> Path:
    """Return the folder of memdiag's own cache: `VARIABLE` names it, or it is the user's."""
    named = os.environ.get(VARIABLE)
    return Path(named).absolute() if named else _users() / "memdiag"


def _users() -> Path:
    """Return the folder where the system wants a user's caches."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
