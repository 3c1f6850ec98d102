"""The memory on a GPU at marks: that of recorded sessions, and what is missing."""

from typing import Any

import pytest

from memdiag.growth.device_growth import device_growth
from memdiag.growth.device_readings import DeviceReadings
from memdiag.records.growth import DeviceMoment, Moment
from memdiag.runner.log import ScriptEvent
from memdiag.runner.nvml import NO_READER_REASON, DeviceReading
from memdiag.units import MIB
from tests.device.raw_records import PAGE, raw_bytes_of, raw_chunks, raw_live, raw_pages
from tests.device.recorded_sessions import NAMES, RECORDED_WITH_CUPTI, events_of, raw
from tests.growth.histories import moment, observed

ARENAS = DeviceMoment(arena_used_bytes=7, arena_free_bytes=8)


def nvml_bytes(mark: Any) -> int | None:
    return next((size for is_own, size in mark["nvml_processes"] if is_own), None)


class Reader:
    """A reader like NVML's, which reads what was recorded at `mark`."""

    name = driver = missing_reason = ""

    def __init__(self) -> None:
        self.mark: Any = None
        self.is_closed = False

    def read(self) -> DeviceReading:
        process_bytes = nvml_bytes(self.mark)
        self.missing_reason = "NVML does not list the process" if process_bytes is None else ""
        return DeviceReading(process_bytes, self.mark["nvml_used"])

    def close(self) -> None:
        self.is_closed = True


def recorded_moments(name: str, *, has_nvml: bool = True) -> list[tuple[Any, DeviceMoment]]:
    """Return each mark of a recording, and the moment that follows from the events until then."""
    data, reader = raw(name), Reader()
    readings = DeviceReadings(reader if has_nvml else None)
    result = []
    for mark in data["marks"]:
        reader.mark = mark
        for event in events_of(mark, data):
            readings.add_event(event)
        result.append((mark, readings.moment(ARENAS)))
    return result


@pytest.mark.parametrize("name", NAMES)
def test_a_moment_has_what_each_source_reported(name: str) -> None:
    data = raw(name)
    for mark, reading in recorded_moments(name):
        assert reading.used_bytes == mark["mem_get_info_used"]
        assert reading.process_bytes == nvml_bytes(mark)
        assert (reading.arena_used_bytes, reading.arena_free_bytes) == (7, 8)
        if not data["cupti"]:
            assert (reading.allocated_bytes, reading.libraries) == (None, None)
            continue
        live = raw_live(data, mark["cupti_ns"])
        assert reading.allocated_bytes == len(raw_pages(live)) * PAGE
        assert reading.libraries is not None
        assert reading.libraries.get("cuBLAS", 0) == raw_bytes_of(live, "libcublas")
        others = sum(record[4] for record in live if "libcudart" not in record[10])
        assert sum(reading.libraries.values()) == others


def kept_until_the_end(name: str, *, has_nvml: bool) -> list[Moment]:
    """Return moments of a session that goes on after its recorded runs, without more memory."""
    runs = [
        reading
        for mark, reading in recorded_moments(name, has_nvml=has_nvml)
        if mark["name"].startswith("run ") or mark["name"] == "steady"
    ]
    runs += [runs[-1]] * 12
    arena_used, arena_free = raw_chunks(raw(name))
    return [
        # The arenas were read at the end only: as if they had been so from the start.
        moment(run, device=DeviceMoment(**{**as_fields(reading), **arenas(arena_used, arena_free)}))
        for run, reading in enumerate(runs, 1)
    ]


def as_fields(reading: DeviceMoment) -> dict[str, Any]:
    return {name: getattr(reading, name) for name in DeviceMoment.__struct_fields__}


def arenas(used: int, free: int) -> dict[str, int]:
    return {"arena_used_bytes": used, "arena_free_bytes": free}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("has_nvml", [True, False], ids=["NVML", "without NVML"])
def test_a_recorded_session_that_goes_on_has_warmed_up(name: str, has_nvml: bool) -> None:
    data = raw(name)
    runs = [mark for mark in data["marks"] if mark["name"].startswith("run ")]
    steady = [mark for mark in data["marks"] if mark["name"] == "steady"][-1]
    growth = device_growth(observed(kept_until_the_end(name, has_nvml=has_nvml)))
    assert growth is not None
    if has_nvml:
        first, last = nvml_bytes(runs[0]) or 0, nvml_bytes(steady) or 0
        assert growth.basis == "process"
    elif name in RECORDED_WITH_CUPTI:
        first, last = (
            len(raw_pages(raw_live(data, mark["cupti_ns"]))) * PAGE for mark in (runs[0], steady)
        )
        assert growth.basis == "allocations"
    else:
        assert growth.basis == "arena"
        first = last = sum(raw_chunks(data))
    has_grown = last - first >= max(MIB, 0.01 * first)
    assert growth.verdict == ("plateau" if has_grown else "flat")
    assert growth.grown_bytes == last - first


def test_sources_that_report_nothing_are_said_and_are_not_zero() -> None:
    readings = DeviceReadings(None)
    assert readings.notes() == []
    fields = {"source": "CUPTI", "reason": "the library libcupti was not found"}
    readings.add_event(ScriptEvent("device_missing", fields))
    assert readings.moment(None) == DeviceMoment()
    prefix, suffix = "of the memory on the GPU", "reported nothing, or not until the end"
    assert readings.notes() == [
        f"{prefix} CUPTI {suffix}: {fields['reason']}",
        f"{prefix} NVML {suffix}: {NO_READER_REASON}",
    ]
    readings.close()


def test_a_process_that_nvml_does_not_list_is_said() -> None:
    reader = Reader()
    reader.mark = {"nvml_processes": [], "nvml_used": 5}
    readings = DeviceReadings(reader)
    assert readings.moment(None).process_bytes is None
    assert readings.notes()[-1].endswith("until the end: NVML does not list the process")
    readings.close()
    assert reader.is_closed
