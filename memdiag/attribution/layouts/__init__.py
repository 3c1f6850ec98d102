"""Memory layouts of weights, one per file; `layouts` collects every module's ``LAYOUT``."""

import pkgutil
from functools import cache
from importlib import import_module

from memdiag.attribution.layouts.layout import Layout, NBits, Quantization, Uses
from memdiag.attribution.layouts.virtual_copy import ExpectedRuns, VirtualCopy

__all__ = ["ExpectedRuns", "Layout", "NBits", "Quantization", "Uses", "VirtualCopy", "layouts"]


@cache
def layouts() -> tuple[Layout, ...]:
    """Return every layout of this package: ``original`` first, then the others by name."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = [import_module(f"{__name__}.{name}") for name in names]
    known: list[Layout] = [module.LAYOUT for module in modules if hasattr(module, "LAYOUT")]
    return tuple(sorted(known, key=lambda layout: (layout.kind != "original", layout.name)))
