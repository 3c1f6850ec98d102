"""The sizes of free dimensions that a model was run with, for the first line of every report."""

from collections.abc import Sequence

from memdiag.records.dimension import Dimension, in_words
from memdiag.reporters.views.text import plain


def at_sizes(dimensions: Sequence[Dimension]) -> str:
    """Return the sizes and the flag to change them: ``at batch 1 × sequence 128 (--dim …)``.

    Empty where all sizes are fixed. The flag is left out where the user gave all of them.
    """
    if not dimensions:
        return ""
    words = f"at {plain(in_words(dimensions))}"
    chosen = [one for one in dimensions if one.source == "chosen" and one.role != "sum"]
    if not chosen:
        return words
    main = next((one for one in chosen if one.role != "batch"), chosen[0])
    return f"{words} (--dim {plain(main.name)}=N)"
