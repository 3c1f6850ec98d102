"""Weights with the same content, found without reading what cannot be equal.

Weights of one size are told apart by a few blocks each. Those that still agree are read once, side
by side and slice by slice: each is compared byte for byte with the first of them, whose slice is in
the cache by then, and a weight that is alone is not read on. Only those that differ from the first
are hashed, to find out which of them are equal. What is not read at all: bytes that two weights
share in a file, and holes of sparse files, which are zeros.
"""

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property
from itertools import compress
from threading import Lock
from typing import NamedTuple, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from memdiag.errors import ModelError
from memdiag.graph.grouping import Indices, first_equal, groups
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

_MOST_KEPT = 1024
"""Weights of up to a slice that stay at hand while they are compared: each takes a kilobyte."""

_LEAST_GLANCED = 64 << 10
"""What is noted of smaller weights would save less time than it takes, and their memory adds up."""

_ZEROS: Octets = np.zeros(SLICE_BYTES, np.uint8)


class Glance(Protocol):
    """Somebody who wants to see the bytes that are compared while they are in a cache.

    Those of weights below `_LEAST_GLANCED` bytes are not shown.
    """

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
    weights, sizes = _of_common_sizes(model)
    ranges = first_equal(sizes, *_ranges(weights))
    with Workers() as workers:
        firsts = _firsts(_Contents(model, weights, ranges, workers, glance), sizes)
    model.release()
    give_back()
    return tuple(tuple(weights[place] for place in group) for group in groups(firsts))


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
    """Access to the bytes of `weights`, their `ranges` in files, and the holes of these.

    `ranges` has, for the place of each weight, that of the first one in the same range of a file.
    """

    def __init__(
        self,
        model: ModelFile,
        weights: Sequence[Weight],
        ranges: Indices,
        workers: Workers,
        glance: Glance | None,
    ) -> None:
        self.model = model
        self.weights = weights
        self.ranges = ranges
        self.workers = workers
        self.glance = glance
        self.budget = Budget(model)
        # Weights that do not overlap need less than this.
        self.left = 2 * (model.file_bytes + model.external_bytes) + _RELEASE
        self.holes = ModelHoles(model)

    def member(self, place: int) -> "_Member | None":
        """Return the weight at `place` with its bytes; None where they cannot be had."""
        weight = self.weights[place]
        read = self._reader(weight)
        return None if read is None else _Member(weight, read, self.holes)

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

    def makes_many(self, places: Indices) -> bool:
        """Return whether more than `MOST_DECODED` bytes are made when any of each are wanted."""
        size = self.weights[places[0]].nbytes
        if size * len(places) <= MOST_DECODED:
            return False
        weights = (self.weights[place] for place in places)
        made = (one.file is None and not self.model.decodes_parts(one) for one in weights)
        return bool(size * sum(made) > MOST_DECODED)

    def in_range(self, place: int) -> Iterator[Weight]:
        """Yield the weights in the range of a file that the one at `place` is the first in."""
        order, ranges = self._by_range
        begin = np.searchsorted(ranges, place, "left")
        end = np.searchsorted(ranges, place, "right")
        return (self.weights[one] for one in order[begin:end])

    @cached_property
    def _by_range(self) -> tuple[Indices, Indices]:
        """The places ordered by range, and their ranges."""
        order = np.argsort(self.ranges, kind="stable")
        return order, self.ranges[order]


class _Member:
    """The bytes of a weight, and of all others in the same range of a file."""

    def __init__(self, weight: Weight, read: Read, holes: ModelHoles) -> None:
        self.weight = weight
        self.dtype = weight.dtype
        self.size = weight.nbytes
        self.read = read
        self._holes = holes

    def hole(self, start: int, end: int) -> bool:
        """Return whether the bytes from `start` to before `end` lie in a hole."""
        return self._holes.cover(self.weight, start, end)


