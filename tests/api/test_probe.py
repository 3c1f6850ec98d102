"""What is told of this process around code that takes memory."""

import numpy as np
import pytest

from memdiag.api.probe import SessionProbe
from memdiag.errors import UsageError
from memdiag.runner.observer import PsutilObserver

MIB = 1 << 20
SIZE = 64 * MIB
SLACK = 8 * MIB


def touch(size: int) -> np.ndarray:
    return np.ones(size, np.uint8)


@pytest.mark.measures
def test_what_is_kept_and_what_is_passing_are_told_apart() -> None:
    with SessionProbe() as probe:
        kept = touch(SIZE)
        touch(2 * SIZE)
    figures = probe.result.figures
    assert abs(figures["peak"] - 3 * SIZE) < SLACK
    assert abs(figures["steady"] - SIZE) < SLACK
    assert abs(figures["steady_anonymous"] - SIZE) < SLACK
    assert figures["process_peak"] > figures["peak"]
    assert probe.result.peak_kind == "exact"
    assert kept.size == SIZE


@pytest.mark.measures
def test_a_block_that_keeps_nothing_ends_where_it_began() -> None:
    with SessionProbe() as probe:
        touch(SIZE)
    assert abs(probe.result.figures["steady"]) < SLACK


@pytest.mark.measures
def test_without_a_high_water_mark_the_peak_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memdiag.api.probe.open_observer", PsutilObserver)
    with SessionProbe() as probe:
        kept = touch(SIZE)
    assert probe.result.peak_kind == "sampled"
    assert probe.result.figures["peak"] >= probe.result.figures["steady"] > SIZE - SLACK
    assert "steady_file" not in probe.result.figures
    assert kept.size == SIZE


def test_an_error_in_the_block_is_the_blocks_own() -> None:
    probe = SessionProbe()
    with pytest.raises(ZeroDivisionError), probe:
        raise ZeroDivisionError
    assert "peak" in probe.result.figures


def test_figures_are_there_after_the_block() -> None:
    with pytest.raises(UsageError, match="has not ended yet"), SessionProbe() as probe:
        _ = probe.result
