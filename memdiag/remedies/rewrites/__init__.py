"""Rewrites of the graph, one a file.

A module here that has a `REWRITE` and the functions `check` and `apply` is found by being here.
"""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from memdiag.remedies.rewrite import Rewriter


@cache
def rewriters() -> tuple[Rewriter, ...]:
    """Return all rewriters, by name."""
    found = []
    for one in iter_modules(__path__):
        module = import_module(f"{__name__}.{one.name}")
        if hasattr(module, "REWRITE"):
            found.append(Rewriter(module.REWRITE, module.check, module.apply))
    return tuple(sorted(found, key=lambda one: one.rewrite.name))


def rewriters_for(rule: str) -> tuple[Rewriter, ...]:
    """Return the rewriters that answer the rule called `rule`."""
    return tuple(one for one in rewriters() if rule in one.rewrite.rules)
