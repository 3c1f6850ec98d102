"""Free dimensions of a model's inputs, and the sizes that it was run with."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from memdiag.records.base import Record
from memdiag.units import some_of

MAX_DIMENSIONS_IN_TEXT = 4
"""A sentence names at most this many dimensions."""

_NUMBERED_NAME = re.compile(
    r"s\d+|unk__\d+|.*[^\w-]\d+|\w*?dim(ension)?[_.]*\d+", re.ASCII | re.IGNORECASE
)
"""Names made by exporters, or of inputs without names: they do not say what the dimension is."""


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


def typed_names(dimensions: Sequence[Dimension]) -> dict[str, str]:
    """Return what ``--dim`` takes for each dimension and says most, by its name.

    That is its name; its role, such as ``batch``, where the name is a number and no other dimension
    has this role or name.
    """
    taken = Counter(each.role for each in dimensions) + Counter(each.name for each in dimensions)
    return {
        each.name: each.role
        if _NUMBERED_NAME.fullmatch(each.name)
        and each.role not in ("sum", "size")
        and taken[each.role] == 1
        else each.name
        for each in dimensions
    }


def dimensions_text(dimensions: Sequence[Dimension]) -> str:
    """Return the sizes of `dimensions` as text: ``batch 1 × sequence 128``.

    Dimensions are called as by `typed_names`, batches first. Sums of others are left out.
    """
    listed = [each for each in dimensions if each.role != "sum"] or dimensions
    in_order = sorted(listed, key=lambda each: each.role != "batch")
    names = typed_names(dimensions)
    return some_of(
        [f"{names[each.name]} {each.size}" for each in in_order], MAX_DIMENSIONS_IN_TEXT, " × "
    )
