"""Tensors come from malloc instead of an arena that keeps the largest size it had."""

from memdiag.remedies.option import Option

OPTION = Option(
    name="arena-off",
    does="Tensors are allocated and freed one by one: nothing is kept between runs.",
    hurts="Every run allocates anew; without mmap-threshold malloc may keep more than the arena.",
    session={"enable_cpu_mem_arena": "false"},
    excludes=("arena-shrinkage", "same-as-requested"),
)
