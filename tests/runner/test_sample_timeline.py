import random

from memdiag.runner import sample_timeline
from memdiag.runner.observer import MemoryReading
from memdiag.runner.sample_timeline import SampleTimeline


def reading(rss: int) -> MemoryReading:
    return MemoryReading(rss, rss - 1, 1)


def test_a_quiet_stretch_keeps_its_first_and_last_sample() -> None:
    timeline = SampleTimeline()
    for step, rss in enumerate([5, 5, 5, 5, 9, 9, 5]):
        timeline.add(float(step), reading(rss))
    samples = timeline.samples()
    assert samples.t_s == (0, 3, 4, 5, 6)
    assert samples.rss_bytes == (5, 5, 9, 9, 5)
    assert samples.anonymous_bytes == (4, 4, 8, 8, 4)


def test_shared_memory_has_a_column_only_where_there_was_any() -> None:
    timeline = SampleTimeline()
    assert timeline.last is None
    timeline.add(0.0, MemoryReading(9, 5, 4, 0))
    assert timeline.samples().shared_bytes == ()
    timeline.add(1.0, MemoryReading(9, 2, 7, 3))
    assert timeline.samples().shared_bytes == (0, 3)
    assert timeline.last is not None
    assert timeline.last.memory.file_bytes == 4


def test_a_long_run_stays_small_and_keeps_its_extremes() -> None:
    limit = sample_timeline._MAX_SAMPLES
    random_source = random.Random(7)
    values = [random_source.randrange(1000, 2000) for _ in range(3 * limit)]
    values[limit // 3] = 5000
    values[limit + 11] = 1
    timeline = SampleTimeline()
    for step, value in enumerate(values):
        timeline.add(step / 1000, reading(value))
    samples = timeline.samples()
    assert len(samples.t_s) <= limit
    assert max(samples.rss_bytes) == 5000
    assert min(samples.rss_bytes) == 1
    assert samples.t_s[0] == 0
    assert samples.t_s[-1] == (len(values) - 1) / 1000
    assert list(samples.t_s) == sorted(samples.t_s)
