"""The memory of a process on a GPU: a part of a profile."""

from collections.abc import Sequence
from typing import Literal

from msgspec import field

from memdiag.records.attribution import CopyKind, Unidentifiable
from memdiag.records.base import Record

DeviceOwner = Literal[
    "context",
    "weights",
    "weight_copies",
    "values",
    "empty_arena",
    "unread_arena",
    "runtime",
    "cublas",
    "cudnn",
    "other_library",
    "libraries_and_rounding",
    "pools",
    "rounding",
    "other_processes",
    "unexplained",
]
LedgerBasis = Literal["exact", "computed", "remainder"]
"""``exact``: reported by the driver or by the arena, or compared byte for byte. ``computed``: from
exact figures, with a rule such as the size of pages. ``remainder``: what the other rows leave of
the sum."""

DeviceSource = Literal["cudaMemGetInfo", "CUPTI", "NVML", "arena", "contents"]


class Device(Record, frozen=True, kw_only=True):
    """A device.

    Attributes:
        name: such as ``NVIDIA H100 80GB HBM3``; empty if it is not known.
        driver: the version of the driver; empty if it is not known.
        total_bytes: its memory as cudaMemGetInfo reports it; None if it does not.
    """

    name: str
    driver: str = ""
    total_bytes: int | None = None


class MissingSource(Record, frozen=True, kw_only=True):
    """A source that reported nothing, or nothing more from some moment on.

    Attributes:
        source: the source.
        reason: why, as a clause: ``the library libcupti was not found``.
        last_mark: the name of the last moment at which it reported; empty if it never did.
    """

    source: DeviceSource
    reason: str
    last_mark: str = ""


def reason_of_source(missing: Sequence[MissingSource], source: DeviceSource) -> str:
    """Return why `source` did not report until the end; empty if it is not among `missing`."""
    return next((item.reason for item in missing if item.source == source), "")


class LedgerRow(Record, frozen=True, kw_only=True):
    """The memory of one owner on the device.

    Attributes:
        owner: the owner. ``weights``: weights as the file has them; exact if contents were
            compared, otherwise as many bytes as the weights have. ``weight_copies``: copies in
            another layout, if contents were compared. ``values``: the other chunks of the arena in
            use: values of runs, the rounding of chunks, and without contents the copies.
            ``runtime``: onnxruntime's allocations outside its arena. ``other_library``: those of
            a library that is neither onnxruntime nor cuBLAS nor cuDNN. ``libraries_and_rounding``:
            all libraries in one row, if CUPTI did not report all allocations.
        label: its name in reports.
        bytes: its size. Only the remainder may be negative.
        basis: how the size is known.
    """

    owner: DeviceOwner
    label: str
    bytes: int
    basis: LedgerBasis


class Ledger(Record, frozen=True, kw_only=True):
    """The memory in use on a device at one moment, by owner.

    Attributes:
        mark: the name of the moment.
        used_bytes: what cudaMemGetInfo reports as used: the sum of all rows.
        rows: the owners.
        is_coarse: whether libraries are one row, as CUPTI did not report all allocations.
        notes: sentences on what the figures contain.
    """

    mark: str
    used_bytes: int
    rows: tuple[LedgerRow, ...]
    is_coarse: bool
    notes: tuple[str, ...] = ()

    @property
    def own_bytes(self) -> int:
        """The memory in use without that of other processes, as far as that is known."""
        return self.used_bytes - self.bytes_of("other_processes")

    def bytes_of(self, owner: DeviceOwner) -> int:
        """Return the bytes of all rows of `owner`."""
        return sum(row.bytes for row in self.rows if row.owner == owner)


class DevicePhase(Record, frozen=True, kw_only=True):
    """The memory of the device between two readings.

    Attributes:
        name: the name of the moment of the second reading, such as ``session`` or ``run``.
        count: the number of intervals of this name that follow each other; the figures are of all.
        duration_s: the time between the readings.
        used_bytes: what cudaMemGetInfo reports at the end; None if it does not.
        added_bytes: the change since the start; None if either is unknown.
        peak_bytes: the exact peak, of all processes as `used_bytes`; None without CUPTI.
        peak_allocated_bytes: the part of the peak that allocations take; None without CUPTI.
    """

    name: str
    count: int = 1
    duration_s: float
    used_bytes: int | None
    added_bytes: int | None
    peak_bytes: int | None
    peak_allocated_bytes: int | None


class DeviceCopy(Record, frozen=True, kw_only=True):
    """One occurrence of a weight's content on the device.

    Attributes:
        weights: the names of all weights with this content.
        kind, layout, parameters: as those of a `memdiag.records.attribution.Copy`.
        bytes: the size.
        address: the address on the device.
        verified_bytes: the bytes that were compared with the model.
        is_stale: whether it is in a free chunk of the arena, where it stays until something is
            written there.
    """

    weights: tuple[str, ...]
    kind: CopyKind
    layout: str
    parameters: dict[str, str]
    bytes: int
    address: int
    verified_bytes: int
    is_stale: bool

    @property
    def end(self) -> int:
        """The address after the last byte."""
        return self.address + self.bytes


