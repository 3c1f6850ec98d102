"""Reading the resident memory of another process: ``/proc``, or psutil where it is restricted.

Reading ``statm`` takes about 1 µs and splits the resident set into anonymous memory and
the rest. Reading ``status`` takes some 15 µs more and has the full split and the high-water mark
(VmHWM), which writing ``5`` to ``clear_refs`` resets to the present resident set
(Documentation/filesystems/proc.rst).
"""

import mmap
import os
import re
from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol, Self

import psutil

from memdiag.records.profile import Memory

_STATUS_FIELDS = re.compile(rb"^(VmHWM|VmRSS|RssAnon|RssFile|RssShmem):\s*(\d+) kB$", re.MULTILINE)
_RESET_MARK_COMMAND = b"5"

MAX_COUNTER_ERROR_BYTES = 1 << 20
"""The kernel keeps its counters per processor and adds them up late: two readings of an idle
process may differ by this much."""

MIN_SPLIT_CHANGE_BYTES = 1 << 18
"""A sample reads the split of file-backed and shared memory again if their sum changed by this
much."""


class MemoryReading(NamedTuple):
    """One sample of the memory of a process.

    Attributes:
        rss_bytes: the resident set.
        anonymous_bytes: the anonymous part; None where the system does not report it.
        file_and_shared_bytes: the rest, of which ``statm`` reports only the sum; None where the
            system does not report it.
        shared_bytes: the shared memory; None if it was not read.
    """

    rss_bytes: int
    anonymous_bytes: int | None
    file_and_shared_bytes: int | None
    shared_bytes: int | None = None

    @classmethod
    def of(cls, memory: Memory) -> Self:
        """Return `memory` as a sample."""
        return cls(
            memory.rss_bytes,
            memory.anonymous_bytes,
            memory.file_and_shared_bytes,
            memory.shared_bytes,
        )

    @property
    def memory(self) -> Memory:
        """The same as a record, with shared memory apart from file-backed memory."""
        file = self.file_and_shared_bytes
        return Memory(
            rss_bytes=self.rss_bytes,
            anonymous_bytes=self.anonymous_bytes,
            file_bytes=None if file is None else file - (self.shared_bytes or 0),
            shared_bytes=self.shared_bytes,
        )


class SpanBoundary(NamedTuple):
    """The memory of a process between two spans.

    Attributes:
        memory: the memory at the boundary.
        peak_rss_bytes: the high-water mark since the boundary before; None where the system has
            no mark that can be reset.
    """

    memory: Memory
    peak_rss_bytes: int | None

    @property
    def max_rss_bytes(self) -> int:
        """The high-water mark, or without one the resident set at the boundary."""
        return self.peak_rss_bytes or self.memory.rss_bytes


class ProcessGone(Exception):
    """Raised when the observed process has ended."""


class Observer(Protocol):
    """Reads the memory of one process. Every method raises `ProcessGone` once it has ended.

    Attributes:
        method: the source of the figures.
        period_s: seconds between samples that the source permits without disturbing the process.
        first_mark_bytes: the high-water mark at the start, where it is not reset; None otherwise.
    """

    method: Literal["proc", "psutil"]
    period_s: float
    first_mark_bytes: int | None

    def sample(self) -> MemoryReading:
        """Return the resident set, without the split where that is slow."""
        ...

    def boundary(self) -> SpanBoundary:
        """Return the memory now, and reset the high-water mark."""
        ...

    def close(self) -> None:
        """Close the files of the observer."""
        ...


ObserverFactory = Callable[[int], Observer]


