"""Reading a process through Linux's ``/proc``: samples in microseconds, exact peaks.

`statm` costs about 1 µs a read and splits the resident set into anonymous and the rest. `status`
costs some 15 µs more and has the full split, which a sample asks for where the rest has moved, and
the high-water mark, which writing ``5`` to `clear_refs` resets to the present resident set
(Documentation/filesystems/proc.rst).
"""

import os
import re
from typing import Literal

from memdiag.measurement.observer import Boundary, ProcessGone, Reading
from memdiag.records.profile import Memory

_FIELDS = re.compile(rb"^(VmHWM|VmRSS|RssAnon|RssFile|RssShmem):\s*(\d+) kB$", re.MULTILINE)
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_RESET = b"5"
# The kernel's counters are kept per processor and summed lazily: two readings of a quiet process
# may differ by this much.
_SLACK = 1 << 20
_MOVED = 1 << 18  # by this much the rest must have moved for its split to be read again


class ProcObserver:
    """Observes process `pid`; peaks are None where the high-water mark cannot be reset.

    Raises:
        ProcessGone: the process has ended.
        OSError: its ``/proc`` files cannot be read.
    """

    method: Literal["proc", "psutil"] = "proc"
    period_s = 0.00075

    def __init__(self, pid: int) -> None:
        self._files: list[int] = []
        self._reset: int | None = None
        self._rest = self._shared = 0
        try:
            self._statm = self._open(f"/proc/{pid}/statm", os.O_RDONLY)
            self._status = self._open(f"/proc/{pid}/status", os.O_RDONLY)
        except FileNotFoundError as error:
            self.close()
            raise ProcessGone from error
        try:
            self._reset = self._open(f"/proc/{pid}/clear_refs", os.O_WRONLY)
        except OSError:
            return
        self._check_reset()

    def sample(self) -> Reading:
        """Return the resident set from `statm`, split by `status` where that may have changed."""
        fields = self._read(self._statm).split()
        resident, rest = int(fields[1]) * _PAGE, int(fields[2]) * _PAGE
        if resident == 0:
            # It is ending: its memory is gone before its files are.
            raise ProcessGone
        if abs(rest - self._rest) >= _MOVED:
            self._rest, self._shared = rest, self._read_status().get(b"RssShmem", 0)
        return Reading(resident, resident - rest, rest, min(self._shared, rest))

    def boundary(self) -> Boundary:
        """Return the split memory and the kernel's peak since the last call, and reset it."""
        fields = self._read_status()
        # The three parts are the truth the kernel sums up; VmRSS may lag behind them.
        anonymous, file, shared = (
            fields.get(name, 0) for name in (b"RssAnon", b"RssFile", b"RssShmem")
        )
        rss = anonymous + file + shared
        self._rest, self._shared = file + shared, shared
        memory = Memory(
            rss_bytes=rss, anonymous_bytes=anonymous, file_bytes=file, shared_bytes=shared
        )
        if self._reset is None:
            return Boundary(memory, None)
        peak = max(fields[b"VmHWM"], rss)
        self._clear()
        return Boundary(memory, peak)

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            os.close(file)
        self._files.clear()

    def _open(self, path: str, flags: int) -> int:
        file = os.open(path, flags | os.O_CLOEXEC)
        self._files.append(file)
        return file

    def _read(self, file: int) -> bytes:
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
            for name, kilobytes in _FIELDS.findall(self._read(self._status))
        }
        if b"VmRSS" not in fields or b"VmHWM" not in fields:
            # A zombie still has a status file, but no memory.
            raise ProcessGone
        return fields

    def _clear(self) -> None:
        assert self._reset is not None
        try:
            os.write(self._reset, _RESET)
        except ProcessLookupError as error:
            raise ProcessGone from error
        except OSError:
            self._reset = None

    def _check_reset(self) -> None:
        """Some sandboxes take the write and do nothing: believe the mark only if it follows."""
        self._clear()
        fields = self._read_status()
        if fields[b"VmHWM"] > fields[b"VmRSS"] + _SLACK:
            self._reset = None
