"""Copies of weights that were added or removed from one column to another."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from memdiag.records.attribution import Attribution, Copy, CopyKind
from memdiag.records.comparison import CopyChange
from memdiag.records.phases import PhaseName
from memdiag.units import counted

_PHASES_BY_STEP: dict[str, PhaseName] = {
    "parse": "parse",
    "loading from bytes": "parse",
    "ConstantFolding": "constant_fold",
    "prepack": "prepack",
    "kernel": "first_run",
}
MAX_COPIED_WEIGHTS = 20


@dataclass(frozen=True, kw_only=True)
class _CopyGroup:
    """The copies of one kind, anonymous or mapped, that equal weights have in one column.

    Attributes:
        weights: the qualified names of the weights.
        kind, made_by: the kind and the maker of the copies.
        count, bytes: the number of copies, and their size together.
        file: the file that they are mapped from; empty for anonymous memory.
    """

    weights: tuple[str, ...]
    kind: CopyKind
    count: int
    bytes: int
    made_by: str | None
    equal_to: str = ""
    file: str = ""


_CopyGroupKey = tuple[tuple[str, ...], CopyKind, bool]
"""Weights, kind, and whether the copies are mapped from a file."""


def copy_changes(
    before: Attribution, after: Attribution, *, labels: tuple[str, str], min_bytes: int
) -> tuple[CopyChange, ...]:
    """Return the added and removed copies in groups of at least `min_bytes`, the largest first.

    Copies of one kind from the same step are one group. Freed copies count as removed. A copy of a
    renamed weight is the same copy: optimizers rename weights.
    """
    added, removed, resized = _different_groups(
        _copy_groups(before.copies), _copy_groups(after.copies)
    )
    changes = [
        *_grouped_changes(added, labels, sign=1),
        *_grouped_changes(removed, labels, sign=-1),
        *_grouped_changes([group for group in resized if group.bytes > 0], labels, sign=0),
        *_grouped_changes([group for group in resized if group.bytes < 0], labels, sign=0),
    ]
    large_changes = [change for change in changes if abs(change.bytes) >= max(1, min_bytes)]
    return tuple(sorted(large_changes, key=lambda change: (-abs(change.bytes), change.weights)))


def phase_of_copy_change(change: CopyChange) -> PhaseName | None:
    """Return the phase in which the copies are made; None if it is not known.

    Pages of a mapped file become resident at their first use, which may be in any phase.
    """
    if change.made_by is None or change.file:
        return None
    return _PHASES_BY_STEP.get(_making_step(change.made_by), "optimize")


def copy_change_text(change: CopyChange) -> str:
    """Return the change as a clause about one column: ``b.onnx has a packed copy of w``.

    The clause names the column that has the copies.
    """
    step, _, node = (change.made_by or "").partition(" · ")
    weight = change.weights[0]
    if not change.count:
        other_count = len(change.weights) - 1
        more_text = f" (and of {counted(other_count, 'more weight')})" if other_count else ""
        size = "larger" if change.bytes > 0 else "smaller"
        return f"the {change.kind} copy of {weight}{more_text} is {size} in {change.to}"
    is_added = change.count > 0
    column = change.to if is_added else change.from_
    other_count = abs(change.count) - 1
    more_text = (
        f" (and {counted(other_count, 'more such copy', 'more such copies')})"
        if other_count
        else ""
    )
    if change.equal_to:
        more_text = f", which is equal to {change.equal_to}{more_text}"
    if change.file:
        return f"{column} maps {weight} from {change.file}{more_text}"
    if step == "prepack" and node:
        return f"{node} packs {weight} in {column}{more_text}"
    if change.kind == "original":
        return f"{column} keeps {weight} as it is{more_text}"
    if change.kind == "fused":
        return f"{column} keeps results computed from {weight}{more_text}"
    maker = f", made by {change.made_by}" if change.made_by else ""
    return f"{column} has a {change.kind} copy of {weight}{maker}{more_text}"


def _copy_groups(copies: Iterable[Copy]) -> dict[_CopyGroupKey, _CopyGroup]:
    groups: dict[_CopyGroupKey, list[Copy]] = defaultdict(list)
    for copy in copies:
        if copy.in_use is not False:
            groups[copy.weights, copy.kind, copy.backing.kind == "file"].append(copy)
    return {
        key: _CopyGroup(
            weights=key[0],
            kind=key[1],
            count=len(group),
            bytes=sum(copy.resident_bytes for copy in group),
            made_by=next((copy.made_by for copy in group if copy.made_by), None),
            file=group[0].backing.file or "",
        )
        for key, group in groups.items()
    }


def _different_groups(
    before: dict[_CopyGroupKey, _CopyGroup], after: dict[_CopyGroupKey, _CopyGroup]
) -> tuple[list[_CopyGroup], list[_CopyGroup], list[_CopyGroup]]:
    """Return copies that only `after` has, copies that only `before` has, and resized copies.

    Copies of renamed weights are left out. If equal content has further names on one side, only
    the copies under these names are different.
    """
    resized: list[_CopyGroup] = []
    added: list[_CopyGroup] = []
    removed: list[_CopyGroup] = []
    for key in dict.fromkeys((*before, *after)):
        difference = _group_difference(after.get(key), before.get(key))
        if difference is not None and not difference.count:
            resized.append(difference)
        elif difference is not None:
            (added if difference.count > 0 else removed).append(difference)
    renamed: dict[tuple[CopyKind, bool, int, int], list[_CopyGroup]] = defaultdict(list)
    for group in removed:
        renamed[group.kind, bool(group.file), group.count, group.bytes].append(group)
    new_groups = []
    for group in added:
        same_copies = renamed[group.kind, bool(group.file), -group.count, -group.bytes]
        if same_copies:
            removed.remove(same_copies.pop())
        else:
            new_groups.append(group)
    return (*_further_named_groups(new_groups, removed), resized)


def _further_named_groups(
    added: Sequence[_CopyGroup], removed: Sequence[_CopyGroup]
) -> tuple[list[_CopyGroup], list[_CopyGroup]]:
    """Return `added` and `removed` copies, less the copies of equal content under fewer names."""
    groups_by_sign = {1: list(added), -1: list(removed)}
    for sign, groups in ((1, added), (-1, removed)):
        for group in groups:
            fewer_named = next(
                (
                    other
                    for other in groups_by_sign[-sign]
                    if (other.kind, bool(other.file)) == (group.kind, bool(group.file))
                    and set(other.weights) < set(group.weights)
                ),
                None,
            )
            if fewer_named is None or sign * (group.count + fewer_named.count) <= 0:
                continue
            groups_by_sign[-sign].remove(fewer_named)
            groups_by_sign[sign].remove(group)
            further_named = replace(
                group,
                weights=tuple(name for name in group.weights if name not in fewer_named.weights),
                count=group.count + fewer_named.count,
                bytes=group.bytes + fewer_named.bytes,
                equal_to=fewer_named.weights[0],
            )
            groups_by_sign[sign].append(further_named)
    return groups_by_sign[1], groups_by_sign[-1]


def _group_difference(after: _CopyGroup | None, before: _CopyGroup | None) -> _CopyGroup | None:
    """Return the difference of `after` from `before` in copies and bytes; None if there is none."""
    any_group = after or before
    assert any_group is not None
    count = (after.count if after else 0) - (before.count if before else 0)
    size = (after.bytes if after else 0) - (before.bytes if before else 0)
    if not count and not size:
        return None
    described_group = after if after and count >= 0 else before or any_group
    return replace(described_group, count=count, bytes=size)


def _grouped_changes(
    copies: Sequence[_CopyGroup], labels: tuple[str, str], *, sign: int
) -> list[CopyChange]:
    groups: dict[tuple[CopyKind, str, str, str], list[_CopyGroup]] = defaultdict(list)
    for copy in copies:
        groups[copy.kind, _making_step(copy.made_by or ""), copy.equal_to, copy.file].append(copy)
    changes = []
    for (kind, _, equal_to, file), group in groups.items():
        group.sort(key=lambda copy: (-abs(copy.bytes), copy.weights))
        names = dict.fromkeys(name for copy in group for name in copy.weights)
        changes.append(
            CopyChange(
                from_=labels[0],
                to=labels[1],
                kind=kind,
                weights=tuple(names)[:MAX_COPIED_WEIGHTS],
                count=sign * sum(abs(copy.count) for copy in group),
                bytes=sum(copy.bytes for copy in group),
                made_by=group[0].made_by,
                equal_to=equal_to,
                file=file,
            )
        )
    return changes


def _making_step(made_by: str) -> str:
    return made_by.partition(" · ")[0]
