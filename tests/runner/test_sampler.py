"""Samples of readings that the tests make up: no process, no waiting."""

from types import SimpleNamespace
from typing import Any

import pytest

from memdiag.records.profile import Memory
from memdiag.runner.observer import MemoryReading, ProcessGone, SpanBoundary
from memdiag.runner.sampler import Sampler


def boundary(rss: int) -> SpanBoundary:
    memory = Memory(rss_bytes=rss, anonymous_bytes=rss, file_bytes=0, shared_bytes=0)
    return SpanBoundary(memory, peak_rss_bytes=rss + 1)


def sampler_of(*sizes: int) -> Sampler:
    """Return a sampler whose boundary is 10 bytes and whose samples have `sizes`."""
    samples = iter(MemoryReading(size, size, 0, 0) for size in sizes)
    observer: Any = SimpleNamespace(
        method="proc", period_s=0.1, boundary=lambda: boundary(10), sample=lambda: next(samples)
    )
    return Sampler(lambda pid: observer, 1)


def test_a_sample_is_due_after_half_of_the_period() -> None:
    sampler = sampler_of(20, 30)
    taken = [sampler.sample_if_due(at_s, in_timeline=True) for at_s in (0.04, 0.06, 0.1, 0.12)]
    assert [reading and reading.rss_bytes for reading in taken] == [None, 20, None, 30]
    assert sampler.next_s == pytest.approx(0.22)
    sampling = sampler.sampling(None)
    assert (sampling.count, sampling.period_s, sampling.largest_gap_s) == (2, 0.06, 0.06)


def test_a_reading_outside_of_the_phases_counts_but_is_not_in_the_timeline() -> None:
    sampler = sampler_of(20, 30)
    assert sampler.last_known == SpanBoundary(boundary(10).memory, None)
    sampler.sample_if_due(0.1, in_timeline=True)
    sampler.sample_if_due(0.3, in_timeline=False)
    assert sampler.timeline.samples().rss_bytes == (20,)
    assert sampler.last_known == SpanBoundary(boundary(20).memory, None)
    assert sampler.rss_bytes == 30
    assert sampler.sampling(None).count == 2


def test_a_child_that_has_ended_already_has_no_samples() -> None:
    def make_observer(pid: int) -> Any:
        raise ProcessGone

    sampler = Sampler(make_observer, 1)
    assert not sampler.is_observing
    assert sampler.sample_if_due(1.0, in_timeline=True) is None
    with pytest.raises(ProcessGone):
        sampler.read_boundary()
    sampler.close()
    assert sampler.sampling(None).count == 0
