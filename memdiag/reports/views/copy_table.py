"""The copies of all weights as columns, for a table that its reader filters and sorts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from memdiag.reports.views.attribution import CopyRow, WeightRow, rest

_FIGURES_BYTES = 60  # of a row's numbers, as they are written

Variant = tuple[str, str, str, str, str]
"""Kind, label, parameters, backing and how much is verified: what many copies have in common."""

Row = tuple[int, int, int, int, str, int, str, str, str]
"""The places of weight and variant, copies, bytes and size, resident bytes and their size, maker,
and addresses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTable:
    """The rows, with weights and variants in tables of their own.

    A weight is its title, its summary, and the other names that it is found by. `unlisted` says
    what else the record has, and is empty where that is nothing.
    """

    weights: tuple[tuple[str, str, str], ...]
    variants: tuple[Variant, ...]
    rows: tuple[Row, ...]
    unlisted: str


def build(weights: Sequence[WeightRow], *, max_bytes: int) -> CopyTable:
    """Return the copies of as many of `weights` as take about `max_bytes`, and at least one's."""
    named: list[tuple[str, str, str]] = []
    variants: dict[Variant, int] = {}
    rows: list[Row] = []
    left = max_bytes
    for weight in weights:
        name = (weight.title, weight.summary, " ".join(weight.names[1:]))
        added = [
            _row(copy, len(named), variants.setdefault(_variant(copy), len(variants)))
            for copy in weight.copies
        ]
        left -= _length(name) + sum(_length(row) + _FIGURES_BYTES for row in added)
        if left < 0 and named:
            break
        named.append(name)
        rows += added
    more = rest(weights[len(named) :])
    return CopyTable(
        weights=tuple(named),
        variants=tuple(variants),
        rows=tuple(rows),
        unlisted=f"{more}, which neither this table nor its filter knows" if more else "",
    )


def _variant(copy: CopyRow) -> Variant:
    return copy.kind, copy.label, copy.parameters, copy.state_and_backing, copy.verified


def _row(copy: CopyRow, weight: int, variant: int) -> Row:
    return (
        weight,
        variant,
        copy.count,
        copy.size_bytes,
        copy.size,
        copy.resident_bytes,
        copy.resident,
        copy.made_by,
        copy.places,
    )


def _length(cells: Iterable[str | int]) -> int:
    return sum(len(cell) for cell in cells if isinstance(cell, str))
