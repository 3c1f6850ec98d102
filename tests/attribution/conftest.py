"""Children whose memory is known by construction, for the tests that look into them."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest

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
# What is doomed is freed last: nothing that Python allocates may come to lie in its place.
WAIT = """
line = (json.dumps(out) + "\\n").encode()
for block in doomed:
    libc.free(block)
os.write(1, line)
libc.pause()
"""


class Started(NamedTuple):
    """A child that waits: its id, and what its code left in ``out``.

    Blocks that the code puts in ``doomed`` are freed last.
    """

    pid: int
    out: dict[str, Any]
    process: "subprocess.Popen[bytes]"

    def end(self) -> None:
        """End it, and leave nothing of it behind."""
        self.process.kill()
        self.process.wait()


Start = Callable[..., Started]


@pytest.fixture
def start() -> Iterator[Start]:
    """A function (code, environment=None) that runs `code` in a child, which then waits."""
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

    yield run
    for process in children:
        process.kill()
        process.communicate()
