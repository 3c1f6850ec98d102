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
    """Context manager that measures the growth of the process at its peak and at the end.

    Objects that are no longer referenced when the block ends are not counted. `result` is
    available after the block, even if the block raised an error.

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
        first_boundary = self._observer.boundary()
        self._before = first_boundary.memory
        self._sampler = None if first_boundary.peak_rss_bytes is not None else _ResidentSetSampler()
        return self

    def __exit__(self, *error: object) -> None:
        last_boundary = self._observer.boundary()
        self._observer.close()
        peak_bytes = last_boundary.peak_rss_bytes
        if self._sampler is not None:
            peak_bytes = max(self._sampler.stop(), last_boundary.memory.rss_bytes)
        assert peak_bytes is not None
        base_bytes = self._before.rss_bytes
        figures = {
            "peak": peak_bytes - base_bytes,
            **growth_since(last_boundary.memory, self._before, base_bytes),
        }
        self._result = Probe(
            name=_PROBE_NAME,
            figures=figures | {"process_peak": peak_bytes},
            peak_kind="exact" if self._sampler is None else "sampled",
            notes=PROBE_NOTES,
        )


class _ResidentSetSampler:
    """The largest sampled resident set, for systems without a high-water mark that can be reset."""

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
