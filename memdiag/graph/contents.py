"""Weights with the same content, found without reading what cannot be equal.

Weights of one size are told apart by a few blocks each. Those that still agree are read once, side
by side and slice by slice: each is compared byte for byte with the first of them, whose slice is in
the cache by then, and a weight that is alone is not read on. Only those that differ from the first
are hashed, to find out which of them are equal. What is not read at all: bytes that two weights
share in a file, and holes of sparse files, which are zeros.
"""

import ctypes
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from threading import Lock
from typing import NamedTuple, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from memdiag.errors import ModelError
from memdiag.graph.holes import ModelHoles
from memdiag.graph.native_heap import give_back
from memdiag.graph.reader import ModelFile
from memdiag.graph.workers import Workers
from memdiag.records.weights import Weight

Octets = NDArray[np.uint8]
Read = Callable[[int, int], Octets]
"""Gives the bytes of a weight from one to before another."""

Groups = tuple[tuple[Weight, ...], ...]

_WHOLE = 512
"""Weights of at most so many bytes are their own probe: the blocks would be no fewer."""

_PROBES = 8
_PROBE_BYTES = 64
SLICE_BYTES = 1 << 20
_MOST_AT_ONCE = 16 << 20
_RELEASE = 32 << 20
FAULT = 2 << 20
"""What the system may map around a page that is touched: a whole huge page of the cache."""

MOST_DECODED = 32 << 20
"""Weights that no file has as they are, and that are larger, are not made to be compared."""

_ZEROS: Octets = np.zeros(SLICE_BYTES, np.uint8)


class Glance(Protocol):
    """Somebody who wants to see the bytes that are compared while they are in a cache."""

    def look(self, weight: Weight, octets: Octets) -> int | None:
        """Return what is to be noted of a slice of `weight`; None for nothing. In any thread."""

    def note(self, weight: Weight, start: int, end: int, least: int) -> None:
        """Note the least of what was found in the slices from `start` to before `end`."""


def same_content(model: ModelFile, glance: Glance | None = None) -> Groups:
    """Return groups of two weights or more that hold the same bytes, compared byte for byte.

    The groups come in the order of their first weights, each in the order of the model. Their
    weights have one size, not necessarily one type or shape. Weights without bytes and strings are
    in none, nor are those that cannot be compared: above `MOST_DECODED` bytes that would all have
    to be made at once, as of sparse ones. A model whose weights overlap so much that comparing them
    would take far more than its files have bytes is compared only so far.
    """
    sizes: dict[int, list[Weight]] = defaultdict(list)
    for weight in model.weights:
        if weight.nbytes and weight.dtype != "string":
            sizes[weight.nbytes].append(weight)
    with Workers() as workers:
        contents = _Contents(model, workers, glance)
        found = [
            group
            for weights in sizes.values()
            if len(weights) > 1
            for group in _same_of_one_size(contents, weights)
        ]
    model.release()
    give_back()
    order = {weight: place for place, weight in enumerate(model.weights)}
    return tuple(
        sorted(
            (tuple(sorted(group, key=order.__getitem__)) for group in found),
            key=lambda group: order[group[0]],
        )
    )


def is_at_hand(weight: Weight) -> bool:
    """Return whether a file has the bytes of `weight`, or they are few enough to be made."""
    return weight.file is not None or weight.nbytes <= MOST_DECODED


def can_be_compared(model: ModelFile, weight: Weight) -> bool:
    """Return whether a weight of `model` is compared: its bytes can be had, some at a time."""
    return is_at_hand(weight) or model.decodes_parts(weight)


class Budget:
    """Lets go of the model's pages whenever much of it has been touched, by any thread."""

    def __init__(self, model: ModelFile) -> None:
        self._model = model
        self._touched = 0
        self._lock = Lock()

    def touch(self, nbytes: int) -> None:
        """Count `nbytes` that were or will be mapped, after letting go of earlier ones."""
        with self._lock:
            self._touched += nbytes
            if self._touched > _RELEASE:
                self._model.release()
                self._touched = nbytes


