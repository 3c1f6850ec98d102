"""Weights are not packed for the kernels: no packed copies, slower products."""

from memdiag.remedies.option import Option

OPTION = Option(
    name="disable-prepacking",
    does="Weights stay as they are: no packed copies, and external ones stay mapped.",
    hurts="Matrix products pack their operand in every run: slower, most of all with few rows.",
    session={"session.disable_prepacking": "1"},
    excludes=("save-prepacked", "share-weights"),
)
