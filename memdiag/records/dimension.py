"""Free dimensions of a model's inputs, and the sizes that it was run with."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

from memdiag.records.base import Record

MAX_IN_WORDS = 4
"""A sentence names at most this many dimensions."""


class Dimension(Record, frozen=True, kw_only=True):
    """The size of one free dimension.

    Attributes:
        name: what ``--dim`` calls it: its own name, or ``input:axis``.
        size: the size.
        role: ``batch``, ``sequence``, ``height`` …; ``sum`` of others; ``size`` where not known.
        source: ``chosen`` by memdiag, or ``given`` by the user.
        reason: why this size was chosen.
    """

    name: str
    size: int
    role: str
    source: Literal["chosen", "given"]
    reason: str


def in_words(dimensions: Sequence[Dimension]) -> str:
    """Return the sizes in a few words: ``batch 1 × sequence 128``.

    Dimensions of one role and size are named once, batches first. One without a role, or whose role
    has several sizes, is called by its name. Sums of others are left out.
    """
    sizes: defaultdict[str, set[int]] = defaultdict(set)
    for one in dimensions:
        sizes[one.role].add(one.size)
    shown = [one for one in dimensions if one.role != "sum"] or dimensions
    words = dict.fromkeys(
        f"{one.name if one.role == 'size' or len(sizes[one.role]) > 1 else one.role} {one.size}"
        for one in sorted(shown, key=lambda one: one.role != "batch")
    )
    more = len(words) - MAX_IN_WORDS
    text = " × ".join([*words][:MAX_IN_WORDS])
    return f"{text} and {more} more" if more > 0 else text
