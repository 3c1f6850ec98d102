"""The holes of sparse files: stretches that take no space, known to be zeros without reading."""

import errno
import os
from bisect import bisect_right
from pathlib import Path

from memdiag.graph.reader import ModelFile
from memdiag.records.weights import Weight

_MOST = 100_000


def path_of(model: ModelFile, weight: Weight) -> Path:
    """Return the path of the file in which `weight` lies, one of those that have a file."""
    assert weight.file is not None
    return model.path.parent / weight.file


class ModelHoles:
    """The holes of a model's files, each file looked at once, when one of its weights is."""

    def __init__(self, model: ModelFile) -> None:
        self._model = model
        self._files: dict[str, Holes] = {}

    def cover(self, weight: Weight, start: int, end: int) -> bool:
        """Return whether the bytes of `weight` from `start` to before `end` lie in one hole."""
        if weight.file is None or weight.offset is None:
            return False
        if weight.file not in self._files:
            self._files[weight.file] = Holes(path_of(self._model, weight))
        return self._files[weight.file].cover(weight.offset + start, weight.offset + end)


class Holes:
    """The holes of the file at `path`; none where the system cannot tell.

    After `_MOST` holes the rest of the file counts as data.
    """

    def __init__(self, path: Path) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        if hasattr(os, "SEEK_HOLE"):
            try:
                self._find(path)
            except OSError:
                # What was found until then is true all the same.
                return

    def cover(self, start: int, end: int) -> bool:
        """Return whether all bytes from `start` to before `end` lie in one hole."""
        place = bisect_right(self._starts, start) - 1
        return place >= 0 and end <= self._ends[place]

    def _find(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            size = os.fstat(descriptor).st_size
            hole = os.lseek(descriptor, 0, os.SEEK_HOLE)
            while hole < size and len(self._starts) < _MOST:
                data = _next_data(descriptor, hole, size)
                self._starts.append(hole)
                self._ends.append(data)
                if data >= size:
                    return
                hole = os.lseek(descriptor, data, os.SEEK_HOLE)
        finally:
            os.close(descriptor)


def _next_data(descriptor: int, hole: int, size: int) -> int:
    try:
        return os.lseek(descriptor, hole, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:  # there is no data behind it
            return size
        raise
