"""mimalloc instead of malloc, where it is installed."""

from memdiag.remedies.option import Option
from memdiag.remedies.preload import library

_LIBRARY = library("libmimalloc.so.2") or library("libmimalloc.so.2.0")

OPTION = Option(
    name="mimalloc",
    does="Memory comes from mimalloc, which is fast and gives freed pages back.",
    hurts="It must be installed where the model runs; it reserves address space ahead.",
    environment={"LD_PRELOAD": _LIBRARY} if _LIBRARY else {},
    excludes=("jemalloc", "malloc-arenas", "mmap-threshold"),
    applies=lambda runtime: _LIBRARY is not None,
)
