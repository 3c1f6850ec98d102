"""Bytes that are kept while a model is open: few in memory, many in a file that has no name."""

import tempfile
import weakref
from array import array
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import IO, overload

MOST_HELD = 2 << 20
"""Bytes that a spool holds in memory; when there are more, all go to the file."""

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


class Stored(Sequence[bytes]):
    """Items in a spool: byte strings, by their places."""

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self._starts = array("Q")
        self._lengths = array("I")

    def append(self, item: bytes) -> None:
        """Add an item at the end."""
        self._starts.append(self.spool.add(item))
        self._lengths.append(len(item))

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, place: int) -> bytes: ...

    @overload
    def __getitem__(self, place: slice) -> list[bytes]: ...

    def __getitem__(self, place: int | slice) -> bytes | list[bytes]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        return self.at(place)

    def at(self, place: int) -> bytes:
        """Return the item at `place`."""
        start = self._starts[place]
        return self.spool.read(start, start + self._lengths[place])

    def __iter__(self) -> Iterator[bytes]:
        # What was added in a row lies in a row, and is read at once.
        first, count = 0, len(self)
        while first < count:
            start = stop = self._starts[first]
            last = first
            while last < count and self._starts[last] == stop and stop - start < _AT_ONCE:
                stop += self._lengths[last]
                last += 1
            run = self.spool.read(start, stop)
            position = 0
            for length in self._lengths[first:last]:
                yield run[position : position + length]
                position += length
            first = last
