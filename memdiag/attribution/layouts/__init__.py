"""Memory layouts of weights. Each module of this package is a layout and defines `LAYOUT`."""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from memdiag.attribution.layout import Layout


@cache
def all_layouts() -> tuple[Layout, ...]:
    """Return the layouts of all modules: ``original`` first, then the others by name."""
    modules = [import_module(f"{__name__}.{entry.name}") for entry in iter_modules(__path__)]
    layouts: list[Layout] = [module.LAYOUT for module in modules]
    return tuple(sorted(layouts, key=lambda layout: (layout.kind != "original", layout.name)))
