"""Stopping a process while its memory is read."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from memdiag.errors import XrayError


@contextmanager
def paused_process(pid: int) -> Iterator[None]:
    """Stop process `pid` for the duration of the block (SIGSTOP).

    Raises:
        XrayError: the process cannot be stopped.
    """
    try:
        os.kill(pid, signal.SIGSTOP)
    except OSError as error:
        raise XrayError(
            f"process {pid}: cannot be stopped ({error.strerror}). Leave --pause out."
        ) from error
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
