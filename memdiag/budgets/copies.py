"""The live copies of weights: the largest, and those that are new since a baseline."""

from collections.abc import Sequence

from memdiag.budgets.figures import is_held
from memdiag.records.attribution import Attribution, Copy, CopyKind
from memdiag.records.baseline import HeldCopy

MOST_KEPT = 20
"""A baseline keeps so many rows, the largest; of smaller copies nobody knows which are new."""


def held(attribution: Attribution) -> tuple[HeldCopy, ...]:
    """Return the live copies by weight and kind, the largest first; equal weights are one."""
    groups: dict[tuple[str, CopyKind], list[Copy]] = {}
    for copy in filter(is_held, attribution.copies):
        groups.setdefault((min(copy.weights, default=""), copy.kind), []).append(copy)
    rows = (
        HeldCopy(
            weight=weight,
            kind=kind,
            count=len(copies),
            bytes=sum(copy.bytes for copy in copies),
            made_by=next((copy.made_by for copy in copies if copy.made_by), None),
        )
        for (weight, kind), copies in groups.items()
    )
    return tuple(sorted(rows, key=lambda row: (-row.bytes, row.weight, row.kind)))


def most_held(rows: Sequence[HeldCopy]) -> tuple[HeldCopy, ...]:
    """Return the rows of the weight that has the most bytes in several copies; none without one."""
    weights: dict[str, list[HeldCopy]] = {}
    for row in rows:
        weights.setdefault(row.weight, []).append(row)
    several = [group for group in weights.values() if sum(row.count for row in group) > 1]
    return tuple(max(several, key=lambda group: sum(row.bytes for row in group), default=()))


def new_since(before: Sequence[HeldCopy], now: Sequence[HeldCopy]) -> tuple[HeldCopy, ...]:
    """Return the rows of `now` that `before`, what a baseline kept, has not or has fewer of."""
    counts = {(row.weight, row.kind): row.count for row in before}
    least = min(row.bytes for row in before) if len(before) >= MOST_KEPT else 0
    return tuple(
        row
        for row in now
        if row.bytes > least and row.count > counts.get((row.weight, row.kind), 0)
    )
