"""The graph is run as it is."""

from memdiag.remedies.option import Option

OPTION = Option(
    name="optimization-off",
    does="The graph is not optimized at all: nothing is folded, fused or reordered.",
    hurts="Usually much slower.",
    session={"graph_optimization_level": "disable_all"},
    excludes=(
        "disable-constant-folding",
        "disable-nchwc",
        "folding-size-limit",
        "optimization-basic",
        "optimization-extended",
    ),
)
