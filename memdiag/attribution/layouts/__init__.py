"""Memory layouts, one a file: a module here that defines ``LAYOUT`` is found by `layouts`."""

import pkgutil
from functools import cache
from importlib import import_module

from memdiag.attribution.layouts.copy import Piece, VirtualCopy
from memdiag.attribution.layouts.layout import Layout
from memdiag.attribution.layouts.uses import NBits, Quantization, Uses

__all__ = ["Layout", "NBits", "Piece", "Quantization", "Uses", "VirtualCopy", "layouts"]


@cache
def layouts() -> tuple[Layout, ...]:
    """Return every layout of this package, the plain one first, the others by name."""
    names = sorted(found.name for found in pkgutil.iter_modules(__path__))
    modules = [import_module(f"{__name__}.{name}") for name in names]
    known: list[Layout] = [module.LAYOUT for module in modules if hasattr(module, "LAYOUT")]
    return tuple(sorted(known, key=lambda layout: (layout.kind != "original", layout.name)))
