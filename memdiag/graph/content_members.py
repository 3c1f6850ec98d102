"""The bytes of weights that are compared with each other, a few of them in memory at a time."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from threading import Lock
from typing import Protocol

import numpy as np

from memdiag.errors import ModelError
from memdiag.graph.grouping import Indices
from memdiag.graph.holes import ModelHoles
from memdiag.graph.octets import Octets
from memdiag.graph.reader import ModelFile
from memdiag.graph.workers import Workers
from memdiag.records.weights import Weight

Read = Callable[[int, int], Octets]
"""Gives the bytes of a weight from one to before another."""

LEAST_GLANCED = 64 << 10
"""What is noted of smaller weights would save less time than it takes, and their memory adds up."""

_RELEASE = 32 << 20

FAULT = 2 << 20
"""What the system may map around a page that is touched: a whole huge page of the cache."""

MOST_DECODED = 32 << 20
"""Weights that no file has as they are, and that are larger, are not made to be compared."""


class Glance(Protocol):
    """Somebody who wants to see the bytes that are compared while they are in a cache.

    Those of weights below `LEAST_GLANCED` bytes are not shown.
    """

    def look(self, weight: Weight, octets: Octets) -> int | None:
        """Return what is to be noted of a slice of `weight`; None for nothing. In any thread."""

    def note(self, weight: Weight, start: int, end: int, least: int) -> None:
        """Note the least of what was found in the slices from `start` to before `end`."""


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


class Contents:
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

    def member(self, place: int) -> "Member | None":
        """Return the weight at `place` with its bytes; None where they cannot be had."""
        weight = self.weights[place]
        read = self._reader(weight)
        return None if read is None else Member(weight, read, self.holes)

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


class Member:
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


class Members:
    """The members at `places`, the first `kept` of which are made at once and stay in memory."""

    def __init__(self, contents: Contents, places: Indices, kept: int) -> None:
        self._contents = contents
        # Before any is read: handing out large ones lets go of what is mapped.
        self._kept = {place: self._made(place) for place in places[:kept].tolist()}

    def __getitem__(self, place: int) -> Member:
        return self._kept.get(place) or self._made(place)

    def _made(self, place: int) -> Member:
        found = self._contents.member(place)
        if found is None:
            name, path = self._contents.weights[place].name, self._contents.model.path
            raise ModelError(f"{path}: {name!r} can no longer be read; try again.")
        return found
