"""Weights with the same content, found without reading what cannot be equal.

Weights of one size are told apart by a few blocks each. Those that still agree are read once, side
by side and slice by slice: each is compared byte for byte with the first of them, whose slice is in
the cache by then, and a weight that is alone is not read on. Only those that differ from the first
are hashed, to find out which of them are equal. What is not read at all: bytes that two weights
share in a file, and holes of sparse files, which are zeros.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from memdiag.graph.content_members import (
    FAULT,
    LEAST_GLANCED,
    Budget,
    Contents,
    Glance,
    Member,
    Members,
    can_be_compared,
)
from memdiag.graph.grouping import Indices, first_equal, groups, joined_groups
from memdiag.graph.native_heap import give_back
from memdiag.graph.octets import Octets, equal_octets
from memdiag.graph.packed_weights import SomeWeights, WeightGroups
from memdiag.graph.reader import ModelFile
from memdiag.graph.workers import Workers

_WHOLE = 512
"""Weights of at most so many bytes are their own probe: the blocks would be no fewer."""

_PROBES = 8
_PROBE_BYTES = 64
SLICE_BYTES = 1 << 20
_MOST_AT_ONCE = 16 << 20
_MOST_KEPT = 1024
"""Weights of up to a slice that stay at hand while they are compared: each takes a kilobyte."""

_ZEROS: Octets = np.zeros(SLICE_BYTES, np.uint8)


def same_content(
    model: ModelFile, glance: Glance | None = None, *, least_bytes: int = 1
) -> WeightGroups:
    """Return groups of two weights or more that hold the same bytes, compared byte for byte.

    The groups come in the order of their first weights, each in the order of the model. Their
    weights have one size, not necessarily one type or shape. Weights below `least_bytes`, those
    without bytes and strings are in none, nor are those that cannot be compared: above
    `MOST_DECODED` bytes that would all have to be made at once, as of sparse ones. A model whose
    weights overlap so much that comparing them would take far more than its files have bytes is
    compared only so far.
    """
    weights, sizes = _of_common_sizes(model, max(least_bytes, 1))
    ranges = first_equal(sizes, *weights.ranges())
    with Workers() as workers:
        firsts = _firsts(Contents(model, weights, ranges, workers, glance), sizes)
    model.release()
    give_back()
    together, starts = joined_groups(firsts)
    return WeightGroups(model.weights, np.asarray(weights.places)[together], starts)


class _Compared(NamedTuple):
    """A slice of some members: which have the first one's bytes, and what a glance found in each.

    `leasts` is empty without a glance.
    """

    same: NDArray[np.bool_]
    leasts: list[int | None]


def _of_common_sizes(model: ModelFile, least: int) -> tuple[SomeWeights, Indices]:
    """Return the weights that are to be compared, and for each a number that its size alone has.

    The number grows in the order in which the sizes come first.
    """
    compared = np.fromiter(
        (
            weight.nbytes
            if weight.nbytes >= least
            and weight.dtype != "string"
            and can_be_compared(model, weight)
            else 0
            for weight in model.weights
        ),
        np.int64,
        len(model.weights),
    )
    places = np.flatnonzero(compared)
    sizes = first_equal(compared[places])
    common = np.bincount(sizes)[sizes] > 1
    return SomeWeights(model.weights, places[common]), sizes[common]


def _firsts(contents: Contents, sizes: Indices) -> Indices:
    """Return, for the place of each weight, that of the first one with the same content.

    One whose bytes cannot be had is the first one itself.
    """
    places, probes = _probed(contents, sizes)
    alike_ones = groups(first_equal(sizes[places], probes))
    firsts = np.full(len(sizes), -1)
    firsts[places] = places
    for alike in alike_ones:
        for same in _same_of_alike(contents, places[alike]):
            firsts[same] = same[0]
    firsts = firsts[contents.ranges]
    return np.where(firsts < 0, np.arange(len(firsts)), firsts)


def _probed(contents: Contents, sizes: Indices) -> tuple[Indices, NDArray[np.uint64]]:
    """Return the first places of all ranges whose bytes can be had, size by size, and probes."""
    places = np.flatnonzero(contents.ranges == np.arange(len(sizes)))
    places = places[np.argsort(sizes[places], kind="stable")]
    probes = np.zeros(len(places), np.uint64)
    had = np.zeros(len(places), np.bool_)
    for number, place in enumerate(places):
        member = contents.member(int(place))
        if member is not None:
            probes[number] = _probe(member, contents.budget)
            had[number] = True
    return places[had], probes[had]


def _same_of_alike(contents: Contents, places: Indices) -> Iterator[Indices]:
    """Yield the `places`, of one size, divided by content, but those that are alone."""
    large = contents.weights[places[0]].nbytes > SLICE_BYTES
    if len(places) > 2 and contents.makes_many(places):
        # Small ones are compared in one step, for which none has to be kept.
        return _by_pairs(contents, places) if large else _refined(contents, places, kept=0)
    return _refined(contents, places, kept=len(places) if large else _MOST_KEPT)


def _by_pairs(contents: Contents, places: Indices) -> Iterator[Indices]:
    """Yield what `_refined` does; two at a time are in memory."""
    labels = places.copy()
    firsts: list[int] = []
    for number, place in enumerate(map(int, places)):
        for first in firsts:
            if next(_refined(contents, np.array([first, place]), kept=2), None) is not None:
                labels[number] = first
                break
        else:
            firsts.append(place)
    return (places[group] for group in groups(labels))


def _probe(member: Member, budget: Budget) -> int:
    """Return a hash of blocks spread over the bytes, or of all of them where they are few."""
    size = member.size
    if size <= _WHOLE:
        return xxhash.xxh3_64_intdigest(member.read(0, size).data)
    if member.hole(0, size):
        return xxhash.xxh3_64_intdigest(bytes(_PROBES * _PROBE_BYTES))
    budget.touch(min(_PROBES * FAULT, size + FAULT))
    last = size - _PROBE_BYTES
    starts = [last * number // (_PROBES - 1) for number in range(_PROBES)]
    blocks = (member.read(start, start + _PROBE_BYTES).tobytes() for start in starts)
    return xxhash.xxh3_64_intdigest(b"".join(blocks))


def _refined(contents: Contents, places: Indices, kept: int) -> Iterator[Indices]:
    """Yield the `places` divided by content, but those that are alone; each is read at most once.

    Of the first `kept` the bytes stay at hand, of others those of two at a time.
    """
    members = Members(contents, places, kept)
    size = members[places[0]].size
    if all(members[place].hole(0, size) for place in places):
        yield places
        return
    parts = [places]
    start, step = 0, SLICE_BYTES
    while start < size and parts:
        end = min(start + step, size)
        contents.left -= (end - start) * sum(map(len, parts))
        if contents.left < 0:
            return
        # One that is alone is not read on.
        parts = [
            part
            for one in parts
            for part in _divided(one, start, end, members, contents)
            if len(part) > 1
        ]
        # Those that are still equal will mostly stay so, and more at once is faster.
        step = min(2 * step, _MOST_AT_ONCE)
        start = end
    yield from parts


def _divided(
    places: Indices, start: int, end: int, members: Members, contents: Contents
) -> Iterator[Indices]:
    """Yield the `places` divided by their bytes from `start` to before `end`, but some alone."""
    same = _same_as_first(places, start, end, members, contents, contents.glance)
    yield places[same]
    rest = places[~same]
    if len(rest) < 2:
        return
    digests = (_digest(members[place], start, end, contents.budget) for place in rest)
    for equal in groups(first_equal(np.fromiter(digests, np.uint64, len(rest)))):
        known = rest[equal]
        while len(known) > 1:
            same = _same_as_first(known, start, end, members, contents)
            yield known[same]
            known = known[~same]


def _same_as_first(
    places: Indices,
    start: int,
    end: int,
    members: Members,
    contents: Contents,
    glance: Glance | None = None,
) -> NDArray[np.bool_]:
    """Return for each place whether the first one's bytes are there, from `start` to `end`."""
    first = members[places[0]]
    if first.size < LEAST_GLANCED:
        glance = None

    def compared(begin: int) -> _Compared:
        limit = min(begin + SLICE_BYTES, end)
        octets = _part(first, begin, limit, contents.budget)
        least = _least(first, octets, glance)
        same = np.ones(len(places), np.bool_)
        leasts = [least] if glance is not None else []
        for number, place in enumerate(places[1:], 1):
            other = members[place]
            found = _part(other, begin, limit, contents.budget)
            same[number] = equal_octets(octets, found)
            if glance is not None:
                as_first = same[number] and other.dtype == first.dtype
                leasts.append(least if as_first else _least(other, found, glance))
        return _Compared(same, leasts)

    starts = range(start, end, SLICE_BYTES)
    mapped = contents.workers.map(compared, starts) if len(starts) > 1 else map(compared, starts)
    slices = list(mapped)
    if glance is not None:
        columns = zip(*(one.leasts for one in slices), strict=True)
        for place, column in zip(places, columns, strict=True):
            least = min((one for one in column if one is not None), default=None)
            for weight in contents.in_range(place):
                if least is not None and weight.dtype == members[place].dtype:
                    glance.note(weight, start, end, least)
    everywhere: NDArray[np.bool_] = np.logical_and.reduce([one.same for one in slices])
    return everywhere


def _least(member: Member, octets: Octets, glance: Glance | None) -> int | None:
    return glance.look(member.weight, octets) if glance is not None else None


def _part(member: Member, start: int, end: int, budget: Budget) -> Octets:
    """Return some of a member's bytes, of which those in a hole are not read."""
    if member.hole(start, end):
        return _ZEROS[: end - start]
    budget.touch(end - start)
    return member.read(start, end)


def _digest(member: Member, start: int, end: int, budget: Budget) -> int:
    hashed = xxhash.xxh3_64()
    for begin in range(start, end, SLICE_BYTES):
        hashed.update(_part(member, begin, min(begin + SLICE_BYTES, end), budget).data)
    return hashed.intdigest()
