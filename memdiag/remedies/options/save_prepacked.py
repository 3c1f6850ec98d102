"""The runtime writes its optimized model once, packed weights and all, and that is loaded."""

from memdiag.remedies.option import Option

OPTION = Option(
    name="save-prepacked",
    does="Packed weights are written to a file once, and mapped from it by every session.",
    hurts="The files fit this release of the runtime and this machine's instruction set only.",
    saved={"session.save_external_prepacked_constant_initializers": "1"},
    excludes=("disable-prepacking", "share-weights"),
    applies=lambda runtime: runtime >= (1, 21),
)
