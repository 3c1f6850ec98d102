"""The processes of a program: a process and its descendants."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil


class ProcessInfo(NamedTuple):
    """A process.

    Attributes:
        pid: its id.
        parent: the id of its parent.
        command: its command line.
    """

    pid: int
    parent: int
    command: tuple[str, ...]


def process_info(pid: int) -> ProcessInfo | None:
    """Return the state of process `pid`; None if it has ended."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            return ProcessInfo(pid, process.ppid(), tuple(process.cmdline()))
    except psutil.AccessDenied:
        return ProcessInfo(pid, 0, ())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return None


def descendants(pid: int) -> Iterator[int]:
    """Yield the ids of process `pid` and of all processes below it, without this process."""
    pending = [pid]
    while pending:
        current = pending.pop()
        if current == os.getpid():
            continue
        yield current
        pending.extend(_child_processes(current))


def _child_processes(pid: int) -> list[int]:
    """Return the ids of the children of process `pid`; an empty list if it has ended."""
    children: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return children
    for thread in threads:
        # The kernel lists children by the thread that started them.
        with suppress(OSError):
            children += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_bytes().split())
    return children


def catches_signal(pid: int, number: int) -> bool:
    """Return whether process `pid` has a handler for signal `number`; False if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return False
    mask_fields = status.partition(b"\nSigCgt:")[2].split(maxsplit=1)
    return bool(mask_fields) and bool(int(mask_fields[0], 16) >> (number - 1) & 1)


class ProportionalMemory(NamedTuple):
    """Memory of a process with its share of shared pages, in bytes."""

    pss_bytes: int
    swap_bytes: int


def proportional_memory(pid: int) -> ProportionalMemory | None:
    """Return the proportional set and the swap of process `pid`; None if they cannot be read."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_bytes()
    except OSError:
        return None
    fields = {}
    for line in text.splitlines()[1:]:
        name, _, value = line.partition(b":")
        fields[name] = int(value.split()[0]) << 10
    if b"Pss" not in fields:
        return None
    return ProportionalMemory(fields[b"Pss"], fields.get(b"SwapPss", fields.get(b"Swap", 0)))