class _Members:
    """The members at `places`, the first `kept` of which are made at once and stay in memory."""

    def __init__(self, contents: _Contents, places: Indices, kept: int) -> None:
        self._contents = contents
        # Before any is read: handing out large ones lets go of what is mapped.
        self._kept = {place: self._made(place) for place in places[:kept].tolist()}

    def __getitem__(self, place: int) -> _Member:
        return self._kept.get(place) or self._made(place)

    def _made(self, place: int) -> _Member:
        found = self._contents.member(place)
        if found is None:
            name, path = self._contents.weights[place].name, self._contents.model.path
            raise ModelError(f"{path}: {name!r} can no longer be read; try again.")
        return found


class _Compared(NamedTuple):
    """A slice of some members: which have the first one's bytes, and what a glance found in each.

    `leasts` is empty without a glance.
    """

    same: NDArray[np.bool_]
    leasts: list[int | None]


def _of_common_sizes(model: ModelFile) -> tuple[Sequence[Weight], Indices]:
    """Return the weights that are to be compared, and for each a number that its size alone has.

    The number grows in the order in which the sizes come first.
    """
    weights = [
        weight
        for weight in model.weights
        if weight.nbytes and weight.dtype != "string" and can_be_compared(model, weight)
    ]
    sizes = first_equal(_numbers((weight.nbytes for weight in weights), len(weights)))
    common = np.bincount(sizes)[sizes] > 1
    return list(compress(weights, common)), sizes[common]


def _ranges(weights: Sequence[Weight]) -> tuple[Indices, Indices]:
    """Return, for each weight, numbers of its file and range; one without a file is by itself."""
    files: dict[str | None, int] = {None: 0}
    numbers = (files.setdefault(weight.file, len(files)) for weight in weights)
    offsets = (
        place if weight.file is None else weight.offset or 0 for place, weight in enumerate(weights)
    )
    return _numbers(numbers, len(weights)), _numbers(offsets, len(weights))


def _numbers(values: Iterable[int], count: int) -> Indices:
    return np.fromiter(values, np.int64, count)


def _firsts(contents: _Contents, sizes: Indices) -> Indices:
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


def _probed(contents: _Contents, sizes: Indices) -> tuple[Indices, NDArray[np.uint64]]:
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


def _same_of_alike(contents: _Contents, places: Indices) -> Iterator[Indices]:
    """Yield the `places`, of one size, divided by content, but those that are alone."""
    large = contents.weights[places[0]].nbytes > SLICE_BYTES
    if len(places) > 2 and contents.makes_many(places):
        # Small ones are compared in one step, for which none has to be kept.
        return _by_pairs(contents, places) if large else _refined(contents, places, kept=0)
    return _refined(contents, places, kept=len(places) if large else _MOST_KEPT)


def _by_pairs(contents: _Contents, places: Indices) -> Iterator[Indices]:
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


def _probe(member: _Member, budget: Budget) -> int:
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


def _refined(contents: _Contents, places: Indices, kept: int) -> Iterator[Indices]:
    """Yield the `places` divided by content, but those that are alone; each is read at most once.

    Of the first `kept` the bytes stay at hand, of others those of two at a time.
    """
    members = _Members(contents, places, kept)
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
    places: Indices, start: int, end: int, members: _Members, contents: _Contents
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
    members: _Members,
    contents: _Contents,
    glance: Glance | None = None,
) -> NDArray[np.bool_]:
    """Return for each place whether the first one's bytes are there, from `start` to `end`."""
    first = members[places[0]]
    if first.size < _LEAST_GLANCED:
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


def _least(member: _Member, octets: Octets, glance: Glance | None) -> int | None:
    return glance.look(member.weight, octets) if glance is not None else None


def _part(member: _Member, start: int, end: int, budget: Budget) -> Octets:
    """Return some of a member's bytes, of which those in a hole are not read."""
    if member.hole(start, end):
        return _ZEROS[: end - start]
    budget.touch(end - start)
    return member.read(start, end)


def _digest(member: _Member, start: int, end: int, budget: Budget) -> int:
    hashed = xxhash.xxh3_64()
    for begin in range(start, end, SLICE_BYTES):
        hashed.update(_part(member, begin, min(begin + SLICE_BYTES, end), budget).data)
    return hashed.intdigest()


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
