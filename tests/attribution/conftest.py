"""Child processes with known memory content, for the tests that read them."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from memdiag.attribution.intervals import ByteRanges

PRELUDE = """
import ctypes, json, mmap, os, sys
libc = ctypes.CDLL(None)
PR_SET_PDEATHSIG, SIGKILL = 1, 9
libc.prctl(PR_SET_PDEATHSIG, SIGKILL)
libc.malloc.restype = libc.memalign.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.memalign.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1

def address_of(area):
    return ctypes.addressof(ctypes.c_char.from_buffer(area))

out = {}
doomed = []
"""
# The blocks in `doomed` are freed last, so that Python cannot reuse their memory.
WAIT = """
line = (json.dumps(out) + "\\n").encode()
for block in doomed:
    libc.free(block)
os.write(1, line)
libc.pause()
"""


class Started(NamedTuple):
    """A waiting child process.

    Attributes:
        pid: its id.
        out: the dictionary ``out`` of its code. Blocks in its list ``doomed`` are freed last.
        process: the process.
    """

    pid: int
    out: dict[str, Any]
    process: "subprocess.Popen[bytes]"

    def end(self) -> None:
        """Kill the process and wait for its end."""
        self.process.kill()
        self.process.wait()


Start = Callable[..., Started]


@contextmanager
def starting() -> Iterator[Start]:
    """Yield a function (code, environment=None) that runs `code` in a child, which then waits."""
    children = []

    def run(code: str, environment: Mapping[str, str] | None = None) -> Started:
        process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + code + WAIT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        children.append(process)
        assert process.stdout is not None
        return Started(process.pid, json.loads(process.stdout.readline()), process)

    try:
        yield run
    finally:
        for process in children:
            process.kill()
            process.communicate()


def contains(ranges: ByteRanges, address: int) -> bool:
    """Return whether the byte at `address` is in the set `ranges`."""
    return any(start <= address < end for start, end in ranges.tolist())


@pytest.fixture
def start() -> Iterator[Start]:
    """A function (code, environment=None) that runs `code` in a child, which then waits."""
    with starting() as run:
        yield run
