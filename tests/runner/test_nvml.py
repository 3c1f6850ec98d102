"""Memory on devices: read by a scripted NVML, and absent without device or package."""

import mmap
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from memdiag.defaults import NVIDIA_PROVIDERS
from memdiag.runner.nvml import NvmlReader, open_device_reader, uses_nvidia_device
from memdiag.runner.scripts import child
from memdiag.system.loaded_runtime import has_loaded_cuda


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

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.159.04"

    def nvmlDeviceGetMemoryInfo(self, device: dict[int, int | None]) -> Any:
        if None in device:
            raise self.NVMLError("GPU is lost")
        return SimpleNamespace(used=sum(size or 0 for size in device.values()) + 50)

    def nvmlDeviceGetName(self, device: object) -> str:
        return "Scripted"

    def nvmlDeviceGetComputeRunningProcesses(self, device: dict[int, int | None]) -> list[Any]:
        if None in device:
            raise self.NVMLError("GPU is lost")
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in device.items()]


def size_of(nvml: Nvml, pid: int = 7) -> int | None:
    return NvmlReader(nvml, pid).read().process_bytes


def test_the_memory_of_a_process_on_all_devices_is_summed() -> None:
    nvml = Nvml({7: 100, 8: 5}, {7: 20})
    assert size_of(nvml) == 120
    assert size_of(nvml, 8) == 5
    assert NvmlReader(nvml, 7).name == "Scripted, Scripted"


def test_what_nvml_does_not_report_is_not_zero() -> None:
    assert size_of(Nvml({8: 5})) is None  # as in a container
    assert size_of(Nvml()) is None
    assert size_of(Nvml({7: 0})) is None  # as under WSL
    assert size_of(Nvml({7: 0}, {7: 5})) is None
    assert size_of(Nvml({7: None})) is None
    assert size_of(Nvml({7: 5}, {None: 1})) is None  # type: ignore[dict-item] # a device that fails


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        ({8: 5}, "does not list the process, as in a container"),
        ({7: None}, "no size for the process, as on a part of a device (MIG)"),
        ({7: 0}, "with 0 bytes, as under WSL"),
        ({7: 5, None: 1}, "failed (GPU is lost)"),
    ],
)
def test_a_reading_without_a_figure_has_its_reason(
    listed: dict[int | None, int | None], words: str
) -> None:
    processes: dict[Any, int | None] = {7: 100}
    reader = NvmlReader(Nvml(processes), 7)
    assert (reader.read().process_bytes, reader.missing_reason) == (100, "")
    processes.clear()
    processes.update(listed)
    assert reader.read().process_bytes is None
    assert words in reader.missing_reason
    processes.clear()
    processes[7] = 100
    assert (reader.read().process_bytes, reader.missing_reason) == (100, "")


def test_the_memory_of_a_device_is_known_if_there_is_one() -> None:
    assert NvmlReader(Nvml({7: 100, 8: 5}), 7).read().used_bytes == 155
    assert NvmlReader(Nvml({7: 100}, {8: 5}), 7).read().used_bytes is None
    assert NvmlReader(Nvml({None: 5}), 7).read().used_bytes is None  # type: ignore[dict-item] # a device that fails
    assert NvmlReader(Nvml({}), 7).driver == "580.159.04"


@pytest.mark.parametrize(
    ("providers", "uses_device"),
    [
        (("CUDAExecutionProvider", "CPUExecutionProvider"), True),
        (("NvTensorRTRTXExecutionProvider",), True),
        (("CPUExecutionProvider",), False),
        (("OpenVINOExecutionProvider",), False),
    ],
)
def test_providers_of_nvidias_devices_are_known(
    providers: tuple[str, ...], uses_device: bool
) -> None:
    assert uses_nvidia_device(providers) is uses_device


def test_a_process_has_cuda_once_it_has_loaded_the_driver(tmp_path: Path) -> None:
    assert not has_loaded_cuda(os.getpid())
    assert not has_loaded_cuda(2**22 + 1)  # there is no such process
    library = tmp_path / "libcuda.so.1"
    library.write_bytes(bytes(mmap.PAGESIZE))
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        assert has_loaded_cuda(os.getpid())


def test_the_script_of_the_child_knows_the_same_providers() -> None:
    assert child.DEVICE_PROVIDERS == NVIDIA_PROVIDERS


def test_a_reader_is_there_with_package_and_device_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml = Nvml({7: 100})
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    reader = open_device_reader(7)
    assert reader is not None
    assert reader.read().process_bytes == 100
    reader.close()
    assert nvml.open == 0
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(is_there=False))
    assert open_device_reader(7) is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_device_reader(7) is None