class _Contents:
    """Access to the bytes of weights, their ranges in files, and the holes of these."""

    def __init__(self, model: ModelFile, workers: Workers, glance: Glance | None) -> None:
        self.model = model
        self.workers = workers
        self.glance = glance
        self.budget = Budget(model)
        # Weights that do not overlap need less than this.
        self.left = 2 * (model.file_bytes + model.external_bytes) + _RELEASE
        self.holes = ModelHoles(model)

    def member(self, weights: list[Weight]) -> "_Member | None":
        """Return weights of the same bytes with these; None where they cannot be had."""
        read = self._reader(weights[0])
        return None if read is None else _Member(weights, read, self.holes)

    def _reader(self, weight: Weight) -> Read | None:
        """Return what reads bytes of a weight; None where they should not or cannot be had."""
        if self.model.decodes_parts(weight):
            parts = self.model.parts(weight)
            return lambda start, end: np.frombuffer(parts(start, end), np.uint8)
        if not is_at_hand(weight):
            return None
        try:
            octets = np.frombuffer(self.model.raw_bytes(weight), np.uint8)
        except ModelError:
            return None
        if len(octets) != weight.nbytes:
            return None
        return lambda start, end: octets[start:end]

    def makes(self, weight: Weight) -> bool:
        """Return whether all bytes of a weight are made when any are wanted."""
        return weight.file is None and not self.model.decodes_parts(weight)


class _Compared(NamedTuple):
    """A slice of a member beside that of the first one; `least` is what a glance found in it."""

    same: bool
    least: int | None


class _Member:
    """Weights that are the same bytes of one file, or one weight alone; `dtype` is the first's."""

    def __init__(self, weights: list[Weight], read: Read, holes: ModelHoles) -> None:
        self.weights = weights
        self.dtype = weights[0].dtype
        self.size = weights[0].nbytes
        self.read = read
        self._holes = holes

    def hole(self, start: int, end: int) -> bool:
        """Return whether the bytes from `start` to before `end` lie in a hole."""
        return self._holes.cover(self.weights[0], start, end)


def _same_of_one_size(contents: _Contents, weights: list[Weight]) -> Iterator[list[Weight]]:
    # Of many weights only a few bytes each are kept until some are found to be alike.
    alike: dict[bytes, list[list[Weight]]] = defaultdict(list)
    for shared in _by_range(weights):
        member = contents.member(shared)
        if member is not None:
            alike[_probe(member, contents.budget)].append(shared)
    for ranges in alike.values():
        if len(ranges) == 1:
            parts = [ranges]
        elif len(ranges) > 2 and _made_bytes(ranges, contents) > MOST_DECODED:
            parts = _by_pairs(ranges, contents)
        else:
            members = filter(None, map(contents.member, ranges))
            refined = _refined(list(members), contents)
            parts = [[member.weights for member in same] for same in refined]
        for part in parts:
            together = [weight for shared in part for weight in shared]
            if len(together) > 1:
                yield together


def _made_bytes(ranges: list[list[Weight]], contents: _Contents) -> int:
    return sum(weights[0].nbytes for weights in ranges if contents.makes(weights[0]))


def _by_pairs(ranges: list[list[Weight]], contents: _Contents) -> list[list[list[Weight]]]:
    """Return `ranges` divided by content, of which two at a time are in memory."""
    parts: list[list[list[Weight]]] = []
    for one in ranges:
        for part in parts:
            pair = list(filter(None, map(contents.member, (part[0], one))))
            if len(pair) == 2 and len(_refined(pair, contents)) == 1:
                part.append(one)
                break
        else:
            parts.append([one])
    return parts


def _by_range(weights: Iterable[Weight]) -> Iterable[list[Weight]]:
    """Return the weights divided by where their bytes lie."""
    ranges: dict[object, list[Weight]] = defaultdict(list)
    for weight in weights:
        place = weight if weight.file is None else (weight.file, weight.offset)
        ranges[place].append(weight)
    return ranges.values()


