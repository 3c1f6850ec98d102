"""All threads share one malloc arena."""

import sys

from memdiag.remedies.option import Option

OPTION = Option(
    name="malloc-arenas",
    does="All threads share one arena of malloc instead of keeping freed memory in many.",
    hurts="Threads wait for each other when they allocate.",
    environment={"MALLOC_ARENA_MAX": "1"},
    excludes=("jemalloc", "mimalloc"),
    applies=lambda runtime: sys.platform == "linux",
)
