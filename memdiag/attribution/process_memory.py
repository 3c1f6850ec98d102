"""Reader of a running process's memory, which neither stops the process nor copies a byte twice.

`process_vm_readv` copies directly from the other process's pages. In chunks of 256 KiB into one
buffer, which then stays in the processor's cache, it is about three times as fast as
``/proc/PID/mem``, which is used if a sandbox denies the system call, and if the process shares
memory with one that it forked or was forked from: since Linux 5.19 the system call makes a private
copy of each such page, as a write does (gup_must_unshare, mm/gup.c).
"""

import ctypes
import errno
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from memdiag.attribution.address_space import access_denied, no_such_process
from memdiag.attribution.intervals import ByteRanges
from memdiag.model.tensor_types import Array

WORD = 8
"""The bytes of an address in the processes that are read."""

READ_CHUNK_BYTES = 256 << 10
"""Small enough for a chunk to stay in the cache until it is processed. Reading alone is faster in
larger chunks, by half at 4 MiB."""

MAX_SPANS_PER_CALL = 1024
"""Maximum ranges of one system call (IOV_MAX)."""

MemorySpans = Sequence[tuple[int, int]] | Array
"""Runs to read, each (address, length in bytes): a sequence of pairs or an array ``[n, 2]``."""

_POINTER_TYPE = ctypes.c_void_p
_MAX_FILE_OFFSET = (1 << 63) - 1


