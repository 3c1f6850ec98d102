"""Tools that write another form of a model, one a file.

A module here with `NAMES`, `PACKAGES` and `optimize` is an optimizer, found by being here. It is
run by its path, under an interpreter that need not have memdiag: it imports nothing but the
standard library, and inside of `optimize` its own packages.

``optimize(name, source, target, large)`` reads the model at `source` and writes another one to
`target`, with its weights in a file beside it where `large` says that one file cannot hold them.
It returns None, or says in a few words why it wrote nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from memdiag.errors import UsageError

ALL = "all"
ORIGINAL = "original"


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """One optimizer: what it is called, the file that runs it, the packages that it needs (the
    first one is its own), and the place in which it is shown."""

    name: str
    path: Path
    packages: tuple[str, ...]
    place: int


@cache
def adapters() -> tuple[Adapter, ...]:
    """Return all optimizers: the runtime's own first, memdiag's fix last."""
    found = []
    for one in iter_modules(__path__):
        module = import_module(f"{__name__}.{one.name}")
        path = Path(str(module.__file__))
        found += [
            Adapter(name=name, path=path, packages=module.PACKAGES, place=module.PLACE)
            for name in module.NAMES
        ]
    return tuple(sorted(found, key=lambda one: one.place))


def chosen(names: Sequence[str]) -> tuple[Adapter, ...]:
    """Return the optimizers called `names`, in that order; `ALL` means every one.

    Raises:
        UsageError: there is no such optimizer; the message lists what there is.
    """
    known = {one.name: one for one in adapters()}
    wanted = dict.fromkeys(
        each for name in names for each in (known if name == ALL else [name]) if each != ORIGINAL
    )
    for name in wanted:
        if name not in known:
            raise UsageError(f"unknown optimizer {name!r}. Choose from {', '.join(known)}.")
    return tuple(known[name] for name in wanted)
