"""The sizes of free dimensions that a model was run with, for the first line of every report."""

import shlex
from collections.abc import Sequence

from memdiag.records.dimension import Dimension, in_words
from memdiag.reports.views.text import plain

MAX_IN_HINT = 3
"""The flag names at most this many dimensions."""

_LAST = ("batch", "channels", "features")
_ORDER = {
    role: place
    for place, role in enumerate(
        ("sequence", "samples", "height", "width", "past", "frames", "size", *_LAST)
    )
}


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
    # A sort keeps the order of the model among equals.
    named = sorted(chosen, key=lambda one: _ORDER.get(one.role, len(_ORDER)))[:MAX_IN_HINT]
    return f"{words} (--dim {','.join(f'{plain(one.name)}=N' for one in named)})"


def dim_option(dimensions: Sequence[Dimension]) -> str:
    """Return the option that repeats the sizes that the user gave: `` --dim batch=4,tokens=512``.

    Empty where none was given.
    """
    given = [f"{plain(one.name)}={one.size}" for one in dimensions if one.source == "given"]
    return f" --dim {shlex.quote(','.join(given))}" if given else ""
