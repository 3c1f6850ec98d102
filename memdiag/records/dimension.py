"""Free dimensions of a model's inputs, and the sizes that it was run with."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

from memdiag.records.base import Record
from memdiag.units import some_of

MAX_IN_WORDS = 4
"""A sentence names at most this many dimensions."""


class Dimension(Record, frozen=True, kw_only=True):
    """The size of one free dimension.

    Attributes:
        name: its name for ``--dim``: its symbol, or ``input:axis``.
        size: the size.
        role: ``batch``, ``sequence``, ``height`` …; ``sum`` of others; ``size`` if it is not known.
        source: ``chosen`` by memdiag, or ``given`` by the user.
        reason: why this size was chosen.
    """

    name: str
    size: int
    role: str
    source: Literal["chosen", "given"]
    reason: str


class ModelInput(Record, frozen=True, kw_only=True):
    """An input of a model.

    Attributes:
        shape: the sizes; free dimensions by their names, ``?`` without a name. None if the rank is
            unknown.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None


def in_words(dimensions: Sequence[Dimension]) -> str:
    """Return the sizes of `dimensions` as text: ``batch 1 × sequence 128``.

    Dimensions of one role and size are named once, batches first. A dimension without a role, or
    with a role of several sizes, is called by its name. Sums of others are left out.
    """
    sizes: defaultdict[str, set[int]] = defaultdict(set)
    for dimension in dimensions:
        sizes[dimension.role].add(dimension.size)
    listed = [each for each in dimensions if each.role != "sum"] or dimensions
    words: dict[str, None] = {}
    for dimension in sorted(listed, key=lambda each: each.role != "batch"):
        is_named = dimension.role == "size" or len(sizes[dimension.role]) > 1
        words[f"{dimension.name if is_named else dimension.role} {dimension.size}"] = None
    return some_of([*words], MAX_IN_WORDS, " × ")
