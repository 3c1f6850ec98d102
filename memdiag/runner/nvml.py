"""Memory of NVIDIA devices through NVML (package nvidia-ml-py), where both are there.

It is read to compare with what the process itself reports, and to know what other processes use.
NVML lists processes by their numbers in the host's namespace, so that processes of a container may
have no entry, and under WSL it lists them with 0 bytes. A process that uses a device has more than
that: its context alone takes some.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from memdiag.defaults import NVIDIA_PROVIDERS

NO_READER_REASON = "the package nvidia-ml-py is not installed, or finds no device"


class DeviceReading(NamedTuple):
    """What NVML reports at one moment.

    Attributes:
        process_bytes: the bytes of the process on all devices; None if they are not available.
        used_bytes: the bytes in use on the device, by all processes, with what the driver reserves;
            None if they are not available, or with several devices: which of them a session uses
            has another number there.
    """

    process_bytes: int | None
    used_bytes: int | None


class DeviceReader(Protocol):
    """Reads the memory of one process on devices, and that of the device.

    Attributes:
        name: the names of the devices.
        driver: the version of the driver; empty if it is not known.
        missing_reason: why the last reading has no figure of the process; empty if it has one.
    """

    name: str
    driver: str
    missing_reason: str

    def read(self) -> DeviceReading:
        """Return the memory now."""
        ...

    def close(self) -> None:
        """End the use of the library."""
        ...


DeviceReaderFactory = Callable[[int], DeviceReader | None]


def uses_nvidia_device(providers: Sequence[str]) -> bool:
    """Return whether one of the execution `providers` is for NVIDIA's devices."""
    return any(name in NVIDIA_PROVIDERS for name in providers)


def missing_size_reason(sizes: Sequence[int | None]) -> str:
    """Return why NVML's sizes of one process on its devices are no figures; empty if they are."""
    if not sizes:
        return "NVML does not list the process, as in a container with its own process numbers"
    if None in sizes:
        return "NVML has no size for the process, as on a part of a device (MIG)"
    if 0 in sizes:
        return "NVML lists the process with 0 bytes, as under WSL"
    return ""


class NvmlReader:
    """Reads the memory of process `pid` on all NVIDIA devices.

    Args:
        nvml: the module ``pynvml``, initialised.
        pid: the process number.

    Attributes:
        name, driver, missing_reason: as in `DeviceReader`.

    Raises:
        nvml.NVMLError: the devices cannot be listed.
    """

    def __init__(self, nvml: Any, pid: int) -> None:
        self._nvml = nvml
        self._pid = pid
        self.missing_reason = ""
        count = nvml.nvmlDeviceGetCount()
        self._devices = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        self.name = ", ".join(map(str, map(nvml.nvmlDeviceGetName, self._devices)))
        self.driver = str(nvml.nvmlSystemGetDriverVersion())

    def read(self) -> DeviceReading:
        """Return the memory now."""
        return DeviceReading(self._process_bytes(), self._used_bytes())

    def close(self) -> None:
        """End the use of NVML."""
        self._nvml.nvmlShutdown()

    def _process_bytes(self) -> int | None:
        try:
            sizes = [
                process.usedGpuMemory
                for device in self._devices
                for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(device)
                if process.pid == self._pid
            ]
        except self._nvml.NVMLError as error:
            self.missing_reason = f"NVML failed ({error})"
            return None
        self.missing_reason = missing_size_reason(sizes)
        return None if self.missing_reason else sum(sizes)

    def _used_bytes(self) -> int | None:
        if len(self._devices) != 1:
            return None
        try:
            used: int = self._nvml.nvmlDeviceGetMemoryInfo(self._devices[0]).used
        except self._nvml.NVMLError:
            return None
        return used


def open_device_reader(pid: int) -> DeviceReader | None:
    """Return the reader of process `pid`; None without the package or a device."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        return NvmlReader(pynvml, pid)
    except pynvml.NVMLError:
        pynvml.nvmlShutdown()
        return None
