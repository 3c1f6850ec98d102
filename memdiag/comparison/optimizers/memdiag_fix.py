"""memdiag's own fix: remedies for what is wasted, each verified and measured before it is kept."""

from importlib import import_module

NAMES = ("memdiag-fix",)
PACKAGES = ("memdiag",)
PLACE = 5


def optimize(name: str, source: str, target: str, large: bool) -> str | None:
    """Fix with its defaults; say so where nothing was worth changing, and nothing is written."""
    # By its name, like the packages of others: this room does not lean on those above it.
    fixed = import_module("memdiag").fix(source, target)
    return None if fixed.output else "nothing was worth changing"
