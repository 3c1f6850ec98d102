"""The graph is optimized to the level basic only."""

from memdiag.remedies.option import Option

OPTION = Option(
    name="optimization-basic",
    does="Graph optimization stops at basic: folding, dropping and simple fusions.",
    hurts="Fused and blocked kernels are missed: usually slower.",
    session={"graph_optimization_level": "basic"},
    excludes=("disable-nchwc", "optimization-extended", "optimization-off"),
)
