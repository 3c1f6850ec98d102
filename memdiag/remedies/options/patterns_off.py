"""Memory patterns are not planned: no block for each combination of input shapes."""

from memdiag.remedies.option import Option

OPTION = Option(
    name="patterns-off",
    does="No block is planned and kept for each new combination of input shapes.",
    hurts="Tensors of a run are allocated one by one.",
    session={"enable_mem_pattern": "false"},
)
