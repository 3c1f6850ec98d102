"""The graph is optimized to the level extended only."""

from memdiag.remedies.option import Option

OPTION = Option(
    name="optimization-extended",
    does="Graph optimization stops at extended: no convolution is blocked.",
    hurts="Fused and blocked kernels are missed: usually slower.",
    session={"graph_optimization_level": "extended"},
    excludes=("disable-nchwc", "optimization-basic", "optimization-off"),
)
