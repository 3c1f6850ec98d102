"""Memory of a process on NVIDIA devices, through NVML (package nvidia-ml-py), where both are there.

NVML has no high-water mark: a peak is the largest sample. It lists processes by their numbers in
the host's namespace, so that processes of a container may have no entry, and under WSL it lists
them with 0 bytes. A process that uses a device has more than that: its context alone takes some.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from memdiag.records.profile import PhaseName

MIN_DEVICE_PERIOD_S = 0.02
"""A reading takes up to a millisecond: samples of the resident set are not kept from their rate."""

_NVIDIA_PROVIDERS = ("CUDA", "Tensorrt", "NvTensorRTRTX")


class DeviceReader(Protocol):
    """Reads the memory of one process on devices.

    Attributes:
        name: the names of the devices.
    """

    name: str

    def read(self) -> int | None:
        """Return the bytes of the process on all devices; None if they are not available."""
        ...

    def close(self) -> None:
        """End the use of the library."""
        ...


DeviceReaderFactory = Callable[[int, Sequence[str]], DeviceReader | None]


class NvmlReader:
    """Reads the memory of process `pid` on all NVIDIA devices.

    Args:
        nvml: the module ``pynvml``, initialised.
        pid: the process number.

    Raises:
        nvml.NVMLError: the devices cannot be listed.
    """

    def __init__(self, nvml: Any, pid: int) -> None:
        self._nvml = nvml
        self._pid = pid
        count = nvml.nvmlDeviceGetCount()
        self._devices = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        self.name = ", ".join(map(str, map(nvml.nvmlDeviceGetName, self._devices)))

    def read(self) -> int | None:
        """Return the bytes of the process on all devices; None if NVML does not report them."""
        try:
            sizes = [
                process.usedGpuMemory
                for device in self._devices
                for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(device)
                if process.pid == self._pid
            ]
        except self._nvml.NVMLError:
            return None
        return sum(sizes) if sizes and all(sizes) else None

    def close(self) -> None:
        """End the use of NVML."""
        self._nvml.nvmlShutdown()


def open_device_reader(pid: int, providers: Sequence[str]) -> DeviceReader | None:
    """Return the reader of the device memory of process `pid`.

    None without one of NVIDIA's `providers`, the package or a device.
    """
    if not any(name.removesuffix("ExecutionProvider") in _NVIDIA_PROVIDERS for name in providers):
        return None
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


class DeviceSamples:
    """The largest sample of device memory in each phase.

    Args:
        reader: the reader; None without a device.

    Attributes:
        peaks: bytes by phase.
        last_bytes: the last sample; None before the first, or if it was not available.
    """

    def __init__(self, reader: DeviceReader | None) -> None:
        self.reader = reader
        self.peaks: dict[PhaseName, int] = {}
        self.last_bytes: int | None = None
        self._sampled_s = -MIN_DEVICE_PERIOD_S

    def sample(self, now_s: float, phase: PhaseName, *, at_boundary: bool) -> None:
        """Take a sample at `now_s` seconds if one is due, as at each boundary of a phase."""
        if self.reader is None or (
            not at_boundary and now_s < self._sampled_s + MIN_DEVICE_PERIOD_S
        ):
            return
        self._sampled_s = now_s
        self.last_bytes = size = self.reader.read()
        if size is not None:
            self.peaks[phase] = max(size, self.peaks.get(phase, 0))

    @property
    def unread_name(self) -> str | None:
        """The names of the devices if no sample was available; None otherwise."""
        return None if self.reader is None or self.peaks else self.reader.name

    def close(self) -> None:
        """End the use of the library."""
        if self.reader is not None:
            self.reader.close()
