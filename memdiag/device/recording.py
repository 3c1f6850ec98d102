"""What a measured process reports of its device. All that memdiag says of one follows from this.

Each source may be missing: CUPTI is a package of its own, NVML lists processes by their numbers on
the host, which a container hides, and the arena's bookkeeping is read from the heap. A figure that
is not available is None, never 0, and `DeviceRecording.missing` says why.
"""

from typing import Literal

from msgspec import field

from memdiag.records.base import Record
from memdiag.records.device import (
    Device,
    DeviceSource,
    DeviceXray,
    MissingSource,
    TensorRTStep,
    reason_of_source,
)
from memdiag.runner.log import ArenaRegion, ArenaReservation

DEVICE_ARENA = "Cuda"
"""onnxruntime's name for the memory of NVIDIA's devices."""

MemoryKind = Literal["device", "array", "static", "managed", "pinned", "pageable", "unknown"]
"""``static``: variables of loaded code, in its pages. ``managed`` memory moves between the device
and the host. ``pinned`` and ``pageable`` memory is the host's."""

AddressRange = tuple[int, int]
"""Start and end (exclusive)."""


class ArenaChunks(Record, frozen=True, kw_only=True):
    """The chunks of one arena of onnxruntime, as its bookkeeping in the heap lists them.

    Attributes:
        memory: onnxruntime's name of the memory, such as ``Cuda``.
        in_use: the address ranges of the chunks in use, adjacent ones joined.
        free: the address ranges of the free chunks, adjacent ones joined.
        largest_free_bytes: the bytes of the largest free chunk; None if it is not known.
    """

    memory: str
    in_use: tuple[AddressRange, ...]
    free: tuple[AddressRange, ...]
    largest_free_bytes: int | None = None


class DeviceMark(Record, frozen=True, kw_only=True):
    """The memory of the device at one moment of the process, at which no model runs.

    Attributes:
        name: the name of the moment, such as ``session``, ``first run`` or ``run``.
        seconds: the time since the start of the recording.
        is_alive: whether the session exists: false before its creation and after its deletion.
        inputs: names the sizes of the inputs that have just run; empty if nothing has.
        used_bytes: what cudaMemGetInfo reports as used on the whole device, by all processes.
        nvml_used_bytes: what NVML reports as used on the whole device. It counts memory that the
            driver reserves, too.
        process_bytes: what NVML reports for the process.
        arenas: the arenas; None if they were not read at this moment.
    """

    name: str
    seconds: float
    is_alive: bool
    inputs: str = ""
    used_bytes: int | None = None
    nvml_used_bytes: int | None = None
    process_bytes: int | None = None
    arenas: tuple[ArenaChunks, ...] | None = None


class AllocationEvent(Record, frozen=True, kw_only=True):
    """An allocation or a release that CUPTI reports (activity MEMORY2).

    Attributes:
        seconds: the time since the start of the recording.
        is_release: whether the memory is released.
        kind: the kind of memory.
        address: the address on the device, or of memory of the host.
        bytes: the size that was asked for. The driver takes whole pages (see `allocations`).
        library: the file name of the library that asked; empty for releases, or if unknown.
        stream: the number of the stream of an asynchronous allocation; None for others.
        pool_address: the address of the memory pool of an asynchronous allocation; None for others.
        pool_bytes: the size of that pool after the event; 0 if it is not reported.
    """

    seconds: float
    is_release: bool
    kind: MemoryKind
    address: int
    bytes: int
    library: str = ""
    stream: int | None = None
    pool_address: int | None = None
    pool_bytes: int = 0


class ModelWeight(Record, frozen=True, kw_only=True):
    """A weight of the model's file.

    Attributes:
        name: its name.
        bytes: its size in the file.
    """

    name: str
    bytes: int


