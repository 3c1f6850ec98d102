"""The names of temporary files: ``memdiag-PID-PLACE-…``.

The place is the machine or container in which that process number is valid, so that no other
process takes the file for one that a killed process left (see `memdiag.runner.temporary`).
"""

import os
import platform
import re
import zlib
from functools import cache

OWNED_NAME = re.compile(r"\.?memdiag-(\d+)-(?:([0-9a-f]{8})-)?.+")
"""Names of temporary files, hidden or not: process number and place. Older versions name none."""


def own_prefix() -> str:
    """Return the prefix of the names of this process's temporary files."""
    return f"memdiag-{os.getpid()}-{own_place()}-"


@cache
def own_place() -> str:
    """Return a hash of the host name and the namespace of process numbers, eight hex digits."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return f"{zlib.crc32(f'{platform.node()} {namespace}'.encode()):08x}"
