"""Reading the memory of a live process, without stopping it and without copying a byte too often.

`process_vm_readv` copies straight from the other process's pages. In pieces of 256 KiB into one
buffer, which then stays in the processor's cache, it is about three times as fast as
``/proc/PID/mem``; the latter is used where a sandbox refuses the call.
"""

import ctypes
import errno
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from memdiag.attribution.address_space import denied
from memdiag.attribution.intervals import Ranges
from memdiag.errors import XrayError

PIECE_BYTES = 256 << 10
"""Small enough for a piece to stay in the cache for what looks at it next; mere reading is
faster in larger pieces, by half at 4 MiB."""

RUNS_A_CALL = 1024
"""The most ranges that the kernel takes in one call (IOV_MAX)."""

Runs = Sequence[tuple[int, int]] | NDArray[Any]
"""Runs to read, (address, length in bytes) each: a sequence of pairs or an array ``[n, 2]``."""

_POINTER = ctypes.c_void_p
_LAST_OFFSET = (1 << 63) - 1


class ProcessMemory:
    """The memory of process `pid`, for reading; a context manager that closes what it opens.

    Memory that is not mapped, or no longer, makes a read short and never raises; the same goes for
    a process that ends meanwhile, which `ended` then tells. Threads may read at the same time.

    Raises:
        XrayError: there is no such process, it may not be read, or this is not Linux.
    """

    def __init__(self, pid: int) -> None:
        if sys.platform != "linux":
            raise XrayError(
                f"process {pid}: its memory can only be read on Linux; run memdiag there."
            )
        self.pid = pid
        self.ended = False
        self._file = -1
        self._tables = _Tables()
        self._call = _process_vm_readv()
        if not self._probe():
            self._call = None
            self._file = self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file that stands in for the system call, where it had to."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def read_into(self, address: int, buffer: NDArray[np.uint8]) -> int:
        """Fill the contiguous `buffer` with what lies at `address`; return the bytes read.

        Fewer than asked for means that the first byte not read is not mapped.
        """
        return self._read(address, buffer.ctypes.data, buffer.nbytes)

    def read_runs(self, runs: Runs, buffer: NDArray[np.uint8]) -> int:
        """Read `runs` one after the other into the contiguous `buffer`; return the bytes read.

        Reading ends at the first byte that is not mapped. The buffer must hold all the runs.
        """
        table = np.asarray(runs).reshape(-1, 2).astype(np.uint64, copy=False)
        if int(table[:, 1].sum()) > buffer.nbytes:
            raise ValueError("the buffer is smaller than the runs")
        pointer, done = buffer.ctypes.data, 0
        for first in range(0, len(table), RUNS_A_CALL):
            part = table[first : first + RUNS_A_CALL]
            wanted = int(part[:, 1].sum())
            self._tables.remote[: len(part)] = part
            got = self._transfer(len(part), pointer + done, wanted)
            done += got
            if got < wanted:
                break
        return done

    def read_blocks(
        self, addresses: NDArray[np.int64], nbytes: int
    ) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Return the `nbytes` from each of `addresses` on, ``[n, nbytes]``, and which were there.

        A block that is not wholly mapped is False in the second array; its bytes are worth nothing.
        """
        blocks = np.zeros((len(addresses), nbytes), np.uint8)
        there = np.zeros(len(addresses), np.bool_)
        runs = np.stack((addresses, np.full(len(addresses), nbytes)), axis=1)
        done = 0
        while done < len(runs):
            got = self.read_runs(runs[done:], blocks[done:].reshape(-1)) // nbytes
            there[done : done + got] = True
            done += got + 1
            if self.ended:
                break
        return blocks, there

    def pieces(
        self, ranges: Ranges, buffer: NDArray[np.uint8], *, overlap: int = 0
    ) -> Iterator[tuple[int, int]]:
        """Yield (address, length) for each piece of `ranges`, which then lies at `buffer`'s start.

        Pieces are as large as the buffer. Within a range each begins `overlap` bytes before the
        last one's end, so that nothing that short is cut. What is not mapped any more is left out.
        """
        size, pointer = buffer.nbytes, buffer.ctypes.data
        if not 0 <= overlap < size:
            raise ValueError("the overlap must be smaller than the buffer")
        for start, end in ranges.tolist():
            while start < end:
                wanted = min(end - start, size)
                got = self._read(start, pointer, wanted)
                if got:
                    yield start, got
                if start + wanted >= end or got < wanted:
                    break
                start += wanted - overlap

    def _probe(self) -> bool:
        """Return whether the system call may be used: an unmapped address tells, before any use."""
        if self._call is None:
            return False
        byte = np.zeros(1, np.uint8)
        self._tables.remote[0] = (0, 1)
        code = self._raw(1, byte.ctypes.data, 1)
        if code == -errno.ESRCH:
            raise _gone(self.pid)
        return code >= 0 or code == -errno.EFAULT

    def _open(self) -> int:
        try:
            return os.open(f"/proc/{self.pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, ProcessLookupError) as error:
            raise _gone(self.pid) from error
        except OSError as error:
            raise denied(self.pid) from error

    def _read(self, address: int, pointer: int, nbytes: int) -> int:
        self._tables.remote[0] = (address, nbytes)
        return self._transfer(1, pointer, nbytes)

    def _transfer(self, count: int, pointer: int, nbytes: int) -> int:
        """Read the first `count` entries of the table of runs to `pointer`, `nbytes` in all."""
        if self._call is None:
            return self._from_file(count, pointer, nbytes)
        code = self._raw(count, pointer, nbytes)
        if code >= 0:
            return code
        if code == -errno.ESRCH:
            self.ended = True
        return 0

    def _raw(self, count: int, pointer: int, nbytes: int) -> int:
        """Make the system call; return the bytes read, or minus the error's number."""
        assert self._call is not None
        tables = self._tables
        tables.local[0] = (pointer, nbytes)
        code: int = self._call(self.pid, tables.local_at, 1, tables.remote_at, count, 0)
        return code if code >= 0 else -ctypes.get_errno()

    def _from_file(self, count: int, pointer: int, nbytes: int) -> int:
        view = memoryview((ctypes.c_ubyte * nbytes).from_address(pointer)).cast("B")
        done = 0
        for address, length in self._tables.remote[:count].tolist():
            if address + length > _LAST_OFFSET:
                break
            end = done + length
            while done < end:
                try:
                    got = os.preadv(self._file, [view[done:end]], address + length - (end - done))
                except OSError:
                    return done
                if not got:
                    # Only the memory of a process that has ended reads as an empty file.
                    self.ended = True
                    return done
                done += got
        return done


class _Tables(threading.local):
    """What one call reads and where to, as (address, length); each thread fills in its own."""

    def __init__(self) -> None:
        self.local = np.zeros((1, 2), np.uint64)
        self.remote = np.zeros((RUNS_A_CALL, 2), np.uint64)
        self.local_at = self.local.ctypes.data
        self.remote_at = self.remote.ctypes.data


def _gone(pid: int) -> XrayError:
    return XrayError(f"process {pid}: it has ended or never was; give the id of a live process.")


def _process_vm_readv() -> Any:
    """Return the C library's wrapper of the system call, or None where it has none."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "process_vm_readv", None)
    if call is not None:
        unsigned = ctypes.c_ulong
        call.argtypes = [ctypes.c_int, _POINTER, unsigned, _POINTER, unsigned, unsigned]
        call.restype = ctypes.c_ssize_t
    return call
