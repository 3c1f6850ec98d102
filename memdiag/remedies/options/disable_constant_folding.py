"""Constants are computed in every run instead of once: no folded copies."""

from memdiag.remedies.option import Option

OPTION = Option(
    name="disable-constant-folding",
    does="Nothing is computed ahead: no folded copies of weights, and no peak of folding.",
    hurts="What would have been folded is computed in every run, and fusions after it are missed.",
    disabled=("ConstantFolding",),
    excludes=("optimization-off", "folding-size-limit"),
)
