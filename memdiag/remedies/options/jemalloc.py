"""jemalloc instead of malloc, where it is installed."""

from memdiag.remedies.option import Option
from memdiag.remedies.preload import library

_LIBRARY = library("libjemalloc.so.2")

OPTION = Option(
    name="jemalloc",
    does="Memory comes from jemalloc, which gives freed pages back after some seconds.",
    hurts="It must be installed where the model runs; small blocks take more at first.",
    environment={"LD_PRELOAD": _LIBRARY} if _LIBRARY else {},
    excludes=("malloc-arenas", "mimalloc", "mmap-threshold"),
    applies=lambda runtime: _LIBRARY is not None,
)
