from memdiag.runner.observer import MAX_COUNTER_ERROR_BYTES
from memdiag.runner.phase_tracker import PeakAssignment

MB = 1_000_000


def test_a_window_of_its_own_gives_a_span_its_exact_peak() -> None:
    peaks: PeakAssignment[str] = PeakAssignment()
    peaks.add_sample("fold", 500 * MB)
    peaks.add_window([("fold", 0.2)], 1500 * MB)
    assert peaks.peak("fold") == (1500 * MB, "exact")


def test_the_tail_of_a_neighbour_does_not_take_the_mark() -> None:
    peaks: PeakAssignment[str] = PeakAssignment()
    peaks.add_sample("fold", 500 * MB)
    peaks.add_sample("next", 1000 * MB)
    peaks.add_window([("fold", 0.2), ("next", 0.0001)], 1500 * MB)
    assert peaks.peak("fold") == (1500 * MB, "exact")
    assert peaks.peak("next") == (1000 * MB, "sampled")


def test_a_short_span_is_exact_where_the_mark_leaves_nothing_open() -> None:
    peaks: PeakAssignment[str] = PeakAssignment()
    peaks.add_sample("long", 1000 * MB)
    peaks.add_sample("short", 1000 * MB)
    peaks.add_window([("long", 0.2), ("short", 0.0001)], 1000 * MB + MAX_COUNTER_ERROR_BYTES)
    assert peaks.peak("short") == (1000 * MB, "exact")


def test_a_contested_window_is_nobodys() -> None:
    peaks: PeakAssignment[str] = PeakAssignment()
    for key in ("one", "other"):
        peaks.add_sample(key, 500 * MB)
    peaks.add_window([("one", 0.05), ("other", 0.04)], 1500 * MB)
    assert peaks.peak("one") == (500 * MB, "sampled")
    assert peaks.peak("other") == (500 * MB, "sampled")


def test_a_contested_window_below_an_exact_peak_changes_nothing() -> None:
    peaks: PeakAssignment[str] = PeakAssignment()
    peaks.add_window([("one", 0.05)], 1500 * MB)
    peaks.add_window([("one", 0.05), ("other", 0.04)], 1200 * MB)
    assert peaks.peak("one") == (1500 * MB, "exact")


def test_segments_of_the_same_key_count_together() -> None:
    peaks: PeakAssignment[str] = PeakAssignment()
    peaks.add_window([("optimize", 0.05), ("fold", 0.0002), ("optimize", 0.04)], 700 * MB)
    assert peaks.peak("optimize") == (700 * MB, "exact")


def test_without_a_mark_a_peak_is_sampled() -> None:
    peaks: PeakAssignment[str] = PeakAssignment()
    peaks.add_window([("fold", 0.1)], 1500 * MB)
    peaks.add_sample("fold", 900 * MB)
    peaks.add_window([("fold", 0.2)], None)
    assert peaks.peak("fold") == (1500 * MB, "sampled")
