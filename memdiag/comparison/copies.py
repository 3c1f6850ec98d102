"""Which copies of weights came or went from one column to another."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from memdiag.records.attribution import Attribution, Copy, CopyKind
from memdiag.records.comparison import CopyChange
from memdiag.records.phases import PhaseName

_MAKERS: dict[str, PhaseName] = {
    "parse": "parse",
    "loading from bytes": "parse",
    "ConstantFolding": "constant_fold",
    "prepack": "prepack",
    "kernel": "first_run",
}
_MOST_WEIGHTS = 20


@dataclass(frozen=True, kw_only=True)
class _Held:
    """The copies of one kind that some weights with equal content have in one column."""

    weights: tuple[str, ...]
    kind: CopyKind
    count: int
    bytes: int
    made_by: str | None


def copy_changes(
    before: Attribution, after: Attribution, *, labels: tuple[str, str], least_bytes: int
) -> tuple[CopyChange, ...]:
    """Return the copies that came or went, the most bytes first; groups below `least_bytes` not.

    Copies of one kind that came by the same step, or went with it, are one group. Freed copies
    count as gone. A copy that has only another weight's name is the same copy: optimizers rename.
    """
    came, went, resized = _without_common(_held(before.copies), _held(after.copies))
    found = [
        *(_grouped(came, labels, sign=1)),
        *(_grouped(went, labels, sign=-1)),
        *(_grouped([one for one in resized if one.bytes > 0], labels, sign=0)),
        *(_grouped([one for one in resized if one.bytes < 0], labels, sign=0)),
    ]
    kept = [one for one in found if abs(one.bytes) >= max(1, least_bytes)]
    return tuple(sorted(kept, key=lambda one: (-abs(one.bytes), one.weights)))


def phase_of(change: CopyChange) -> PhaseName | None:
    """Return the phase in which the copies are made; None where that is not known."""
    if change.made_by is None:
        return None
    return _MAKERS.get(_step(change.made_by), "optimize")


def in_words(change: CopyChange) -> str:
    """Return what happened: ``lm_head/MatMul now packs model.shared.weight``."""
    step, _, node = (change.made_by or "").partition(" · ")
    weight = change.weights[0]
    if not change.count:
        alike = len(change.weights) - 1
        more = f" (and of {alike} more weight{'s' if alike > 1 else ''})" if alike else ""
        size = "larger" if change.bytes > 0 else "smaller"
        return f"the {change.kind} copy of {weight}{more} is {size}"
    came = change.count > 0
    others = abs(change.count) - 1
    more = f" (and {others} more such cop{'y' if others == 1 else 'ies'})" if others else ""
    if step == "prepack" and node:
        return f"{node} {'now packs' if came else 'no longer packs'} {weight}{more}"
    what = {"original": "as it is", "fused": "in what was computed from it"}.get(change.kind)
    if what is not None:
        return f"{weight} is {'now kept' if came else 'no longer kept'} {what}{more}"
    maker = f", made by {change.made_by}" if change.made_by and came else ""
    verb = "now has" if came else "no longer has"
    return f"{weight} {verb} a {change.kind} copy{maker}{more}"


def _held(copies: Iterable[Copy]) -> dict[tuple[tuple[str, ...], CopyKind], _Held]:
    groups: dict[tuple[tuple[str, ...], CopyKind], list[Copy]] = defaultdict(list)
    for copy in copies:
        if copy.live is not False:
            groups[copy.weights, copy.kind].append(copy)
    return {
        key: _Held(
            weights=key[0],
            kind=key[1],
            count=len(group),
            bytes=sum(copy.resident_bytes for copy in group),
            made_by=next((copy.made_by for copy in group if copy.made_by), None),
        )
        for key, group in groups.items()
    }


def _without_common(
    before: dict[tuple[tuple[str, ...], CopyKind], _Held],
    after: dict[tuple[tuple[str, ...], CopyKind], _Held],
) -> tuple[list[_Held], list[_Held], list[_Held]]:
    """Return copies that only `after` has, that only `before` has, and that differ in size.

    Copies that only have another name are left out.
    """
    resized: list[_Held] = []
    came: list[_Held] = []
    went: list[_Held] = []
    for key in dict.fromkeys((*before, *after)):
        difference = _less(after.get(key), before.get(key))
        if difference is not None and not difference.count:
            resized.append(difference)
        elif difference is not None:
            (came if difference.count > 0 else went).append(difference)
    renamed: dict[tuple[CopyKind, int, int], list[_Held]] = defaultdict(list)
    for one in went:
        renamed[one.kind, one.count, one.bytes].append(one)
    left = []
    for one in came:
        same = renamed[one.kind, -one.count, -one.bytes]
        if same:
            went.remove(same.pop())
        else:
            left.append(one)
    return left, went, resized


def _less(after: _Held | None, before: _Held | None) -> _Held | None:
    """Return what `after` has more than `before` (counts and bytes below 0: less)."""
    one = after or before
    assert one is not None
    count = (after.count if after else 0) - (before.count if before else 0)
    size = (after.bytes if after else 0) - (before.bytes if before else 0)
    if not count and not size:
        return None
    made_by = after.made_by if after and count >= 0 else before.made_by if before else None
    return _Held(weights=one.weights, kind=one.kind, count=count, bytes=size, made_by=made_by)


def _grouped(held: Sequence[_Held], labels: tuple[str, str], *, sign: int) -> list[CopyChange]:
    groups: dict[tuple[CopyKind, str], list[_Held]] = defaultdict(list)
    for one in held:
        groups[one.kind, _step(one.made_by or "")].append(one)
    found = []
    for (kind, _), group in groups.items():
        group.sort(key=lambda one: (-abs(one.bytes), one.weights))
        names = dict.fromkeys(name for one in group for name in one.weights)
        found.append(
            CopyChange(
                from_=labels[0],
                to=labels[1],
                kind=kind,
                weights=tuple(names)[:_MOST_WEIGHTS],
                count=sign * sum(abs(one.count) for one in group),
                bytes=sum(one.bytes for one in group),
                made_by=group[0].made_by,
            )
        )
    return found


def _step(made_by: str) -> str:
    return made_by.partition(" · ")[0]
