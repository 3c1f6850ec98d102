"""The arena gives back what it does not need after every run."""

from memdiag.remedies.option import Option

OPTION = Option(
    name="arena-shrinkage",
    does="The arena gives unused regions back after every run.",
    hurts="The next run asks the system for them again.",
    run={"memory.enable_memory_arena_shrinkage": "cpu:0"},
    excludes=("arena-off",),
)
