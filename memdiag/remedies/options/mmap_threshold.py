"""glibc maps blocks of 128 KiB and more, and so gives them back when they are freed."""

import sys

from memdiag.remedies.option import Option

OPTION = Option(
    name="mmap-threshold",
    does="malloc maps blocks of 128 KiB and more, and gives them back as soon as they are freed.",
    hurts=(
        "Each such block costs a system call and fresh pages, in the rest of the program too."
        " Three models that use the arena lost no CPU time (0.94 to 1.02 times); with arena-off and"
        " sizes in turn a text detector took 1.4 times the CPU time."
    ),
    environment={"MALLOC_MMAP_THRESHOLD_": str(128 << 10)},
    excludes=("jemalloc", "mimalloc"),
    applies=lambda runtime: sys.platform == "linux",
)
