"""Weights with the same content, found without reading what cannot be equal.

Weights of one size are told apart by a few blocks each. Those that still agree are read once, side
by side and slice by slice: each slice is hashed, those with one hash are compared byte for byte
while they are in the cache, and a weight that is alone is not read on. What is not read at all:
bytes that two weights share in a file, and holes of sparse files, which are zeros.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from memdiag.errors import ModelError
from memdiag.graph.holes import ModelHoles
from memdiag.graph.reader import ModelFile
from memdiag.records.weights import Weight

Octets = NDArray[np.uint8]
Groups = tuple[tuple[Weight, ...], ...]

_WHOLE = 512
"""Weights of at most so many bytes are their own probe."""

_PROBES = 8
_PROBE_BYTES = 64
_SLICE = 1 << 20
_RELEASE = 32 << 20
FAULT = 2 << 20
"""What the system may map around a page that is touched: a whole huge page of the cache."""

_MOST_DECODED = 32 << 20
_ZEROS: Octets = np.zeros(_SLICE, np.uint8)


def same_content(model: ModelFile) -> Groups:
    """Return groups of two weights or more that hold the same bytes, compared byte for byte.

    The groups come in the order of their first weights, each in the order of the model. Their
    weights have one size, not necessarily one type or shape. Weights without bytes and strings are
    in none, nor are those above `_MOST_DECODED` bytes that no file has as they are (sparse ones,
    numbers in unpacked fields). A model whose weights overlap so much that comparing them would
    take far more than its files have bytes is compared only so far.
    """
    contents = _Contents(model)
    sizes: dict[int, list[Weight]] = defaultdict(list)
    for weight in model.weights:
        if weight.nbytes and weight.dtype != "string":
            sizes[weight.nbytes].append(weight)
    found = [
        group
        for weights in sizes.values()
        if len(weights) > 1
        for group in _same_of_one_size(contents, weights)
    ]
    model.release()
    order = {weight: place for place, weight in enumerate(model.weights)}
    return tuple(
        sorted(
            (tuple(sorted(group, key=order.__getitem__)) for group in found),
            key=lambda group: order[group[0]],
        )
    )


class Budget:
    """Lets go of the model's pages whenever much of it has been touched."""

    def __init__(self, model: ModelFile) -> None:
        self._model = model
        self._touched = 0

    def touch(self, nbytes: int) -> None:
        """Count `nbytes` that were or will be mapped, after letting go of earlier ones."""
        self._touched += nbytes
        if self._touched > _RELEASE:
            self._model.release()
            self._touched = nbytes


class _Contents:
    """Access to the bytes of weights, their ranges in files, and the holes of these."""

    def __init__(self, model: ModelFile) -> None:
        self.model = model
        self.budget = Budget(model)
        # Weights that do not overlap need less than this.
        self.left = 2 * (model.file_bytes + model.external_bytes) + _RELEASE
        self.holes = ModelHoles(model)

    def octets(self, weight: Weight) -> Octets | None:
        """Return the bytes of a weight; None where they should not or cannot be had."""
        if weight.file is None and weight.nbytes > _MOST_DECODED:
            return None
        try:
            octets = np.frombuffer(self.model.raw_bytes(weight), np.uint8)
        except ModelError:
            return None
        return octets if len(octets) == weight.nbytes else None


class _Member:
    """Weights that are the same bytes of one file, or one weight alone."""

    def __init__(self, weights: list[Weight], octets: Octets, holes: ModelHoles) -> None:
        self.weights = weights
        self.octets = octets
        self._holes = holes

    def hole(self, start: int, end: int) -> bool:
        """Return whether the bytes from `start` to before `end` lie in a hole."""
        return self._holes.cover(self.weights[0], start, end)


def _same_of_one_size(contents: _Contents, weights: list[Weight]) -> Iterator[list[Weight]]:
    groups: dict[bytes, list[_Member]] = defaultdict(list)
    for member in _members(contents, weights):
        groups[_probe(member, contents.budget)].append(member)
    for candidates in groups.values():
        for same in _refined(candidates, contents):
            together = [weight for member in same for weight in member.weights]
            if len(together) > 1:
                yield together


def _members(contents: _Contents, weights: Iterable[Weight]) -> Iterator[_Member]:
    ranges: dict[Any, list[Weight]] = defaultdict(list)
    for weight in weights:
        place = weight if weight.file is None else (weight.file, weight.offset)
        ranges[place].append(weight)
    for shared in ranges.values():
        octets = contents.octets(shared[0])
        if octets is not None:
            yield _Member(shared, octets, contents.holes)


def _probe(member: _Member, budget: Budget) -> bytes:
    """Return blocks spread over the bytes, or all of them where they are few."""
    octets = member.octets
    if len(octets) <= _WHOLE:
        return octets.tobytes()
    if member.hole(0, len(octets)):
        return bytes(_PROBES * _PROBE_BYTES)
    budget.touch(min(_PROBES * FAULT, len(octets) + FAULT))
    last = len(octets) - _PROBE_BYTES
    starts = [last * number // (_PROBES - 1) for number in range(_PROBES)]
    return b"".join(octets[start : start + _PROBE_BYTES].tobytes() for start in starts)


def _refined(candidates: list[_Member], contents: _Contents) -> list[list[_Member]]:
    """Return the members divided by content, each read at most once."""
    size = len(candidates[0].octets)
    groups = [candidates]
    if size <= _WHOLE:
        return groups
    alone: list[list[_Member]] = []
    for start in range(0, size, _SLICE):
        # One that is alone is not read on.
        alone += [group for group in groups if len(group) == 1]
        groups = [group for group in groups if len(group) > 1]
        end = min(start + _SLICE, size)
        contents.left -= (end - start) * sum(map(len, groups))
        if contents.left < 0:
            return alone + [[member] for group in groups for member in group]
        groups = [part for group in groups for part in _divided(group, start, end, contents.budget)]
        if not groups:
            break
    return alone + groups


def _divided(group: list[_Member], start: int, end: int, budget: Budget) -> Iterator[list[_Member]]:
    """Yield the members of `group` divided by their bytes from `start` to before `end`."""
    known: dict[bytes, list[list[_Member]]] = defaultdict(list)
    parts = {}
    # Of two, the comparison alone says it.
    pair = len(group) == 2
    for member in group:
        hole = member.hole(start, end)
        part = parts[member] = _ZEROS[: end - start] if hole else member.octets[start:end]
        if not hole:
            budget.touch(end - start)
        digest = b"" if pair else _zeros_digest(end - start) if hole else _digest(part)
        for same in known[digest]:
            if equal_octets(parts[same[0]], part):
                same.append(member)
                break
        else:
            known[digest].append([member])
    for found in known.values():
        yield from found


def _digest(octets: Octets) -> bytes:
    return xxhash.xxh3_128_digest(octets.data)


@cache
def _zeros_digest(size: int) -> bytes:
    return _digest(_ZEROS[:size])


def equal_octets(one: Octets, other: Octets) -> bool:
    """Return whether two runs of as many bytes are equal, compared by words."""
    if one.__array_interface__["data"] == other.__array_interface__["data"]:
        return True
    words = len(one) // 8 * 8
    return np.array_equal(one[:words].view(np.uint64), other[:words].view(np.uint64)) and (
        np.array_equal(one[words:], other[words:])
    )