class DeviceXray(Record, frozen=True, kw_only=True):
    """The weights in the memory that onnxruntime has on a device, found by their contents.

    Attributes:
        copies: the copies in the order of addresses.
        indistinct: weights that were not searched for.
        absent: the weights without a copy in any known layout, those of equal content together.
        searched_bytes: the size of the memory that was searched, once or again for fused weights.
        copied_bytes: the bytes that were copied from the device, to search and then to compare, in
            all searches.
        duration_s: the time that all searches took, in seconds.
    """

    copies: tuple[DeviceCopy, ...]
    indistinct: tuple[Unidentifiable, ...]
    absent: tuple[tuple[str, ...], ...]
    searched_bytes: int
    copied_bytes: int
    duration_s: float


class DeviceFinding(Record, frozen=True, kw_only=True):
    """One waste on the device, or an option of the provider without effect.

    Its bytes are not resident memory, so that it is no `Finding`.

    Attributes:
        rule, name: code and name of the rule.
        message: one sentence with the measured figure.
        detail: further sentences; empty if the message says all.
        bytes: the measured size of the waste; 0 for options without effect.
        owner: the owner in the ledger if the waste is one region of its memory; None for others.
        provider_options, session_options: what ends it, by name.
    """

    rule: str
    name: str
    message: str
    detail: str = ""
    bytes: int = 0
    owner: DeviceOwner | None = None
    provider_options: dict[str, str] = field(default_factory=dict)
    session_options: dict[str, str] = field(default_factory=dict)


class DeviceTimeline(Record, frozen=True, kw_only=True):
    """What the process has on the device over time, as columns of equal length.

    It is exact: each row is an allocation or a release. Of many rows, those with the extremes are
    kept.

    Attributes:
        t_s: seconds since the start of the child, as in the samples of resident memory.
        allocated_bytes: what allocations take.
        context_bytes: the context and code, with what other processes use, as known at the reading
            that follows; None if the memory was not read there.
    """

    t_s: tuple[float, ...]
    allocated_bytes: tuple[int, ...]
    context_bytes: tuple[int | None, ...]

    def __post_init__(self) -> None:
        if len({len(self.t_s), len(self.allocated_bytes), len(self.context_bytes)}) > 1:
            raise ValueError("the columns of the timeline differ in length")

    def __repr__(self) -> str:
        """Return the number of rows: all of them would fill pages."""
        return f"<DeviceTimeline {len(self.t_s):,} rows>"


class DeviceAllocation(Record, frozen=True, kw_only=True):
    """An allocation on the device.

    Attributes:
        address: the address on the device.
        bytes: the size that was asked for.
        library: the file name of the library that asked; empty if it is not known.
        start_s: when it was made, as in a `DeviceTimeline`.
        end_s: when it was released; None if it was not before the session was deleted.
    """

    address: int
    bytes: int
    library: str
    start_s: float
    end_s: float | None = None


class TensorRTStep(Record, frozen=True, kw_only=True):
    """What TensorRT logs of its memory at one step (``[MemUsageChange]``), in whole MiB.

    Attributes:
        name: the step, such as ``Init CUDA``.
        host_added_bytes, device_added_bytes: what the step added.
        host_bytes, device_bytes: what was in use after it, as TensorRT counts it.
    """

    name: str
    host_added_bytes: int
    device_added_bytes: int
    host_bytes: int
    device_bytes: int


class DeviceMemory(Record, frozen=True, kw_only=True):
    """The memory of a process on a device, which is not a part of the resident set.

    Attributes:
        device: the device.
        ledger: the owners after the last run; None if the memory was not read there.
        peak_ledger: the owners at the exact peak before the session is deleted; its mark is the
            reading that follows. None as for `peak_bytes`.
        phases: what each step added, from the creation of the session on.
        findings: the findings of the rules for devices, the largest first.
        xray: the weights on it after the last run; None if contents were not compared.
        timeline: the memory over time; None without CUPTI.
        allocations: those of the timeline in the order of time; empty without CUPTI, and if there
            are more than 10,000.
        tensorrt_steps: what TensorRT logged of its memory; empty without it.
        failure: for an error of the device, who had its memory then; empty otherwise.
        missing: the sources that reported nothing, or not until the end.
        notes: sentences on what failed because of a defect of memdiag.
    """

    device: Device
    ledger: Ledger | None = None
    peak_ledger: Ledger | None = None
    phases: tuple[DevicePhase, ...] = ()
    findings: tuple[DeviceFinding, ...] = ()
    xray: DeviceXray | None = None
    timeline: DeviceTimeline | None = None
    allocations: tuple[DeviceAllocation, ...] = ()
    tensorrt_steps: tuple[TensorRTStep, ...] = ()
    failure: str = ""
    missing: tuple[MissingSource, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def steady_bytes(self) -> int | None:
        """The memory after the last run; None if it was not read there."""
        return None if self.ledger is None else self.ledger.own_bytes

    @property
    def peak_bytes(self) -> int | None:
        """The exact peak; None without CUPTI for all runs, or if the memory was not read."""
        # The deletion of the session only releases.
        phases = [phase for phase in self.phases if phase.name != "deleted"]
        peaks = [phase.peak_bytes for phase in phases if phase.peak_bytes is not None]
        if self.ledger is None or not peaks or len(peaks) < len(phases):
            return None
        return max(peaks) - self.ledger.bytes_of("other_processes")

    def missing_reason(self, source: DeviceSource) -> str:
        """Return why `source` did not report until the end; empty if it did."""
        return reason_of_source(self.missing, source)
