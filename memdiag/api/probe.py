"""Memory of this process while code in it creates and runs a session."""

import gc
import os
import threading
from typing import Self

from memdiag.budgets.figures import growth_since
from memdiag.errors import UsageError
from memdiag.records.probe import Probe
from memdiag.runner.observer import open_observer
from memdiag.runner.scripts.child import trim

PROBE_NOTES = (
    "this process runs other code too: memory of other threads is counted, and memory that was"
    " freed before and is used again is not",
    "phases and copies of weights are not measured; memdiag.profile measures them",
)
_PROBE_NAME = "this process"


class SessionProbe:
    """Context manager that measures the growth of the process: its peak, and at the end.

    Objects must still be referenced when the block ends, or they are not counted. `result` is
    available after the block, also if that raised.

    Raises:
        UsageError: `result` is read before the block has ended.
    """

    def __init__(self) -> None:
        self._result: Probe | None = None

    @property
    def result(self) -> Probe:
        """The figures."""
        if self._result is None:
            raise UsageError("the probed block has not ended yet. Read the figures after it.")
        return self._result

    def __enter__(self) -> Self:
        gc.collect()
        trim()
        self._observer = open_observer(os.getpid())
        first = self._observer.boundary()
        self._before = first.memory
        self._sampler = None if first.peak_rss_bytes is not None else _ResidentSetSampler()
        return self

    def __exit__(self, *error: object) -> None:
        last = self._observer.boundary()
        self._observer.close()
        peak = last.peak_rss_bytes
        if self._sampler is not None:
            peak = max(self._sampler.stop(), last.memory.rss_bytes)
        assert peak is not None
        base = self._before.rss_bytes
        figures = {"peak": peak - base, **growth_since(last.memory, self._before, base)}
        self._result = Probe(
            name=_PROBE_NAME,
            figures=figures | {"process_peak": peak},
            peak_kind="exact" if self._sampler is None else "sampled",
            notes=PROBE_NOTES,
        )


class _ResidentSetSampler:
    """The largest resident set, by samples: for systems without a high-water mark to reset."""

    def __init__(self) -> None:
        self._observer = open_observer(os.getpid())
        self._largest = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_end, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """Stop the sampling thread and return the largest resident set, in bytes."""
        self._ended.set()
        self._thread.join()
        self._observer.close()
        return self._largest

    def _sample_until_end(self) -> None:
        while not self._ended.wait(self._observer.period_s):
            self._largest = max(self._largest, self._observer.sample().rss_bytes)
