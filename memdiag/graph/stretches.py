"""Weights read through from their files, a stretch at a time, into buffers that are used again.

Nothing is mapped, so that threads do not wait for each other's page tables, what is read leaves
nothing resident, and numbers are aligned wherever their bytes lie in the file.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from io import FileIO
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from memdiag.errors import ModelError
from memdiag.graph.buffers import Buffers
from memdiag.graph.holes import path_of
from memdiag.graph.octets import Octets
from memdiag.graph.reader import ModelFile
from memdiag.records.weights import Weight

STRETCH_BYTES = 2 << 20
"""What is read and then looked at once or twice more should still be in a cache; with less, threads
would wait for the interpreter's lock more often, which costs more than the cache gives."""

_SMALL = 64 << 10
"""Weights of at most so many bytes are read together with their neighbours, so far from each other
at most: larger ones each begin a stretch, and with it a buffer."""

MOST_PIECES = 2048
"""What is read at a time is of no more weights: the objects of each take half a kilobyte."""


class Piece(NamedTuple):
    """The bytes from `begin` to before `end` of the `place`-th of the weights."""

    place: int
    begin: int
    end: int


class Stretch(NamedTuple):
    """Up to `STRETCH_BYTES` with the pieces in them, each with its first byte in the stretch.

    They lie in the file at `path` from `offset` on, or `octets` gives them, where no file has them.
    """

    path: Path | None
    offset: int
    length: int
    pieces: tuple[tuple[Piece, int], ...]
    octets: Callable[[], Octets] | None = None


def stretches(
    model: ModelFile, weights: Iterable[Weight], begins: Sequence[int] = ()
) -> Iterator[Stretch]:
    """Yield what to read for all bytes of `weights`, in their order; that of the files is best.

    Of each weight it is what comes after the byte that `begins` names, where that is given. Each
    has at least one piece, an empty one where there is nothing to read.
    """
    run: list[Stretch] = []
    for place, weight in enumerate(weights):
        for part in _parts(model, place, weight, begins[place] if begins else 0):
            if run and (len(run) == MOST_PIECES or not _is_neighbour(part, run[0], run[-1])):
                yield _joined(run)
                run = []
            run.append(part)
    if run:
        yield _joined(run)


class StretchReader:
    """Reads stretches, in a buffer of each thread's own."""

    def __init__(self) -> None:
        self._buffers = Buffers(STRETCH_BYTES)

    def read(self, together: Iterable[Stretch]) -> Iterator[tuple[Piece, Octets]]:
        """Yield the pieces of the stretches with their bytes, which are valid until the next.

        Raises:
            ModelError: a file cannot be read any more, or has become shorter.
        """
        for path, of_file in groupby(together, key=attrgetter("path")):
            if path is None:
                for stretch in of_file:
                    assert stretch.octets is not None
                    yield from _pieces(stretch, stretch.octets())
            else:
                with _opened(path) as file:
                    position = 0
                    for stretch in of_file:
                        octets = self._buffers.of_thread()[: stretch.length]
                        if stretch.offset != position:
                            file.seek(stretch.offset)
                        _fill(octets, file)
                        position = stretch.offset + stretch.length
                        yield from _pieces(stretch, octets)


def _parts(model: ModelFile, place: int, weight: Weight, start: int) -> Iterator[Stretch]:
    """Yield the stretches of one weight, from its byte `start` on."""
    path, offset, parts = None, 0, None
    if weight.file is None or weight.offset is None or weight.length is None:
        parts, length = model.parts(weight), weight.nbytes
    else:
        path, offset, length = path_of(model, weight), weight.offset, weight.length
    for begin in range(start, max(length, start + 1), STRETCH_BYTES):
        end = min(begin + STRETCH_BYTES, length)
        part = None if parts is None else partial(_octets, parts, begin, end)
        yield Stretch(path, offset + begin, end - begin, ((Piece(place, begin, end), 0),), part)


def _is_neighbour(part: Stretch, first: Stretch, last: Stretch) -> bool:
    """Return whether `part`, small, is to be read with those from `first` to `last` before it."""
    return (
        part.path is not None
        and part.path == first.path
        and part.length <= _SMALL
        and 0 <= part.offset - (last.offset + last.length) <= _SMALL
        and part.offset + part.length - first.offset <= STRETCH_BYTES
    )


def _joined(run: Sequence[Stretch]) -> Stretch:
    first, last = run[0], run[-1]
    if first is last:
        return first
    pieces = tuple((piece, part.offset - first.offset) for part in run for piece, _ in part.pieces)
    length = last.offset + last.length - first.offset
    return Stretch(first.path, first.offset, length, pieces)


def _octets(parts: Callable[[int, int], memoryview], begin: int, end: int) -> Octets:
    return np.frombuffer(parts(begin, end), np.uint8)


def _pieces(stretch: Stretch, octets: Octets) -> Iterator[tuple[Piece, Octets]]:
    for piece, first in stretch.pieces:
        yield piece, octets[first : first + piece.end - piece.begin]


@contextmanager
def _opened(path: Path) -> Iterator[FileIO]:
    try:
        with FileIO(path) as file:
            yield file
    except OSError as error:
        raise ModelError(f"{path}: it can no longer be read ({error.strerror}).") from error


def _fill(octets: Octets, file: FileIO) -> None:
    room = octets.data
    while room:
        number = file.readinto(room)
        if not number:
            raise ModelError(f"{file.name}: it became shorter while it was read; try again.")
        room = room[number:]
