"""Convolutions keep the usual layout: weights are not reordered into blocks."""

from memdiag.remedies.option import Option

OPTION = Option(
    name="disable-nchwc",
    does="Weights of convolutions are not reordered into blocks of channels.",
    hurts="Convolutions are slower.",
    disabled=("NchwcTransformer",),
    excludes=("optimization-basic", "optimization-extended", "optimization-off"),
)
