"""glibc maps blocks of 128 KiB and more, and so gives them back when they are freed."""

import sys

from memdiag.remedies.option import Option

OPTION = Option(
    name="mmap-threshold",
    does="malloc maps blocks of 128 KiB and more, and gives them back as soon as they are freed.",
    hurts=(
        "Each such block costs a system call and fresh pages in every run: where tensors are large"
        " or their sizes change, a program can take several times as long."
    ),
    environment={"MALLOC_MMAP_THRESHOLD_": str(128 << 10)},
    excludes=("jemalloc", "mimalloc"),
    applies=lambda runtime: sys.platform == "linux",
)
