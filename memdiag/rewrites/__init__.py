"""Rewrites of the graph that reduce memory, one a module.

A module of this package that has a `REWRITE` and the functions `check` and `apply` is a rewrite;
the others are what rewrites share.
"""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from memdiag.rewrites.rewrite import Rewriter


@cache
def rewriters() -> tuple[Rewriter, ...]:
    """Return all rewriters, by name."""
    modules = [import_module(f"{__name__}.{entry.name}") for entry in iter_modules(__path__)]
    found = [
        Rewriter(module.REWRITE, module.check, module.apply)
        for module in modules
        if hasattr(module, "REWRITE")
    ]
    return tuple(sorted(found, key=lambda rewriter: rewriter.rewrite.name))


def rewriters_for(rule: str) -> tuple[Rewriter, ...]:
    """Return the rewriters for findings of the rule called `rule`."""
    return tuple(rewriter for rewriter in rewriters() if rule in rewriter.rewrite.rules)
