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
    """Return the most telling text that ``--dim`` takes for each dimension, by its name.

    That is its role, such as ``batch``, if its name was made by an exporter and no other dimension
    has this role or name; otherwise its name.
    """
    uses = Counter(dimension.role for dimension in dimensions)
    uses += Counter(dimension.name for dimension in dimensions)
    return {
        dimension.name: dimension.role
        if _NUMBERED_NAME.fullmatch(dimension.name)
        and dimension.role not in ("sum", "size")
        and uses[dimension.role] == 1
        else dimension.name
        for dimension in dimensions
    }


def dimensions_text(dimensions: Sequence[Dimension]) -> str:
    """Return the sizes of `dimensions` as text: ``batch 1 × sequence 128``.

    They have the names of `typed_names`, batches first. Sums of other dimensions are left out.
    """
    listed = [dimension for dimension in dimensions if dimension.role != "sum"] or dimensions
    batches_first = sorted(listed, key=lambda dimension: dimension.role != "batch")
    names = typed_names(dimensions)
    sizes = [f"{names[dimension.name]} {dimension.size}" for dimension in batches_first]
    return some_of(sizes, MAX_DIMENSIONS_IN_TEXT, " × ")
