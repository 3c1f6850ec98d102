"""Protection against mapped model files that become shorter while they are read.

The system ends a process (SIGBUS) that reads a mapped page behind the end of its file, for example
because an exporter rewrites the model in place. On Linux this module replaces the missing pages by
zeros instead. `missing_page_count` counts these replacements for each file.
"""

import ctypes
import mmap
import os
import signal
import sys
from pathlib import Path
from typing import Any

_SA_SIGINFO = 4
_MAP_FIXED = 0x10
_BUS_ADRERR = 2
_PAGE_MASK = ~(mmap.PAGESIZE - 1)
_MACHINES = ("x86_64", "aarch64")

_losses: dict[bytes, int] = {}
_kept: list[Any] = []  # the handler and the one before it, which the system refers to


class _SignalInfo(ctypes.Structure):
    """The start of the C library's siginfo_t, which is the same on all 64-bit Linux systems."""

    _fields_ = (
        ("number", ctypes.c_int),
        ("error", ctypes.c_int),
        ("code", ctypes.c_int),
        ("address", ctypes.c_void_p),
    )


class _SignalAction(ctypes.Structure):
    """The C library's struct sigaction."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


def zero_missing_pages(path: Path) -> None:
    """Replace missing pages by zeros in mappings of the file at `path`, a path without links.

    On other systems than Linux this does nothing.
    """
    if sys.platform != "linux" or os.uname().machine not in _MACHINES:
        return
    _losses.setdefault(os.fsencode(path), 0)
    if not _kept:
        _install()


def missing_page_count(path: Path) -> int:
    """Return how often missing pages of the file at `path` were replaced by zeros so far."""
    return _losses.get(os.fsencode(path), 0)


def _install() -> None:
    """Install the handler of SIGBUS. It passes other bus errors on to the previous handler."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        *(ctypes.c_void_p, ctypes.c_size_t),
        *(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
    )
    before = _SignalAction()

    def handle(number: int, info: Any, context: int) -> None:
        # The fault is in the midst of reading bytes, where running Python is as safe as in any
        # callback; the instruction is repeated on return.
        try:
            found = info.contents
            if found.code == _BUS_ADRERR and _replace(libc, found.address or 0):
                return
        except Exception:  # whatever it is, the error is not ours to handle
            pass
        libc.sigaction(signal.SIGBUS, ctypes.byref(before), None)

    kind = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.POINTER(_SignalInfo), ctypes.c_void_p)
    handler = kind(handle)
    action = _SignalAction(handler=ctypes.cast(handler, ctypes.c_void_p), flags=_SA_SIGINFO)
    _kept.extend((handler, before))
    libc.sigaction(signal.SIGBUS, ctypes.byref(action), ctypes.byref(before))


def _replace(libc: Any, address: int) -> bool:
    """Replace a registered mapping by zeros from the page of `address` on; return whether there was
    one."""
    for line in _maps():
        fields = line.split(b" ", 5)
        start, end = (int(part, 16) for part in fields[0].split(b"-"))
        if not start <= address < end:
            continue
        if fields[4] == b"0":
            return True  # another thread was faster
        name = fields[5].strip().removesuffix(b" (deleted)").replace(b"\\012", b"\n")
        if name not in _losses or not fields[1].startswith(b"r--"):
            return False
        page = address & _PAGE_MASK
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
        _losses[name] += 1
        return bool(libc.mmap(page, end - page, mmap.PROT_READ, flags, -1, 0) == page)
    return False


def _maps() -> list[bytes]:
    """Return the lines of ``/proc/self/maps``."""
    descriptor = os.open("/proc/self/maps", os.O_RDONLY)
    try:
        parts = []
        while part := os.read(descriptor, 1 << 16):
            parts.append(part)
    finally:
        os.close(descriptor)
    return b"".join(parts).splitlines()