class RequestedSession(Record, frozen=True, kw_only=True):
    """The session of the process: what was asked for, and what onnxruntime made of it.

    Attributes:
        requested_providers: the execution providers that were asked for.
        providers: those of the session; None if no session was created.
        provider_options: the options that were given to the CUDA provider.
        known_options: the names of the options that it has; None if it did not say.
        entries: the options and configuration entries of the session that were given.
        warnings: the first warnings of onnxruntime.
    """

    requested_providers: tuple[str, ...]
    providers: tuple[str, ...] | None
    provider_options: dict[str, str] = field(default_factory=dict)
    known_options: tuple[str, ...] | None = None
    entries: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


class DeviceRecording(Record, frozen=True, kw_only=True):
    """What one process reported of its device, from before the session to after it.

    Attributes:
        device: the device.
        start_epoch_s: the start of the recording, in seconds since 1970.
        marks: the readings, in the order of time.
        allocations: the allocations and releases in the order of time; None without CUPTI.
        allocations_end_s: the time of the last mark before CUPTI lost some of them; None if they
            are complete.
        regions: the regions of all arenas by the log, in the order of time; None without the log.
        reservations: what arenas of devices reserved outside their regions, by the log.
        tensorrt_steps: what TensorRT logged of its memory.
        weights: the weights of the model.
        session: its session; None if it is not known.
        xray: its weights by their contents, at `mark_at_rest`; None if contents were not compared.
        missing: the sources that reported nothing, or not until the end.
    """

    device: Device
    start_epoch_s: float
    marks: tuple[DeviceMark, ...]
    allocations: tuple[AllocationEvent, ...] | None
    allocations_end_s: float | None = None
    regions: tuple[ArenaRegion, ...] | None = ()
    reservations: tuple[ArenaReservation, ...] = ()
    tensorrt_steps: tuple[TensorRTStep, ...] = ()
    weights: tuple[ModelWeight, ...] = ()
    session: RequestedSession | None = None
    xray: DeviceXray | None = None
    missing: tuple[MissingSource, ...] = ()

    @property
    def weight_bytes(self) -> int:
        """The bytes of all weights of the model."""
        return sum(weight.bytes for weight in self.weights)

    @property
    def device_regions(self) -> tuple[ArenaRegion, ...]:
        """The regions of the arena in the memory of the device."""
        return tuple(region for region in self.regions or () if region.memory == DEVICE_ARENA)

    def has_allocations_at(self, mark: DeviceMark) -> bool:
        """Return whether all allocations and releases until `mark` are known."""
        if self.allocations is None:
            return False
        return self.allocations_end_s is None or mark.seconds <= self.allocations_end_s

    def regions_opened_between(self, start: DeviceMark, end: DeviceMark) -> list[ArenaRegion]:
        """Return the regions by which the device's arena grew between two marks."""
        return [
            region
            for region in self.device_regions
            if start.seconds < region.epoch_s - self.start_epoch_s <= end.seconds
        ]

    @property
    def mark_at_rest(self) -> DeviceMark | None:
        """The last mark at which the session exists and the arenas were read; None if none is."""
        marks = [mark for mark in self.marks if mark.is_alive and mark.arenas is not None]
        return marks[-1] if marks else None

    @property
    def last_mark_in_use(self) -> DeviceMark | None:
        """The last mark at which the session exists and the memory was read; None if none is."""
        marks = [mark for mark in self.marks if mark.is_alive and mark.used_bytes is not None]
        return marks[-1] if marks else None

    @property
    def mark_after_deletion(self) -> DeviceMark | None:
        """The first mark after the last session was deleted; None if there is none."""
        in_use = [index for index, mark in enumerate(self.marks) if mark.is_alive]
        after = self.marks[in_use[-1] + 1 :] if in_use else ()
        return after[0] if after else None

    def missing_reason(self, source: DeviceSource) -> str:
        """Return why `source` did not report until the end; empty if it did."""
        return reason_of_source(self.missing, source)


def chunk_bytes(ranges: tuple[AddressRange, ...]) -> int:
    """Return the bytes of address `ranges` that do not overlap."""
    return sum(end - start for start, end in ranges)