class ProcessMemory:
    """Reader of the memory of one process; a context manager that closes its file.

    A read of memory that is not mapped, or of a process that ended, is short and never raises.
    Several threads may read at the same time.

    Attributes:
        pid: the process.
        ended: whether a read found that the process has ended.

    Raises:
        XrayError: the process does not exist, or access is denied.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.ended = False
        self._file = -1
        self._tables = _CallTables()
        self._call = None if _shares_private_memory(pid) else _process_vm_readv()
        if not self._is_call_permitted():
            self._call = None
            self._file = self._open_memory_file()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file that replaces the system call, if it is open."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def read_into(self, address: int, buffer: NDArray[np.uint8]) -> int:
        """Fill the contiguous `buffer` from `address` on; return the number of bytes read.

        It is smaller than the buffer if the next byte is not mapped.
        """
        return self._read_span(address, buffer.ctypes.data, buffer.nbytes)

    def read_spans(self, runs: MemorySpans, buffer: NDArray[np.uint8]) -> int:
        """Read `runs` one after the other into the contiguous `buffer`; return the bytes read.

        Reading stops at the first byte that is not mapped.

        Raises:
            ValueError: the buffer is smaller than the runs.
        """
        table = np.asarray(runs).reshape(-1, 2).astype(np.uint64, copy=False)
        if int(table[:, 1].sum()) > buffer.nbytes:
            raise ValueError("the buffer is smaller than the runs")
        pointer, total_read = buffer.ctypes.data, 0
        for first in range(0, len(table), MAX_SPANS_PER_CALL):
            call_runs = table[first : first + MAX_SPANS_PER_CALL]
            call_bytes = int(call_runs[:, 1].sum())
            self._tables.remote[: len(call_runs)] = call_runs
            bytes_read = self._transfer_spans(len(call_runs), pointer + total_read, call_bytes)
            total_read += bytes_read
            if bytes_read < call_bytes:
                break
        return total_read

    def read_blocks(
        self, addresses: NDArray[np.int64], nbytes: int
    ) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Return the `nbytes` from each of `addresses` on, ``[n, nbytes]``, and which are mapped.

        The second array is False for a block that is not wholly mapped; its bytes are undefined.
        """
        blocks = np.zeros((len(addresses), nbytes), np.uint8)
        mapped = np.zeros(len(addresses), np.bool_)
        runs = np.stack((addresses, np.full(len(addresses), nbytes)), axis=1)
        next_block = 0
        while next_block < len(runs):
            blocks_read = (
                self.read_spans(runs[next_block:], blocks[next_block:].reshape(-1)) // nbytes
            )
            mapped[next_block : next_block + blocks_read] = True
            next_block += blocks_read + 1
            if self.ended:
                break
        return blocks, mapped

    def iter_chunks(
        self, ranges: ByteRanges, buffer: NDArray[np.uint8], *, overlap: int = 0
    ) -> Iterator[tuple[int, int]]:
        """Read each chunk of `ranges` to the start of `buffer`, and yield its (address, length).

        Chunks are as large as the buffer. Within a range, each starts `overlap` bytes before the
        end of the previous one, so that data of that length is never split. Memory that is no
        longer mapped is skipped.

        Raises:
            ValueError: the overlap is not smaller than the buffer.
        """
        size, pointer = buffer.nbytes, buffer.ctypes.data
        if not 0 <= overlap < size:
            raise ValueError("the overlap must be smaller than the buffer")
        for start, end in ranges.tolist():
            while start < end:
                chunk_bytes = min(end - start, size)
                bytes_read = self._read_span(start, pointer, chunk_bytes)
                if bytes_read:
                    yield start, bytes_read
                if start + chunk_bytes >= end or bytes_read < chunk_bytes:
                    break
                start += chunk_bytes - overlap

    def _is_call_permitted(self) -> bool:
        """Return whether the system call is permitted, by a call for an unmapped address."""
        if self._call is None:
            return False
        byte = np.zeros(1, np.uint8)
        self._tables.remote[0] = (0, 1)
        code = self._call_system(1, byte.ctypes.data, 1)
        if code == -errno.ESRCH:
            raise no_such_process(self.pid)
        return code >= 0 or code == -errno.EFAULT

    def _open_memory_file(self) -> int:
        try:
            return os.open(f"/proc/{self.pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, ProcessLookupError) as error:
            raise no_such_process(self.pid) from error
        except OSError as error:
            raise access_denied(self.pid) from error

    def _read_span(self, address: int, pointer: int, nbytes: int) -> int:
        self._tables.remote[0] = (address, nbytes)
        return self._transfer_spans(1, pointer, nbytes)

    def _transfer_spans(self, count: int, pointer: int, nbytes: int) -> int:
        """Read the first `count` entries of the table of runs to `pointer`, `nbytes` in total."""
        if self._call is None:
            return self._transfer_from_file(count, pointer, nbytes)
        code = self._call_system(count, pointer, nbytes)
        if code >= 0:
            return code
        if code == -errno.ESRCH:
            self.ended = True
        return 0

    def _call_system(self, count: int, pointer: int, nbytes: int) -> int:
        """Make the system call; return the number of bytes read, or the negative error number."""
        assert self._call is not None
        tables = self._tables
        tables.local[0] = (pointer, nbytes)
        code: int = self._call(self.pid, tables.local_at, 1, tables.remote_at, count, 0)
        return code if code >= 0 else -ctypes.get_errno()

    def _transfer_from_file(self, count: int, pointer: int, nbytes: int) -> int:
        view = memoryview((ctypes.c_ubyte * nbytes).from_address(pointer)).cast("B")
        total_read = 0
        for address, length in self._tables.remote[:count].tolist():
            if address + length > _MAX_FILE_OFFSET:
                break
            run_end = total_read + length
            while total_read < run_end:
                try:
                    bytes_read = os.preadv(
                        self._file,
                        [view[total_read:run_end]],
                        address + length - (run_end - total_read),
                    )
                except OSError:
                    return total_read
                if not bytes_read:
                    # The file is empty only if the process has ended.
                    self.ended = True
                    return total_read
                total_read += bytes_read
        return total_read


class _CallTables(threading.local):
    """Arguments of one call, (address, length) each: one table per thread."""

    def __init__(self) -> None:
        self.local = np.zeros((1, 2), np.uint64)
        self.remote = np.zeros((MAX_SPANS_PER_CALL, 2), np.uint64)
        self.local_at = self.local.ctypes.data
        self.remote_at = self.remote.ctypes.data


def _shares_private_memory(pid: int) -> bool:
    """Return whether pages of process `pid` are shared until one of the processes writes to them.

    In that case the proportional set of its private memory is smaller than that memory. The kernel
    reports this figure since 5.4, and only newer kernels copy such pages: False without the figure.
    """
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:  # no permission, which reading the memory needs too, or no such process
        return False
    kib_by_field = {
        name: int(text.split()[0]) for name, text in (line.split(":", 1) for line in lines)
    }
    return (
        kib_by_field.get("Pss_Anon", 0) < kib_by_field.get("Anonymous", 0)
        and "Pss_Anon" in kib_by_field
    )


def _process_vm_readv() -> Any:
    """Return the C library's wrapper of the system call; None if it has none."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "process_vm_readv", None)
    if call is not None:
        unsigned = ctypes.c_ulong
        call.argtypes = [ctypes.c_int, _POINTER_TYPE, unsigned, _POINTER_TYPE, unsigned, unsigned]
        call.restype = ctypes.c_ssize_t
    return call
