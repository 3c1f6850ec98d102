"""Names that memdiag gives to its temporary files, and by which it recognises them.

A name is ``memdiag-PID-PLACE-MARK-…``, hidden or not. The place stands for the boot and the
container in which the process number is valid: elsewhere that number belongs to another process.
The mark is a hash of both, 16 hexadecimal digits, so that no file of a user is mistaken for a
temporary file.
"""

import hashlib
import os
import platform
import re
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

_OWNED_NAME = re.compile(
    r"\.?memdiag-(\d{1,10})-([0-9a-f]{8})-([0-9a-f]{16})-[0-9a-z_-]+(?:\.onnx|\.data)?"
)
_BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


class TemporaryFileOwner(NamedTuple):
    """The process that made a temporary file.

    Attributes:
        pid: its process number.
        is_here: whether the process number belongs to this machine and container.
    """

    pid: int
    is_here: bool


def own_prefix() -> str:
    """Return the prefix of the names of this process's temporary files."""
    return _owned_prefix(os.getpid(), _own_place())


def temporary_file_owner(name: str) -> TemporaryFileOwner | None:
    """Return which process made the temporary file `name`; None if memdiag did not name it."""
    match = _OWNED_NAME.fullmatch(name)
    if match is None:
        return None
    pid, place, _ = match.groups()
    if not name.removeprefix(".").startswith(_owned_prefix(int(pid), place)):
        return None
    return TemporaryFileOwner(int(pid), place == _own_place())


def _owned_prefix(pid: int, place: str) -> str:
    mark = hashlib.blake2b(f"{pid} {place}".encode(), digest_size=8, person=b"memdiag").hexdigest()
    return f"memdiag-{pid}-{place}-{mark}-"


@cache
def _own_place() -> str:
    """Return a hash of the host, its boot and the namespace of process numbers."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    with suppress(OSError):
        parts.append(_BOOT_ID_FILE.read_text())
    return hashlib.blake2b(" ".join(parts).encode(), digest_size=4).hexdigest()
