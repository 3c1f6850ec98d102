"""Waits for what another process does, however slow the machine is."""

import time
from collections.abc import Callable


def wait_until(is_met: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Wait until `is_met` returns something true.

    Raises:
        AssertionError: it did not within `timeout_s` seconds.
    """
    deadline_s = time.monotonic() + timeout_s
    while not is_met():
        assert time.monotonic() < deadline_s, f"not met within {timeout_s} s"
        time.sleep(0.01)
