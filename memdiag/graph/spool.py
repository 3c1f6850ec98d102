"""Bytes that are kept while a model is open: few in memory, many in a file that has no name."""

import tempfile
import weakref
from array import array
from collections.abc import Iterator
from threading import Lock
from typing import IO

from memdiag.graph.made import Made

MOST_HELD = 2 << 20
"""Bytes that a spool holds in memory; when there are more, all go to the file."""

MOST_PLACES = 1 << 15
"""Items of which it is held where they lie; twelve bytes each."""

_NOTED = 1 << 11
"""Items of which it is written together where they lie."""

_MOST_NOTES = 16
_NO_STARTS, _NO_LENGTHS = array("Q"), array("I")
_BLOCK = 1 << 15
_AT_ONCE = 1 << 14
_MOST_BLOCKS = 32


class Spool:
    """Bytes that are added at the end and read anywhere.

    Where no file can be written, they stay in memory. Once all are added, any thread may read.
    """

    def __init__(self, most_held: int = MOST_HELD) -> None:
        self._most_held = most_held
        self._held = bytearray()
        self._written = 0  # so many bytes are in the file, what is held comes after them
        self._file: IO[bytes] | None = None
        self._may_write = True
        self._blocks: dict[int, bytes] = {}
        self._lock = Lock()

    def add(self, data: bytes) -> int:
        """Add bytes, and return where they start."""
        if len(self._held) > self._most_held and self._may_write:
            with self._lock:
                self._write_out()
        start = self._written + len(self._held)
        self._held += data
        return start

    def read(self, start: int, stop: int) -> bytes:
        """Return some of the bytes that were added: from `start` to before `stop`."""
        if start >= self._written:
            return bytes(self._held[start - self._written : stop - self._written])
        with self._lock:
            if stop > self._written:
                rest = bytes(self._held[: stop - self._written])
                return self._from_file(start, self._written) + rest
            number, first = divmod(start, _BLOCK)
            last = first + stop - start
            if last > _BLOCK:
                return self._from_file(start, stop)
            if number not in self._blocks:
                if len(self._blocks) >= _MOST_BLOCKS:
                    del self._blocks[next(iter(self._blocks))]
                self._blocks[number] = self._from_file(number * _BLOCK, (number + 1) * _BLOCK)
            return self._blocks[number][first:last]

    def _write_out(self) -> None:
        """Write all that is held to the file, or never try again."""
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="memdiag-", buffering=0)  # noqa: SIM115
                weakref.finalize(self, self._file.close)
            self._file.seek(self._written)
            left = memoryview(self._held)
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            self._may_write = False
            return
        self._written += len(self._held)
        self._held = bytearray()
        self._blocks.clear()

    def _from_file(self, start: int, stop: int) -> bytes:
        assert self._file is not None
        self._file.seek(start)
        return self._file.read(min(stop, self._written) - start)


class Stored(Made[bytes]):
    """Items in a spool: byte strings, by their places.

    Where they lie is noted in the spool as well, when there are more than `MOST_PLACES`.
    """

    # There is one of these for each of many subgraphs, most of which have no item.
    __slots__ = ("_first", "_lengths", "_notes", "_starts", "spool")

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self._starts, self._lengths = _NO_STARTS, _NO_LENGTHS
        self._first = 0  # the place of the first item that is noted here
        self._notes: _Notes | None = None  # those of earlier ones

    def append(self, item: bytes) -> None:
        """Add an item at the end."""
        if self._starts is _NO_STARTS:
            self._starts, self._lengths = array("Q"), array("I")
        elif len(self._starts) >= MOST_PLACES:
            self._write_notes()
        self._starts.append(self.spool.add(item))
        self._lengths.append(len(item))

    def __len__(self) -> int:
        return self._first + len(self._starts)

    def at(self, place: int) -> bytes:
        """Return the item at `place`, which counts from the beginning."""
        index = place - self._first
        if index >= 0:
            start, length = self._starts[index], self._lengths[index]
        else:
            assert self._notes is not None
            number, index = divmod(place, _NOTED)
            starts, lengths = self._notes.read(number)
            start, length = starts[index], lengths[index]
        return self.spool.read(start, start + length)

    def __iter__(self) -> Iterator[bytes]:
        if self._notes is not None:
            for number in range(len(self._notes)):
                yield from self._run(*self._notes.read(number))
        yield from self._run(self._starts, self._lengths)

    def _run(self, starts: "array[int]", lengths: "array[int]") -> Iterator[bytes]:
        """Yield some items. What was added in a row lies in a row, and is read at once."""
        first, count = 0, len(starts)
        while first < count:
            start = stop = starts[first]
            last = first
            while last < count and starts[last] == stop and stop - start < _AT_ONCE:
                stop += lengths[last]
                last += 1
            run = self.spool.read(start, stop)
            position = 0
            for length in lengths[first:last]:
                yield run[position : position + length]
                position += length
            first = last

    def _write_notes(self) -> None:
        if self._notes is None:
            self._notes = _Notes(self.spool)
        for first in range(0, len(self._starts), _NOTED):
            last = first + _NOTED
            self._notes.append(self._starts[first:last], self._lengths[first:last])
        self._first += len(self._starts)
        self._starts, self._lengths = array("Q"), array("I")


class _Notes:
    """Where items lie, and how long they are: written to a spool, `_NOTED` of them at a time."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._begins: list[int] = []
        self._read: dict[int, tuple[array[int], array[int]]] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._begins)

    def append(self, starts: "array[int]", lengths: "array[int]") -> None:
        """Write a note."""
        self._begins.append(self._spool.add(starts.tobytes() + lengths.tobytes()))

    def read(self, number: int) -> tuple["array[int]", "array[int]"]:
        """Return the starts and lengths in a note."""
        found = self._read.get(number)
        if found is None:
            starts, lengths = array("Q"), array("I")
            begin, middle = self._begins[number], _NOTED * starts.itemsize
            note = self._spool.read(begin, begin + middle + _NOTED * lengths.itemsize)
            starts.frombytes(note[:middle])
            lengths.frombytes(note[middle:])
            found = starts, lengths
            with self._lock:
                if len(self._read) >= _MOST_NOTES:
                    del self._read[next(iter(self._read))]
                self._read[number] = found
        return found
