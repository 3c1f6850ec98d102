"""Readings of the memory of a GPU in a process whose sessions use one.

The script of a profile's child reads it (`runner/scripts/device`). CUPTI has to start before the
first call of CUDA. Each such call needs the driver's library, so that CUDA is unused while that is
not loaded. If it is loaded, as after a computation of torch, only cudaMemGetInfo is read.

Where CUPTI takes part, a reading may take milliseconds. Readings after later runs are therefore at
least a second apart, take a thousandth of the time at most, and become rarer with the time.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from importlib.machinery import SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

WITHOUT_CUPTI = "MEMDIAG_RUN_WITHOUT_CUPTI"
"""The variable that is set if no allocations are to be recorded."""

DEVICE_SCRIPT = os.path.join(
    os.path.dirname(os.path.abspath(__file__)), *[os.pardir] * 2, "runner", "scripts", "device.py"
)
RUN_PERIOD_S = 1.0  # between two readings after later runs
MAX_READING_SHARE = 0.001  # of the time, for these readings
MIN_PERIOD_SHARE = 0.01  # of the time since the start: readings and their records stay few
MAX_ALLOCATIONS = 200_000  # that are sent; CUPTI is stopped then
MAX_LOCK_WAIT_S = 1.0


class DeviceMarks:
    """Reads the memory of the device, and sends what it reads to ``memdiag run``.

    Args:
        send: sends an event (`HookChannel.send`).
        cuda_version: the version that onnxruntime was built for; may be empty.
        is_in_use: returns whether a session uses the device now.
    """

    def __init__(
        self, send: Callable[..., None], cuda_version: str, is_in_use: Callable[[], bool]
    ) -> None:
        self._send = send
        self._is_in_use = is_in_use
        self._lock = threading.Lock()
        self._session: int | None = None
        self._sent_allocations = 0
        self._started_s = self._due_s = time.perf_counter()
        self._has_marks = False
        # If this starts late, a reading before the session would take what this process has on the
        # device already for the memory of other processes.
        self._is_late = is_cuda_loaded()
        reason = "CUDA was in use before the first session on the GPU" if self._is_late else ""
        if WITHOUT_CUPTI in os.environ:
            reason = "it was not asked for (no X-rays)"
        recorder_class = _device_script().DeviceRecorder
        self._recorder = recorder_class(self._send_event, cuda_version, no_cupti_reason=reason)

    def mark_before_creation(self) -> None:
        """Read the memory before a session is created."""
        if self._has_marks:
            self.mark("between")
        elif not self._is_late:
            self.mark("start")

    def mark(self, name: str, session: int | None = None) -> None:
        """Read the memory now.

        Args:
            name: the moment.
            session: the number of the session that the moment belongs to; None for others.
        """
        # A handler of a signal may have interrupted another reading of this thread.
        if not self._lock.acquire(timeout=MAX_LOCK_WAIT_S):
            return
        try:
            self._session, self._has_marks = session, True
            began_s = time.perf_counter()
            self._recorder.mark(name, is_alive=self._is_in_use())
            if self._sent_allocations > MAX_ALLOCATIONS:
                count = f"{MAX_ALLOCATIONS:,}"
                self._recorder.stop_allocations(f"it was stopped after {count} allocations")
            ended_s = time.perf_counter()
            self._due_s = ended_s + max(
                RUN_PERIOD_S,
                (ended_s - began_s) / MAX_READING_SHARE,
                (ended_s - self._started_s) * MIN_PERIOD_SHARE,
            )
        finally:
            self._lock.release()

    def mark_later_run(self, session: int, ended_s: float) -> None:
        """Read the memory after a run that ended at `ended_s`, if a reading is due."""
        if ended_s >= self._due_s:
            self.mark("run", session)

    def end(self) -> None:
        """Read the memory for the last time."""
        self.mark("end")
        self._recorder.stop_allocations()

    def _send_event(self, event: str, **fields: Any) -> None:
        if event == "device_mark":
            fields["session"] = self._session
        elif event == "device_allocations":
            self._sent_allocations += len(fields["rows"])
        self._send(event, **fields)


def is_cuda_loaded() -> bool:
    """Return whether this process has loaded the library of NVIDIA's driver."""
    try:
        with open("/proc/self/maps", "rb") as file:
            return b"/libcuda.so" in file.read()
    except OSError:  # not known: CUPTI must not start too late
        return True


def _device_script() -> Any:
    """Return the module of the script, whose folder is not on sys.path."""
    name = f"{__package__}.device"
    if name not in sys.modules:
        module = type(sys)(name)
        SourceFileLoader(name, DEVICE_SCRIPT).exec_module(module)
        sys.modules[name] = module
    return sys.modules[name]
