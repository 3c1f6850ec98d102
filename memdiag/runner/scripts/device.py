"""Report the memory of an NVIDIA device from inside the process that uses it.

Loaded for jobs that ask for it, and by the hook of a recorded program once a session asks for a
device. Two libraries are used, and neither is needed:

- libcudart, which has the memory in use on the device. Only the copy that onnxruntime has loaded is
  called, and only once a session uses the device: the call would otherwise create a context. The
  name of the device is libcuda's, and is asked for then, too.
- libcupti, which reports each allocation and release with the library that asked for it. It has to
  start before the first call of CUDA, and takes 12 to 16 MiB on the device.

What a mark says goes to the parent as events without waiting, right before the event of the step at
which the memory is as the mark says: `device_allocations` with what happened since the last mark,
then `device_mark`. A source that is missing is a `device_missing` event, once, and the name of the
device a `device_name` event.

At the end the parent may ask for the contents of the device. They are copied into one small block
of this process, which the parent reads, as often as it asks: neither process ever has all of them.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import mmap
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

DEFAULT_CUDA = "13"
MEMORY_ACTIVITY = 49  # CUPTI_ACTIVITY_KIND_MEMORY2
CUPTI_FUNCTIONS = (
    "cuptiActivityRegisterCallbacks",
    "cuptiActivityEnable",
    "cuptiActivityEnableAllocationSource",
    "cuptiActivityFlushAll",
    "cuptiActivityGetNextRecord",
    "cuptiActivityGetNumDroppedRecords",
    "cuptiGetTimestamp",
)
BUFFER_BYTES = 1 << 20
BUFFER_ALIGNMENT = 8
FLUSH_UNFINISHED = 1  # CUPTI_ACTIVITY_FLAG_FLUSH_FORCED
MAX_BATCH_BYTES = 3500  # of an event's 4096
MAX_WAITING_ROWS = 100_000  # between two marks: they must not fill the memory of the process
MAX_LIBRARY_NAME = 100
MAX_DEVICE_NAME = 256
BLOCK_BYTES = 4 << 20  # twice what a search reads at a time, little next to the process
FROM_DEVICE = 2  # cudaMemcpyDeviceToHost


class MemoryActivity(ctypes.Structure):
    """CUpti_ActivityMemory4: since CUDA 12.6, with the library that asked as the source."""

    _fields_ = (
        ("kind", ctypes.c_uint32),
        ("operation", ctypes.c_uint32),
        ("memory_kind", ctypes.c_uint32),
        ("correlation", ctypes.c_uint32),
        ("address", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("timestamp", ctypes.c_uint64),
        ("program_counter", ctypes.c_uint64),
        ("process", ctypes.c_uint32),
        ("device", ctypes.c_uint32),
        ("context", ctypes.c_uint32),
        ("stream", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("is_async", ctypes.c_uint32),
        ("padding", ctypes.c_uint32),
        ("pool_type", ctypes.c_uint32),
        ("pool_padding", ctypes.c_uint32),
        ("pool_address", ctypes.c_uint64),
        ("pool_threshold", ctypes.c_uint64),
        ("pool_bytes", ctypes.c_uint64),
        ("pool_used_bytes", ctypes.c_uint64),
        ("source", ctypes.c_char_p),
    )


BUFFER_REQUESTED = ctypes.CFUNCTYPE(
    None,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_size_t),
    ctypes.POINTER(ctypes.c_size_t),
)
BUFFER_COMPLETED = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
)


class AllocationLog:
    """The allocations and releases that CUPTI reports.

    Args:
        cupti: the library.
    """

    def __init__(self, cupti: Any) -> None:
        self._cupti = cupti
        self._rows: list[list[Any]] = []
        self._buffers: dict[int, Any] = {}
        self._dropped = 0
        # CUPTI keeps their addresses only.
        self._callbacks = (BUFFER_REQUESTED(self._request), BUFFER_COMPLETED(self._complete))

    def start(self) -> str:
        """Start; return the reason if that is not possible, else an empty text."""
        for function in CUPTI_FUNCTIONS:
            if not hasattr(self._cupti, function):
                return f"it has no function {function}, as before CUDA 12.6"
        codes = (
            self._cupti.cuptiActivityRegisterCallbacks(*self._callbacks),
            self._cupti.cuptiActivityEnable(ctypes.c_int(MEMORY_ACTIVITY)),
            self._cupti.cuptiActivityEnableAllocationSource(ctypes.c_uint8(1)),
        )
        STARTED_LOGS.append(self)
        failed = [code for code in codes if code]
        return f"it failed with error {failed[0]}" if failed else ""

    def time_ns(self) -> int:
        """Return the time on the clock of the rows."""
        stamp = ctypes.c_uint64()
        self._cupti.cuptiGetTimestamp(ctypes.byref(stamp))
        return stamp.value

    def take_rows(self) -> tuple[list[list[Any]], int]:
        """Return what was reported since the last call in the order of time, and what was lost.

        A row has the time, the operation, the kind of memory, the address, the size, the stream and
        the address of the pool of an asynchronous allocation or None, the size of the pool, and
        the library. The loss is a number of rows.
        """
        self._cupti.cuptiActivityFlushAll(ctypes.c_uint32(FLUSH_UNFINISHED))
        rows, self._rows = self._rows, []
        dropped, self._dropped = self._dropped, 0
        return sorted(rows, key=lambda row: row[0]), dropped

    def stop(self) -> None:
        """Record no more, so that CUPTI calls nothing of this process at its end."""
        self._cupti.cuptiActivityDisable(ctypes.c_int(MEMORY_ACTIVITY))
        self._cupti.cuptiActivityFlushAll(ctypes.c_uint32(FLUSH_UNFINISHED))

    def _add_row(self, row: list[Any]) -> None:
        if len(self._rows) < MAX_WAITING_ROWS:
            self._rows.append(row)
        else:
            self._dropped += 1

    def _request(self, buffer: Any, size: Any, max_records: Any) -> None:
        raw = ctypes.create_string_buffer(BUFFER_BYTES + BUFFER_ALIGNMENT)
        address = -(-ctypes.addressof(raw) // BUFFER_ALIGNMENT) * BUFFER_ALIGNMENT
        self._buffers[address] = raw
        buffer[0], size[0], max_records[0] = address, BUFFER_BYTES, 0  # 0: as many as fit

    def _complete(self, context: Any, stream: int, buffer: int, size: int, valid: int) -> None:
        record = ctypes.c_void_p()
        while not self._cupti.cuptiActivityGetNextRecord(
            ctypes.c_void_p(buffer), ctypes.c_size_t(valid), ctypes.byref(record)
        ):
            activity = ctypes.cast(record, ctypes.POINTER(MemoryActivity))[0]
            if activity.kind == MEMORY_ACTIVITY:
                self._add_row(activity_row(activity))
        lost = ctypes.c_size_t()
        self._cupti.cuptiActivityGetNumDroppedRecords(
            ctypes.c_void_p(context), ctypes.c_uint32(stream), ctypes.byref(lost)
        )
        self._dropped += lost.value
        self._buffers.pop(buffer, None)


def activity_row(activity: MemoryActivity) -> list[Any]:
    """Return the record of CUPTI as `AllocationLog.take_rows` describes."""
    source = (activity.source or b"").decode(errors="replace")
    return [
        activity.timestamp,
        activity.operation,
        activity.memory_kind,
        activity.address,
        activity.bytes,
        activity.stream if activity.is_async else None,
        activity.pool_address if activity.is_async else None,
        activity.pool_bytes if activity.is_async else 0,
        os.path.basename(source)[:MAX_LIBRARY_NAME],
    ]


STARTED_LOGS: list[AllocationLog] = []
"""They stay: CUPTI has the addresses of their callbacks."""


class DeviceBlock:
    """Memory of this process, into which memory of the device is copied for the parent to read.

    The pages are pinned by cudaHostRegister, which makes copies faster, and not made by
    cudaHostAlloc: they stay pages that another process can read.

    Args:
        runtime: libcudart.

    Attributes:
        address: the address of the first byte.
    """

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._memory = mmap.mmap(-1, BLOCK_BYTES)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._is_pinned = not self._call(
            "cudaHostRegister", self._pointer, ctypes.c_size_t(BLOCK_BYTES), ctypes.c_uint(0)
        )

    @property
    def _pointer(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.address)

    def fill(self, ranges: Sequence[Sequence[int]]) -> int:
        """Copy each (address, length) of the device to the block, one after the other.

        Returns:
            The error code of CUDA for the first range that cannot be copied; 0 if all were.
        """
        if sum(length for _, length in ranges) > BLOCK_BYTES:
            raise ValueError("the ranges are larger than the block")
        target = self.address
        for address, length in ranges:
            code = self._call(
                "cudaMemcpy",
                ctypes.c_void_p(target),
                ctypes.c_void_p(address),
                ctypes.c_size_t(length),
                ctypes.c_int(FROM_DEVICE),
            )
            if code:
                return code
            target += length
        return 0

    def close(self) -> None:
        """Release the memory, with the contents in it."""
        if self._is_pinned:
            self._call("cudaHostUnregister", self._pointer)
        self._memory.close()

    def _call(self, function: str, *arguments: Any) -> int:
        code: int = getattr(self._runtime, function)(*arguments)
        if code:
            # Otherwise the next call of the runtime that asks for the last error would find this.
            self._runtime.cudaGetLastError()
        return code


class DeviceRecorder:
    """Reports the device at marks.

    Args:
        send: writes an event of a name with fields to the parent.
        cuda_version: the version that onnxruntime was built for, such as ``13.0``; may be empty.
        load: `ctypes.CDLL`.
        folders: where packages of NVIDIA have their libraries.
        no_cupti_reason: why allocations are not recorded; empty to record them.
    """

    def __init__(
        self,
        send: Callable[..., None],
        cuda_version: str,
        load: Callable[..., Any] = ctypes.CDLL,
        folders: Sequence[str] | None = None,
        no_cupti_reason: str = "",
    ) -> None:
        self._send = send
        self._major = cuda_version.split(".")[0] or DEFAULT_CUDA
        self._load = load
        self._folders = nvidia_folders() if folders is None else folders
        self._has_context = False  # asking without one would create it
        self._reported: set[str] = set()
        self._is_named = False
        self._block: DeviceBlock | None = None
        self._allocations = self._start_allocations(no_cupti_reason)

    def mark(self, name: str, inputs: str = "", is_alive: bool = True) -> None:
        """Report the memory of the device now.

        Args:
            name: the name of the moment.
            inputs: names the sizes of the inputs that have just run.
            is_alive: whether a session uses the device.
        """
        self._has_context = self._has_context or is_alive
        if self._has_context and not self._is_named:
            self._is_named = True
            self._report_name()
        used_bytes, total_bytes = self._memory() if self._has_context else (None, None)
        cupti_ns = None if self._allocations is None else self._allocations.time_ns()
        epoch_ns = time.time_ns()
        if self._allocations is not None:
            rows, dropped = self._allocations.take_rows()
            if dropped:
                self._report_missing("CUPTI", f"it lost {dropped} records")
            for batch in event_batches(rows):
                self._send("device_allocations", rows=batch)
        self._send(
            "device_mark",
            name=name,
            inputs=inputs,
            is_alive=is_alive,
            used_bytes=used_bytes,
            total_bytes=total_bytes,
            cupti_ns=cupti_ns,
            epoch_ns=epoch_ns,
        )

    def stop_allocations(self, reason: str = "") -> None:
        """Record no more allocations.

        Args:
            reason: why those that follow are missing; empty at the end.
        """
        if self._allocations is not None:
            self._allocations.stop()
            self._allocations = None
            if reason:
                self._report_missing("CUPTI", reason)

    def copy(self, ranges: Sequence[Sequence[int]]) -> None:
        """Copy ranges of the device into a block, and report where it is, or why there is none.

        Args:
            ranges: address and length of each, together at most `BLOCK_BYTES`.
        """
        try:
            if self._block is None:
                self._block = DeviceBlock(self._loaded_library("libcudart.so." + self._major))
            code = self._block.fill(ranges)
        except OSError:
            self._send("device_block", address=None, reason="onnxruntime has not loaded libcudart")
        except AttributeError:
            reason = "libcudart has no cudaMemcpy or cudaHostRegister"
            self._send("device_block", address=None, reason=reason)
        else:
            reason = f"cudaMemcpy failed with error {code}" if code else ""
            self._send("device_block", address=None if code else self._block.address, reason=reason)

    def end_copies(self) -> None:
        """Release what `copy` has used."""
        if self._block is not None:
            self._block.close()
            self._block = None

    def _start_allocations(self, no_cupti_reason: str) -> AllocationLog | None:
        """Return the log of allocations, started; None without CUPTI."""
        if no_cupti_reason:
            self._report_missing("CUPTI", no_cupti_reason)
            return None
        library = self._loaded_cupti()
        if library is None:
            self._report_missing("CUPTI", "the library libcupti was not found")
            return None
        log = AllocationLog(library)
        reason = log.start()
        if reason:
            self._report_missing("CUPTI", reason)
            return None
        return log

    def _loaded_cupti(self) -> Any:
        name = "libcupti.so." + self._major
        for folder in (*self._folders, ""):
            try:
                return self._load(os.path.join(folder, name))
            except OSError:
                continue
        return None

    def _loaded_library(self, name: str) -> Any:
        """Return a library that the process has loaded.

        Raises:
            OSError: it has not.
        """
        return self._load(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)

    def _report_name(self) -> None:
        """Report the name of the device that this thread uses, if CUDA says it."""
        device = ctypes.c_int()
        name = ctypes.create_string_buffer(MAX_DEVICE_NAME)
        try:
            runtime = self._loaded_library("libcudart.so." + self._major)
            driver = self._loaded_library("libcuda.so.1")
            failed = (
                runtime.cudaGetDevice(ctypes.byref(device))
                or driver.cuDeviceGet(ctypes.byref(device), device)
                or driver.cuDeviceGetName(name, MAX_DEVICE_NAME, device)
            )
        except (OSError, AttributeError):
            return
        if not failed:
            self._send("device_name", name=name.value.decode(errors="replace"))

    def _memory(self) -> tuple[int | None, int | None]:
        """Return the bytes in use on the device and all of its bytes; None if CUDA does not say."""
        try:
            runtime = self._loaded_library("libcudart.so." + self._major)
        except OSError:
            self._report_missing("cudaMemGetInfo", "onnxruntime has not loaded libcudart")
            return None, None
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        code = runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
        if code:
            self._report_missing("cudaMemGetInfo", f"it failed with error {code}")
            return None, None
        return total.value - free.value, total.value

    def _report_missing(self, source: str, reason: str) -> None:
        if source not in self._reported:
            self._reported.add(source)
            self._send("device_missing", source=source, reason=reason)


def nvidia_folders() -> list[str]:
    """Return the folders in which packages of NVIDIA have CUPTI, of CUDA 13 and of 12."""
    package = importlib.util.find_spec("nvidia")
    roots = [] if package is None else list(package.submodule_search_locations or [])
    return [
        os.path.join(root, folder, "lib") for root in roots for folder in ("cu13", "cuda_cupti")
    ]


def event_batches(rows: Sequence[list[Any]]) -> Iterator[list[list[Any]]]:
    """Yield `rows` in lists that fit into one event each."""
    batch: list[list[Any]] = []
    size = 0
    for row in rows:
        length = len(json.dumps(row)) + 2
        if batch and size + length > MAX_BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += length
    if batch:
        yield batch
