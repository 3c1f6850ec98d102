"""Memory on devices: read by a scripted NVML, and absent without device, package or provider."""

import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from memdiag.api.profile_record import measurement_notes
from memdiag.runner.device_memory import DeviceSamples, NvmlReader, open_device_reader
from memdiag.runner.job import Job
from memdiag.runner.measured_run import MeasuredRun
from memdiag.units import MIB

CUDA = ("CUDAExecutionProvider", "CPUExecutionProvider")


class Nvml:
    """Two devices with processes, as the module pynvml presents them."""

    class NVMLError(Exception):
        pass

    def __init__(self, *devices: dict[int, int | None], is_there: bool = True) -> None:
        self.devices = devices
        self.is_there = is_there
        self.open = 0

    def nvmlInit(self) -> None:
        if not self.is_there:
            raise self.NVMLError("NVML Shared Library Not Found")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[int, int | None]:
        return self.devices[index]

    def nvmlDeviceGetName(self, device: object) -> str:
        return "Scripted"

    def nvmlDeviceGetComputeRunningProcesses(self, device: dict[int, int | None]) -> list[Any]:
        if None in device:
            raise self.NVMLError("GPU is lost")
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in device.items()]


def test_the_memory_of_a_process_on_all_devices_is_summed() -> None:
    nvml = Nvml({7: 100, 8: 5}, {7: 20})
    assert NvmlReader(nvml, 7).read() == 120
    assert NvmlReader(nvml, 8).read() == 5
    assert NvmlReader(nvml, 7).name == "Scripted, Scripted"


def test_what_nvml_does_not_report_is_not_zero() -> None:
    assert NvmlReader(Nvml({8: 5}), 7).read() is None  # as in a container
    assert NvmlReader(Nvml(), 7).read() is None
    assert NvmlReader(Nvml({7: 0}), 7).read() is None  # as under WSL
    assert NvmlReader(Nvml({7: 0}, {7: 5}), 7).read() is None
    assert NvmlReader(Nvml({7: None}), 7).read() is None
    assert NvmlReader(Nvml({7: 5}, {None: 1}), 7).read() is None  # type: ignore[dict-item] # a device that fails


def test_a_reader_is_there_with_package_device_and_provider_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml = Nvml({7: 100})
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert open_device_reader(7, CUDA[1:]) is None
    assert nvml.open == 0
    reader = open_device_reader(7, CUDA)
    assert reader is not None
    assert reader.read() == 100
    reader.close()
    assert nvml.open == 0
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(is_there=False))
    assert open_device_reader(7, CUDA) is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_device_reader(7, CUDA) is None


class Scripted:
    """A device whose memory rises by 100 MiB at each reading, up to 500 MiB, and falls at last."""

    name = "Scripted"

    def __init__(self) -> None:
        self.size = 0
        self.is_closed = False

    def read(self) -> int | None:
        self.size = min(self.size + 100, 500)
        return self.size * MIB

    def close(self) -> None:
        self.is_closed = True


def test_a_profile_has_the_largest_sample_of_each_phase(fake_job: Callable[..., Job]) -> None:
    device = Scripted()
    asked = []

    def make(pid: int, providers: Sequence[str]) -> Scripted:
        asked.append(tuple(providers))
        return device

    measured = MeasuredRun(fake_job({"run": [{"sleep": 0.1}]}), device=make).run()
    assert asked == [("CPUExecutionProvider",)]
    assert device.is_closed
    assert measured.device is not None
    assert measured.device.peak_bytes == measured.device.steady_bytes == 500 * MIB
    peaks = [phase.peak_device_bytes for phase in measured.phases]
    assert peaks[-1] == 500 * MIB
    assert None not in peaks
    assert peaks == sorted(peaks, key=lambda size: size or 0)


def test_a_profile_says_that_the_memory_on_a_device_is_not_known(
    fake_job: Callable[..., Job],
) -> None:
    job = fake_job({"run": [{"sleep": 0.1}]})
    reader = NvmlReader(Nvml({8: 5}), 7)
    measured = MeasuredRun(job, device=lambda pid, providers: reader).run()
    assert measured.device is None
    assert {phase.peak_device_bytes for phase in measured.phases} == {None}
    notes = " ".join(measurement_notes(measured, job))
    assert "the memory on Scripted is not known: NVML" in notes


def test_a_last_sample_that_is_not_available_is_not_the_one_before() -> None:
    nvml = Nvml({7: 100})
    samples = DeviceSamples(NvmlReader(nvml, 7))
    samples.sample(0.0, "parse", at_boundary=True)
    nvml.devices[0][7] = None
    samples.sample(1.0, "first_run", at_boundary=True)
    assert samples.peaks == {"parse": 100}
    assert samples.last_bytes is None


def test_without_a_device_there_are_no_figures(fake_job: Callable[..., Job]) -> None:
    measured = MeasuredRun(fake_job({}, runs=1)).run()
    assert measured.device is None
    assert {phase.peak_device_bytes for phase in measured.phases} == {None}
