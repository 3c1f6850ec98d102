"""Options of the session and its environment, one a file.

A module here that has an `OPTION` is found by being here.
"""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from memdiag.remedies.option import Option


@cache
def options() -> tuple[Option, ...]:
    """Return all options, by name."""
    found = []
    for one in iter_modules(__path__):
        module = import_module(f"{__name__}.{one.name}")
        if hasattr(module, "OPTION"):
            found.append(module.OPTION)
    return tuple(sorted(found, key=lambda option: option.name))
