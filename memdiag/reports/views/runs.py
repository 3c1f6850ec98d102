"""The runs after the first: latency, growth from run to run, and what malloc keeps."""

import math
import statistics
from dataclasses import dataclass

from memdiag.records.profile import Profile, Run
from memdiag.units import MIB, format_duration, format_size

_RUNS_FOR_P95 = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When one run was, in seconds since the child was started, and what it took, in a sentence."""

    start_s: float
    end_s: float
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """The runs in figures; `high_s` is the 95th percentile, by nearest rank.

    `high_name` says so, and that it is the largest where there are fewer than 20 runs.
    `moments` are those runs of which the record tells when they were.
    `first_growth_bytes` is what the first of them added to the resident set, `growth_bytes` what
    the others added, None where fewer than two ran. `retained_bytes` is what ``malloc_trim``
    returned after the last run, None where unknown.
    """

    count: int
    first_run_s: float | None
    median_s: float | None
    high_s: float | None
    high_name: str
    first_growth_bytes: int | None
    growth_bytes: int | None
    retained_bytes: int | None
    latency_s: tuple[float, ...]
    rss_above_bytes: tuple[int, ...]
    moments: tuple[Moment, ...]

    @property
    def latency(self) -> str:
        """The latencies in words, or an empty string where nothing ran."""
        parts = []
        if self.median_s is not None and self.high_s is not None:
            median, high = format_duration(self.median_s), format_duration(self.high_s)
            count = f"{self.count} run{'s' if self.count > 1 else ''}"
            parts.append(f"latency median {median}, {self.high_name} {high} over {count}")
        if self.first_run_s is not None:
            parts.append(f"first run {format_duration(self.first_run_s)}")
        return "; ".join(parts)

    @property
    def growth(self) -> str:
        """Which runs grew the resident memory, in MiB; empty where that is not known."""
        if self.growth_bytes is None:
            return ""
        later = f"{_change(self.growth_bytes)} in runs 2 to {self.count}"
        if self.first_growth_bytes is None:
            return f"resident memory: {later}"
        return f"resident memory: {_change(self.first_growth_bytes)} in run 1, {later}"

    @property
    def retained(self) -> str:
        """What ``malloc_trim`` returned, in words; empty where it was not called."""
        if self.retained_bytes is None:
            return ""
        if self.retained_bytes <= 0:
            return "malloc_trim returned nothing afterwards"
        return f"malloc_trim returned {format_size(self.retained_bytes)} afterwards"

    @property
    def sentence(self) -> str:
        """All of it in one line, or an empty string where nothing is known."""
        return "; ".join(part for part in (self.latency, self.growth, self.retained) if part)


def build(profile: Profile) -> Runs:
    """Return the figures of the runs."""
    latency = tuple(run.latency_s for run in profile.runs)
    rss = tuple(run.rss_bytes for run in profile.runs)
    ordered = sorted(latency)
    steady = profile.phase("steady")
    enough = len(ordered) >= _RUNS_FOR_P95
    high = ordered[math.ceil(0.95 * len(ordered)) - 1] if ordered else None
    return Runs(
        count=len(latency),
        first_run_s=profile.first_run_s,
        median_s=statistics.median(latency) if latency else None,
        high_s=high,
        high_name="p95" if enough else "p95 (the largest)",
        first_growth_bytes=rss[0] - steady.start.rss_bytes if rss and steady else None,
        growth_bytes=rss[-1] - rss[0] if len(rss) > 1 else None,
        retained_bytes=profile.allocator_retained_bytes,
        latency_s=latency,
        rss_above_bytes=tuple(value - profile.baseline_rss_bytes for value in rss),
        moments=tuple(
            _moment(number, run, run.end_s)
            for number, run in enumerate(profile.runs, 1)
            if run.end_s is not None
        ),
    )


def _change(size: int) -> str:
    """Return a change of memory in MiB, as the phase table has it."""
    if size == 0:
        return "no change"
    text = f"{size / MIB:+,.1f}"
    return f"{text} MiB" if text.strip("+-0.") else "less than 0.1 MiB"


def _moment(number: int, run: Run, end_s: float) -> Moment:
    peak = run.peak_rss_bytes
    reached = "" if peak is None else f", peak {format_size(peak)}"
    return Moment(
        start_s=end_s - run.latency_s,
        end_s=end_s,
        sentence=f"run {number}: {format_duration(run.latency_s)}{reached}",
    )