class ProcObserver:
    """Observes a process through ``/proc``.

    Peaks are None where the high-water mark cannot be reset.

    Args:
        pid: the process number.
        resets_peak: whether the mark may be reset, which the process itself would notice. If it is
            not reset, it is the peak of the observation only after it has risen.

    Raises:
        ProcessGone: the process has ended.
        OSError: its ``/proc`` files cannot be read.
    """

    method: Literal["proc", "psutil"] = "proc"
    period_s = 0.00075

    def __init__(self, pid: int, *, resets_peak: bool = True) -> None:
        self._files: list[int] = []
        self._reset: int | None = None
        self.first_mark_bytes: int | None = None
        self._file_and_shared = self._shared = 0
        try:
            self._statm = self._open_proc_file(f"/proc/{pid}/statm", os.O_RDONLY)
            self._status = self._open_proc_file(f"/proc/{pid}/status", os.O_RDONLY)
        except FileNotFoundError as error:
            self.close()
            raise ProcessGone from error
        if not resets_peak:
            self.first_mark_bytes = self._read_status()[b"VmHWM"]
            return
        try:
            self._reset = self._open_proc_file(f"/proc/{pid}/clear_refs", os.O_WRONLY)
        except OSError:
            return
        self._check_reset()

    def sample(self) -> MemoryReading:
        """Return the resident set, with the split read again if it may have changed."""
        fields = self._read_proc_file(self._statm).split()
        resident_bytes = int(fields[1]) * mmap.PAGESIZE
        file_and_shared = int(fields[2]) * mmap.PAGESIZE
        if resident_bytes == 0:
            # It is ending: its memory is gone before its files are.
            raise ProcessGone
        if abs(file_and_shared - self._file_and_shared) >= MIN_SPLIT_CHANGE_BYTES:
            self._file_and_shared = file_and_shared
            self._shared = self._read_status().get(b"RssShmem", 0)
        shared = min(self._shared, file_and_shared)
        return MemoryReading(
            resident_bytes, resident_bytes - file_and_shared, file_and_shared, shared
        )

    def boundary(self) -> SpanBoundary:
        """Return the memory and the high-water mark since the last call, and reset the mark."""
        fields = self._read_status()
        # VmRSS may lag behind the sum of its three parts.
        anonymous, file, shared = (
            fields.get(name, 0) for name in (b"RssAnon", b"RssFile", b"RssShmem")
        )
        rss_bytes = anonymous + file + shared
        self._file_and_shared, self._shared = file + shared, shared
        memory = Memory(
            rss_bytes=rss_bytes, anonymous_bytes=anonymous, file_bytes=file, shared_bytes=shared
        )
        mark_bytes = fields[b"VmHWM"]
        if self.first_mark_bytes is not None and mark_bytes > self.first_mark_bytes:
            return SpanBoundary(memory, mark_bytes)
        if self._reset is None:
            return SpanBoundary(memory, None)
        peak = max(mark_bytes, rss_bytes)
        self._reset_mark()
        return SpanBoundary(memory, peak)

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            os.close(file)
        self._files.clear()

    def _open_proc_file(self, path: str, flags: int) -> int:
        file = os.open(path, flags | os.O_CLOEXEC)
        self._files.append(file)
        return file

    def _read_proc_file(self, file: int) -> bytes:
        try:
            data = os.pread(file, 4096, 0)
        except ProcessLookupError as error:
            raise ProcessGone from error
        if not data:
            raise ProcessGone
        return data

    def _read_status(self) -> dict[bytes, int]:
        fields = {
            name: int(kilobytes) * 1024
            for name, kilobytes in _STATUS_FIELDS.findall(self._read_proc_file(self._status))
        }
        if b"VmRSS" not in fields or b"VmHWM" not in fields:
            # A zombie still has a status file, but no memory.
            raise ProcessGone
        return fields

    def _reset_mark(self) -> None:
        assert self._reset is not None
        try:
            os.write(self._reset, _RESET_MARK_COMMAND)
        except ProcessLookupError as error:
            raise ProcessGone from error
        except OSError:
            self._reset = None

    def _check_reset(self) -> None:
        """Check that the mark was reset: some sandboxes accept the write and do nothing."""
        self._reset_mark()
        fields = self._read_status()
        if fields[b"VmHWM"] > fields[b"VmRSS"] + MAX_COUNTER_ERROR_BYTES:
            self._reset = None


class PsutilObserver:
    """Observes a process through psutil: the resident set alone, and no exact peaks.

    Args:
        pid: the process number.

    Raises:
        ProcessGone: the process has ended.
    """

    method: Literal["proc", "psutil"] = "psutil"
    period_s = 0.010
    first_mark_bytes: int | None = None

    def __init__(self, pid: int) -> None:
        try:
            self._process = psutil.Process(pid)
        except psutil.NoSuchProcess as error:
            raise ProcessGone from error

    def sample(self) -> MemoryReading:
        """Return the resident set, without its parts."""
        return MemoryReading(self._resident_bytes(), None, None)

    def boundary(self) -> SpanBoundary:
        """Return the resident set, without a high-water mark."""
        memory = Memory(
            rss_bytes=self._resident_bytes(),
            anonymous_bytes=None,
            file_bytes=None,
            shared_bytes=None,
        )
        return SpanBoundary(memory, None)

    def close(self) -> None:
        """Do nothing: no file is open."""

    def _resident_bytes(self) -> int:
        try:
            rss: int = self._process.memory_info().rss
        except (psutil.NoSuchProcess, psutil.ZombieProcess) as error:
            raise ProcessGone from error
        if rss == 0:
            # A zombie.
            raise ProcessGone
        return rss


def open_observer(pid: int, *, resets_peak: bool = True) -> Observer:
    """Return the most exact observer of process `pid` that this system permits."""
    try:
        return ProcObserver(pid, resets_peak=resets_peak)
    except OSError:
        # /proc is hidden or restricted; psutil may still have access.
        return PsutilObserver(pid)
