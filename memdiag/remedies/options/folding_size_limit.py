"""Only small constants are folded."""

from memdiag.remedies.option import Option

OPTION = Option(
    name="folding-size-limit",
    does="Constants above 1 MiB are not folded.",
    hurts="What is not folded is computed in every run.",
    session={"optimization.constant_folding_max_output_size_in_bytes": str(1 << 20)},
    excludes=("disable-constant-folding", "optimization-off"),
    applies=lambda runtime: runtime >= (1, 27),
)
