"""What each interval between marks added on the device, and its peak."""

from itertools import pairwise

import pytest

from memdiag.device.phases import device_phases
from memdiag.units import MIB
from tests.device.raw_records import PAGE, raw_live, raw_pages
from tests.device.recorded_sessions import (
    NAMES,
    RECORDED_WITH_CUPTI,
    RECORDED_WITHOUT_CUPTI,
    raw,
    recorded,
)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_phase_added_is_the_difference_of_two_readings(name: str) -> None:
    marks, phases = raw(name)["marks"], device_phases(recorded(name))
    assert [phase.name for phase in phases] == [mark["name"] for mark in marks[1:]]
    assert phases[0].added_bytes is None  # before the context nothing can be read
    for phase, (before, after) in zip(phases[1:], pairwise(marks[1:]), strict=True):
        assert phase.used_bytes == after["mem_get_info_used"]
        assert phase.added_bytes == after["mem_get_info_used"] - before["mem_get_info_used"]
        assert phase.duration_s > 0


@pytest.mark.parametrize("name", RECORDED_WITH_CUPTI)
def test_a_peak_is_that_of_the_allocations_above_context_and_code(name: str) -> None:
    data = raw(name)
    marks = data["marks"]
    for number, phase in enumerate(device_phases(recorded(name)), 1):
        start_ns, end_ns = marks[number - 1]["cupti_ns"], marks[number]["cupti_ns"]
        times = {record[0] for record in data["cupti_records"] if start_ns < record[0] <= end_ns}
        peak = max(len(raw_pages(raw_live(data, time_ns))) * PAGE for time_ns in {start_ns, *times})
        at_end = len(raw_pages(raw_live(data, end_ns))) * PAGE
        assert phase.peak_allocated_bytes == peak
        assert phase.peak_bytes == marks[number]["mem_get_info_used"] - at_end + peak
        assert phase.peak_bytes >= marks[number]["mem_get_info_used"]


def test_a_peak_between_the_marks_is_seen() -> None:
    run = device_phases(recorded("conv_shrink"))[2]
    assert run.name == "run 8"
    assert run.used_bytes is not None
    assert run.peak_bytes == run.used_bytes + 400 * MIB


@pytest.mark.parametrize("name", RECORDED_WITHOUT_CUPTI)
def test_without_cupti_peaks_are_not_known(name: str) -> None:
    assert {phase.peak_bytes for phase in device_phases(recorded(name))} == {None}