def _probe(member: _Member, budget: Budget) -> bytes:
    """Return a hash of blocks spread over the bytes, or of all of them where they are few."""
    size = member.size
    if size <= _WHOLE:
        return xxhash.xxh3_128_digest(member.read(0, size).data)
    if member.hole(0, size):
        return xxhash.xxh3_128_digest(bytes(_PROBES * _PROBE_BYTES))
    budget.touch(min(_PROBES * FAULT, size + FAULT))
    last = size - _PROBE_BYTES
    starts = [last * number // (_PROBES - 1) for number in range(_PROBES)]
    blocks = (member.read(start, start + _PROBE_BYTES).tobytes() for start in starts)
    return xxhash.xxh3_128_digest(b"".join(blocks))


def _refined(candidates: list[_Member], contents: _Contents) -> list[list[_Member]]:
    """Return the members divided by content, each read at most once."""
    size = candidates[0].size if candidates else 0
    groups = [candidates]
    if all(member.hole(0, size) for member in candidates):
        return groups
    alone: list[list[_Member]] = []
    start, step = 0, SLICE_BYTES
    while start < size and groups:
        count = sum(map(len, groups))
        end = min(start + step, size)
        contents.left -= (end - start) * count
        if contents.left < 0:
            return alone + [[member] for group in groups for member in group]
        parts = [part for group in groups for part in _divided(group, start, end, contents)]
        # One that is alone is not read on.
        alone += [part for part in parts if len(part) == 1]
        groups = [part for part in parts if len(part) > 1]
        # Those that are still equal will mostly stay so, and more at once is faster.
        step = min(2 * step, _MOST_AT_ONCE)
        start = end
    return alone + groups


def _divided(
    group: list[_Member], start: int, end: int, contents: _Contents
) -> Iterator[list[_Member]]:
    """Yield the members of `group` divided by their bytes from `start` to before `end`."""
    first, *others = group
    equal = _equal_to_first(group, start, end, contents, contents.glance)
    yield [first, *(other for other, same in zip(others, equal, strict=True) if same)]
    rest = [other for other, same in zip(others, equal, strict=True) if not same]
    if len(rest) < 2:
        yield from ([member] for member in rest)
        return
    known: dict[bytes, list[list[_Member]]] = defaultdict(list)
    for member in rest:
        digest = _digest(member, start, end, contents.budget)
        for same in known[digest]:
            if all(_equal_to_first([same[0], member], start, end, contents)):
                same.append(member)
                break
        else:
            known[digest].append([member])
    for found in known.values():
        yield from found


def _equal_to_first(
    group: list[_Member], start: int, end: int, contents: _Contents, glance: Glance | None = None
) -> tuple[bool, ...]:
    """Return which members but the first have its bytes, from `start` to before `end`."""

    def compared(begin: int) -> list[_Compared]:
        limit = min(begin + SLICE_BYTES, end)
        first = _part(group[0], begin, limit, contents.budget)
        seen = [_Compared(True, _least(group[0], first, glance))]
        for other in group[1:]:
            octets = _part(other, begin, limit, contents.budget)
            same = equal_octets(first, octets)
            as_first = same and other.dtype == group[0].dtype
            seen.append(
                _Compared(same, seen[0].least if as_first else _least(other, octets, glance))
            )
        return seen

    starts = range(start, end, SLICE_BYTES)
    slices = contents.workers.map(compared, starts) if len(starts) > 1 else map(compared, starts)
    columns = list(zip(*slices, strict=True))
    if glance is not None:
        for member, column in zip(group, columns, strict=True):
            least = min((one.least for one in column if one.least is not None), default=None)
            for weight in member.weights:
                if least is not None and weight.dtype == member.dtype:
                    glance.note(weight, start, end, least)
    return tuple(all(one.same for one in column) for column in columns[1:])


def _least(member: _Member, octets: Octets, glance: Glance | None) -> int | None:
    return glance.look(member.weights[0], octets) if glance is not None else None


def _part(member: _Member, start: int, end: int, budget: Budget) -> Octets:
    """Return some of a member's bytes, of which those in a hole are not read."""
    if member.hole(start, end):
        return _ZEROS[: end - start]
    budget.touch(end - start)
    return member.read(start, end)


def _digest(member: _Member, start: int, end: int, budget: Budget) -> bytes:
    hashed = xxhash.xxh3_128()
    for begin in range(start, end, SLICE_BYTES):
        hashed.update(_part(member, begin, min(begin + SLICE_BYTES, end), budget).data)
    return hashed.digest()


def equal_octets(one: Octets, other: Octets) -> bool:
    """Return whether two runs of as many bytes are equal."""
    if one.ctypes.data == other.ctypes.data:
        return True
    compare = _memcmp()
    if compare is None:
        return np.array_equal(one, other)
    return compare(one.ctypes.data, other.ctypes.data, len(one)) == 0


@cache
def _memcmp() -> Callable[[int, int, int], int] | None:
    """Return the C library's comparison: numpy's is slower on bytes that are not aligned."""
    try:
        found = ctypes.CDLL(None).memcmp
    except (OSError, TypeError, AttributeError):  # a system whose library has another name
        return None
    found.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    compare: Callable[[int, int, int], int] = found
    return compare
