"""Free dimensions of a model's inputs, and the sizes that it was run with."""

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

    Dimensions are called as after ``--dim``, batches first. Sums of others are left out.
    """
    listed = [each for each in dimensions if each.role != "sum"] or dimensions
    in_order = sorted(listed, key=lambda each: each.role != "batch")
    return some_of([f"{each.name} {each.size}" for each in in_order], MAX_IN_WORDS, " × ")
