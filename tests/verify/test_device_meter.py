"""The memory of a measured process on a GPU, from recorded sessions and their raw records."""

from dataclasses import replace
from pathlib import Path

import pytest

from memdiag.runner.job import Job, SessionConfig
from memdiag.verify.device_meter import DeviceFigures, DeviceMeter
from memdiag.verify.memory import JobError, MeasuredProcess, median_figures
from tests.device.raw_records import PAGE, raw_live, raw_pages
from tests.device.recorded_sessions import NAMES, RECORDED_WITH_CUPTI, events_of, raw
from tests.device.replay import CPU, CUDA, child_marks, measurement_of, recorded_reader

JOB = Job(model=Path("m.onnx"), session=SessionConfig(providers=(CUDA,)), records_device=True)


def metered(name: str, *, other_bytes: int = 0, has_nvml: bool = True) -> DeviceFigures:
    """Return the figures of a recorded session, next to other processes that use as much."""
    data, meter = raw(name), DeviceMeter(JOB)
    for mark, renamed in zip(data["marks"], child_marks(data), strict=True):
        busy = {**mark, "nvml_used": mark["nvml_used"] + other_bytes}
        reader = recorded_reader(busy, data) if has_nvml else None
        for event in events_of(mark, data):
            if event.name == "device_mark":
                event.fields["name"] = renamed
                if event.fields["used_bytes"] is not None:
                    event.fields["used_bytes"] += other_bytes
            meter.add_event(event, 0.0, reader)
    return meter.figures(measurement_of(data))


def raw_peak_bytes(name: str) -> int:
    """Return the peak of the pages that allocations touch, with the context at the next reading."""
    data, peak = raw(name), 0
    for before, mark in zip(data["marks"], data["marks"][1:-1], strict=False):
        context = mark["mem_get_info_used"] - PAGE * len(
            raw_pages(raw_live(data, mark["cupti_ns"]))
        )
        times = [before["cupti_ns"], *(record[0] for record in data["cupti_records"])]
        for time_ns in times:
            if before["cupti_ns"] <= time_ns <= mark["cupti_ns"]:
                pages = len(raw_pages(raw_live(data, time_ns)))
                peak = max(peak, context + PAGE * pages)
    return peak


@pytest.mark.parametrize("name", NAMES)
def test_steady_is_what_is_in_use_after_the_last_run(name: str) -> None:
    figures = metered(name, has_nvml=False)
    assert figures.steady_bytes == raw(name)["marks"][-2]["mem_get_info_used"]
    assert figures.device.total_bytes == raw(name)["marks"][1]["mem_get_info_total"]


@pytest.mark.parametrize("name", RECORDED_WITH_CUPTI)
def test_the_peak_is_exact_with_cupti(name: str) -> None:
    figures = metered(name, has_nvml=False)
    assert figures.is_peak_exact
    assert figures.peak_bytes == raw_peak_bytes(name)


def test_without_cupti_the_peak_is_the_largest_reading() -> None:
    figures = metered("conv_nocupti", has_nvml=False)
    readings = [mark["mem_get_info_used"] for mark in raw("conv_nocupti")["marks"][1:-1]]
    assert not figures.is_peak_exact
    assert figures.peak_bytes == max(readings)


@pytest.mark.parametrize("name", ["conv_default", "conv_nocupti"])
def test_what_other_processes_use_is_not_counted(name: str) -> None:
    alone, busy = metered(name), metered(name, other_bytes=300 << 20)
    assert busy == alone


def test_a_session_without_the_provider_is_not_judged() -> None:
    fallen_back = replace(measurement_of(raw("dense_default")), providers=(CPU,))
    with pytest.raises(JobError, match="created the session without CUDAExecutionProvider"):
        DeviceMeter(JOB).figures(fallen_back)
    with pytest.raises(JobError, match="the memory in use on the GPU was not read"):
        DeviceMeter(JOB).figures(measurement_of(raw("dense_default")))


def test_figures_of_a_gpu_take_the_place_of_those_of_the_host() -> None:
    # What malloc retains on the host is no part of the memory on a GPU.
    host = replace(measurement_of(raw("dense_default")), allocator_retained_bytes=9 << 20)
    processes = [
        MeasuredProcess(host, 0, metered(name, has_nvml=False))
        for name in ("dense_default", "dense_same", "dense_devalloc")
    ]
    figures = median_figures(processes, disk_bytes=1)
    peaks = sorted(process.device.peak_bytes for process in processes if process.device)
    steady = sorted(process.device.steady_bytes for process in processes if process.device)
    assert (figures.peak_bytes, figures.steady_bytes) == (peaks[1], steady[1])
    assert figures.steady_spread_bytes == steady[-1] - steady[0]
    assert figures.anonymous_bytes == steady[1]
    assert (figures.file_and_shared_bytes, figures.retained_bytes) == (0, 0)
    on_host = median_figures([MeasuredProcess(host)], disk_bytes=1)
    assert on_host.steady_bytes != figures.steady_bytes
    assert on_host.retained_bytes == 9 << 20
