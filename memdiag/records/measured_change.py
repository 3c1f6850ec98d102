"""Memory and latency of a model before and after a change."""

from typing import Literal

from memdiag.records.base import Record

SearchEnd = Literal["completion", "time_limit", "interrupt"]
"""What ended a search: that nothing was left to try, its time limit, or Ctrl-C."""


LatencyClock = Literal["wall", "cpu"]
"""What a comparison of latencies timed: the runs, or the CPU time of their process without the time
in which threads spin. CPU time scatters less on a busy machine."""


class LatencyAt(Record, frozen=True, kw_only=True):
    """The latency with one set of inputs, before and after a change, from interleaved runs.

    Attributes:
        inputs: the sizes and values of the inputs, as text.
        before_s, after_s: medians.
        ratio: median ratio of after to before.
        low, high: 95 % confidence interval of the ratio.
        pairs: the number of pairs of runs.
        clock: what was timed.
    """

    inputs: str
    before_s: float
    after_s: float
    ratio: float
    low: float
    high: float
    pairs: int
    clock: LatencyClock = "wall"


class Figures(Record, frozen=True, kw_only=True):
    """Memory above the baseline, load time and latency of a model: medians of several processes.

    The baseline is a process that imported the runtime and read the inputs.

    Attributes:
        peak_spread_bytes, steady_spread_bytes: largest minus smallest value of the processes.
        lowest_peak_bytes, lowest_steady_bytes: the smallest value; None in older records.
        file_and_shared_bytes: the part of steady memory that is mapped from files or shared.
        latency_s: median over all inputs; None if no run was timed.
        disk_bytes: the size of the model's files.
        retained_bytes: freed memory in steady memory, which ``malloc_trim(0)`` returned after it.
        unread_table_bytes: the part of mapped tables, such as embeddings, that no run had read: it
            is not resident, and other inputs add it.
    """

    peak_bytes: int
    peak_spread_bytes: int
    steady_bytes: int
    steady_spread_bytes: int
    anonymous_bytes: int
    file_and_shared_bytes: int
    load_s: float
    latency_s: float | None
    disk_bytes: int
    lowest_peak_bytes: int | None = None
    lowest_steady_bytes: int | None = None
    retained_bytes: int = 0
    unread_table_bytes: int = 0

    @property
    def most_steady_bytes(self) -> int:
        """The steady memory once all rows of mapped tables were read."""
        return self.steady_bytes + self.unread_table_bytes

    @property
    def most_peak_bytes(self) -> int:
        """The peak, or the memory once all rows of mapped tables were read if it is larger."""
        return max(self.peak_bytes, self.most_steady_bytes)

    @property
    def highest_peak_bytes(self) -> int | None:
        """The largest peak of the processes; None in older records."""
        low = self.lowest_peak_bytes
        return None if low is None else low + self.peak_spread_bytes

    @property
    def highest_steady_bytes(self) -> int | None:
        """The largest steady memory of the processes; None in older records."""
        low = self.lowest_steady_bytes
        return None if low is None else low + self.steady_spread_bytes
