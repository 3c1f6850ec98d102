"""Rewrites of the graph that reduce memory. Each module of `memdiag.rewrites.catalog` is a rewrite.

Nothing else registers it. The module has a `REWRITE` and the functions `check` and `apply`. The
other modules of this package are shared by rewrites.
"""

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

# quick_import comes before every other import of onnx_ir.
from memdiag.rewrites import catalog, quick_import  # noqa: F401
from memdiag.rewrites.rewrite import Rewriter


@cache
def rewriters() -> tuple[Rewriter, ...]:
    """Return all rewriters, by name."""
    names = [entry.name for entry in iter_modules(catalog.__path__)]
    modules = [import_module(f"{catalog.__name__}.{name}") for name in names]
    unsorted = [Rewriter(module.REWRITE, module.check, module.apply) for module in modules]
    return tuple(sorted(unsorted, key=lambda rewriter: rewriter.rewrite.name))


def rewriters_among(remedies: Iterable[str]) -> tuple[Rewriter, ...]:
    """Return the rewriters among the `remedies` of a finding, in their order."""
    rewriter_by_name = {rewriter.rewrite.name: rewriter for rewriter in rewriters()}
    return tuple(rewriter_by_name[name] for name in remedies if name in rewriter_by_name)
