"""The child's reading of its device, with libraries in place of CUDA's and CUPTI's."""

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from memdiag.device.recording_builder import RecordingBuilder
from memdiag.records.device import Device
from memdiag.runner.job import Job
from memdiag.runner.log import ScriptEvent
from memdiag.runner.measured_child import MeasuredChild
from memdiag.runner.scripts import child, device

ALLOCATE, RELEASE = 1, 2


def activity(**fields: Any) -> device.MemoryActivity:
    return device.MemoryActivity(kind=device.MEMORY_ACTIVITY, **fields)


class Cupti:
    """CUPTI as far as the script calls it: records wait until they are flushed into a buffer."""

    def __init__(self, failing: str = "", dropped: int = 0) -> None:
        self.failing, self.dropped = failing, dropped
        self.waiting: list[device.MemoryActivity] = []
        self.enabled: list[int] = []
        self.has_source = False
        self.clock_ns = 1000
        self.buffer: list[device.MemoryActivity] = []
        self.disabled: list[int] = []

    def cuptiActivityRegisterCallbacks(self, requested: Any, completed: Any) -> int:
        self.requested, self.completed = requested, completed
        return 7 * (self.failing == "register")

    def cuptiActivityEnable(self, kind: ctypes.c_int) -> int:
        self.enabled.append(kind.value)
        return 9 * (self.failing == "enable")

    def cuptiActivityDisable(self, kind: ctypes.c_int) -> int:
        self.disabled.append(kind.value)
        return 0

    def cuptiActivityEnableAllocationSource(self, enabled: ctypes.c_uint8) -> int:
        self.has_source = bool(enabled.value)
        return 0

    def cuptiGetTimestamp(self, stamp: Any) -> int:
        self.clock_ns += 1
        stamp._obj.value = self.clock_ns
        return 0

    def cuptiActivityFlushAll(self, flag: ctypes.c_uint32) -> int:
        if not self.waiting:
            return 0
        buffer, size, count = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(99)
        self.requested(ctypes.pointer(buffer), ctypes.pointer(size), ctypes.pointer(count))
        assert buffer.value is not None
        assert buffer.value % device.BUFFER_ALIGNMENT == 0
        assert count.value == 0
        record_size = ctypes.sizeof(device.MemoryActivity)
        for number, record in enumerate(self.waiting):
            ctypes.memmove(buffer.value + number * record_size, ctypes.byref(record), record_size)
        self.read = 0
        # The records point to texts of this process: `waiting` keeps them until they are read.
        self.completed(None, 0, buffer, size, len(self.waiting) * record_size)
        self.waiting = []
        return 0

    def cuptiActivityGetNextRecord(self, buffer: Any, valid: Any, record: Any) -> int:
        record_size = ctypes.sizeof(device.MemoryActivity)
        if self.read >= valid.value:
            return 12  # CUPTI_ERROR_MAX_LIMIT_REACHED
        record._obj.value = buffer.value + self.read
        self.read += record_size
        return 0

    def cuptiActivityGetNumDroppedRecords(self, context: Any, stream: Any, lost: Any) -> int:
        lost._obj.value = self.dropped
        return 0


class Cudart:
    def __init__(self, code: int = 0) -> None:
        self.code = code

    def cudaGetDevice(self, device: Any) -> int:
        device._obj.value = 2
        return 0

    def cudaMemGetInfo(self, free: Any, total: Any) -> int:
        free._obj.value, total._obj.value = 300, 1000
        return self.code


class Cuda:
    """The driver's library, with three devices."""

    def __init__(self, code: int = 0) -> None:
        self.code = code

    def cuDeviceGet(self, device: Any, number: ctypes.c_int) -> int:
        device._obj.value = number.value + 100
        return self.code

    def cuDeviceGetName(self, name: Any, length: int, device: ctypes.c_int) -> int:
        name.value = f"GPU {device.value - 100}"[: length - 1].encode()
        return 0


class Loader:
    """`ctypes.CDLL` of a machine with some libraries, of which only some are loaded already."""

    def __init__(self, **libraries: Any) -> None:
        self.libraries = libraries
        self.opened: list[tuple[str, int | None]] = []

    def __call__(self, name: str, mode: int | None = None) -> Any:
        self.opened.append((name, mode))
        key = os.path.basename(name).partition(".")[0]
        if key not in self.libraries:
            raise OSError(f"{name}: cannot open shared object file")
        return self.libraries[key]


class Recording:
    """A recorder with its events."""

    def __init__(self, loader: Loader, cuda_version: str = "13.0") -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.recorder = device.DeviceRecorder(self.send, cuda_version, loader, ("/nvidia/lib",))

    def send(self, event: str, **fields: Any) -> None:
        self.events.append((event, json.loads(json.dumps(fields))))

    def named(self, name: str) -> list[dict[str, Any]]:
        return [fields for event, fields in self.events if event == name]


def test_the_layout_of_the_record_is_that_of_the_headers() -> None:
    offsets = {name: getattr(device.MemoryActivity, name).offset for name in ("address", "name")}
    assert offsets == {"address": 16, "name": 64}
    assert device.MemoryActivity.pool_bytes.offset == 104
    assert device.MemoryActivity.source.offset == 120
    assert ctypes.sizeof(device.MemoryActivity) == 128


def test_allocations_are_reported_with_size_and_library_before_the_mark() -> None:
    cupti = Cupti()
    recording = Recording(Loader(libcupti=cupti, libcudart=Cudart()))
    assert cupti.enabled == [device.MEMORY_ACTIVITY]
    assert cupti.has_source
    cupti.waiting = [
        activity(operation=RELEASE, memory_kind=3, address=0x200, bytes=5, timestamp=30, stream=1),
        activity(
            operation=ALLOCATE,
            memory_kind=3,
            address=0x100,
            bytes=64,
            timestamp=20,
            stream=4294967295,
            source=b"/usr/lib/libcublas.so.13",
        ),
        device.MemoryActivity(kind=1),  # another activity
    ]
    recording.recorder.mark("session")
    assert [name for name, _ in recording.events] == ["device_allocations", "device_mark"]
    assert recording.events[0][1]["rows"] == [
        [20, ALLOCATE, 3, 0x100, 64, None, None, 0, "libcublas.so.13"],
        [30, RELEASE, 3, 0x200, 5, None, None, 0, ""],
    ]
    mark = recording.events[1][1]
    assert (mark["name"], mark["used_bytes"], mark["is_alive"]) == ("session", 700, True)
    assert mark["cupti_ns"] == cupti.clock_ns
    recording.recorder.mark("run", "inputs 0")
    assert [name for name, _ in recording.events[2:]] == ["device_mark"]


@pytest.mark.parametrize(
    ("libraries", "names"),
    [
        ({"libcudart": Cudart(), "libcuda": Cuda()}, ["GPU 2"]),
        ({"libcudart": Cudart(), "libcuda": Cuda(code=3)}, []),
        ({"libcudart": Cudart()}, []),
        ({"libcuda": Cuda()}, []),
        ({"libcudart": Cudart(), "libcuda": object()}, []),
    ],
    ids=["known", "failed", "no driver", "no runtime", "no function"],
)
def test_the_device_is_named_once_if_cuda_names_it(
    libraries: dict[str, Any], names: list[str]
) -> None:
    recording = Recording(Loader(**libraries))
    recording.recorder.mark("start", is_alive=False)
    assert recording.named("device_name") == []
    recording.recorder.mark("session")
    recording.recorder.mark("run")
    assert [fields["name"] for fields in recording.named("device_name")] == names


def test_cupti_is_not_loaded_if_allocations_are_not_asked_for() -> None:
    loader = Loader(libcupti=Cupti(), libcudart=Cudart())
    events: list[str] = []
    recorder = device.DeviceRecorder(
        lambda event, **fields: events.append(event), "13.0", loader, (), no_cupti_reason="unwanted"
    )
    recorder.mark("session")
    assert not any("cupti" in name for name, _ in loader.opened)
    assert events == ["device_missing", "device_mark"]


def test_asynchronous_allocations_have_their_stream_and_pool() -> None:
    row = device.activity_row(
        activity(is_async=1, stream=7, pool_address=0x9, pool_bytes=512, operation=ALLOCATE)
    )
    assert row[5:8] == [7, 0x9, 512]


def test_cuda_is_not_called_without_a_context_and_only_the_loaded_library_is() -> None:
    loader = Loader(libcupti=Cupti(), libcudart=Cudart())
    recording = Recording(loader)
    recording.recorder.mark("start", is_alive=False)
    assert not any("cudart" in name for name, _ in loader.opened)
    (start,) = recording.named("device_mark")
    assert (start["used_bytes"], start["is_alive"]) == (None, False)
    recording.recorder.mark("session")
    assert loader.opened[-1] == ("libcudart.so.13", os.RTLD_NOLOAD | os.RTLD_NOW)
    recording.recorder.mark("deleted", is_alive=False)  # the context stays
    *_, deleted = recording.named("device_mark")
    assert (deleted["used_bytes"], deleted["is_alive"]) == (700, False)


def test_without_libraries_all_is_missing_and_nothing_is_zero() -> None:
    recording = Recording(Loader())
    recording.recorder.mark("session")
    recording.recorder.mark("run")
    assert [fields["source"] for fields in recording.named("device_missing")] == [
        "CUPTI",
        "cudaMemGetInfo",
    ]
    for mark in recording.named("device_mark"):
        assert (mark["used_bytes"], mark["cupti_ns"]) == (None, None)
        assert mark["epoch_ns"] > 0


@pytest.mark.parametrize(
    ("cupti", "reason"),
    [
        (Cupti(failing="register"), "it failed with error 7"),
        (Cupti(failing="enable"), "it failed with error 9"),
        (object(), "it has no function cuptiActivityRegisterCallbacks, as before CUDA 12.6"),
    ],
)
def test_cupti_that_cannot_start_is_missing_with_the_reason(cupti: Any, reason: str) -> None:
    recording = Recording(Loader(libcupti=cupti, libcudart=Cudart()))
    assert recording.named("device_missing") == [{"source": "CUPTI", "reason": reason}]
    recording.recorder.mark("session")
    assert recording.named("device_mark")[0]["used_bytes"] == 700
    assert recording.named("device_allocations") == []


@pytest.mark.parametrize(
    ("libraries", "reason"),
    [
        ({}, "onnxruntime has not loaded libcudart"),
        ({"libcudart": Cudart()}, "libcudart has no cudaMemcpy or cudaHostRegister"),
    ],
)
def test_a_block_that_cannot_be_filled_has_a_reason(libraries: dict[str, Any], reason: str) -> None:
    recording = Recording(Loader(**libraries))
    recording.recorder.copy([(0x100, 64)])
    assert recording.named("device_block") == [{"address": None, "reason": reason}]
    recording.recorder.end_copies()


class CopyingCudart(Cudart):
    """A runtime whose device has the bytes 0, 1, 2 … at its addresses, below 200."""

    def __init__(self, can_pin: bool = True) -> None:
        super().__init__()
        self.can_pin = can_pin
        self.calls: list[str] = []

    def cudaHostRegister(self, memory: Any, size: Any, flags: Any) -> int:
        self.calls.append("pin")
        return 0 if self.can_pin else 801

    def cudaHostUnregister(self, memory: Any) -> int:
        self.calls.append("unpin")
        return 0

    def cudaGetLastError(self) -> int:
        self.calls.append("clear")
        return 0

    def cudaMemcpy(self, target: Any, source: Any, size: Any, kind: Any) -> int:
        assert kind.value == 2
        start, end = source.value or 0, (source.value or 0) + size.value
        if end > 200:
            return 1
        ctypes.memmove(target, bytes(range(start, end)), size.value)
        return 0


@pytest.mark.parametrize("can_pin", [True, False])
def test_ranges_are_copied_one_after_the_other_into_one_block(can_pin: bool) -> None:
    runtime = CopyingCudart(can_pin)
    recording = Recording(Loader(libcudart=runtime))
    for ranges in ([(10, 3), (100, 2)], [(7, 1)]):
        recording.recorder.copy(ranges)
        fields = recording.named("device_block")[-1]
        content = bytes(byte for at, size in ranges for byte in range(at, at + size))
        assert ctypes.string_at(fields["address"], len(content)) == content
        assert fields["reason"] == ""
    assert len({fields["address"] for fields in recording.named("device_block")}) == 1
    recording.recorder.end_copies()
    assert runtime.calls == ["pin", "unpin"] if can_pin else ["pin", "clear"]


def test_a_copy_that_fails_leaves_no_error_in_the_runtime() -> None:
    runtime = CopyingCudart()
    recording = Recording(Loader(libcudart=runtime))
    recording.recorder.copy([(10, 3), (199, 2)])
    reason = "cudaMemcpy failed with error 1"
    assert recording.named("device_block") == [{"address": None, "reason": reason}]
    assert runtime.calls == ["pin", "clear"]


def test_a_block_takes_no_more_than_it_has() -> None:
    recording = Recording(Loader(libcudart=CopyingCudart()))
    with pytest.raises(ValueError, match="larger than the block"):
        recording.recorder.copy([(0, device.BLOCK_BYTES), (0, 1)])


def test_records_that_cupti_lost_are_said() -> None:
    cupti = Cupti(dropped=4)
    recording = Recording(Loader(libcupti=cupti))
    cupti.waiting = [activity(operation=ALLOCATE)]
    recording.recorder.mark("start", is_alive=False)
    assert recording.named("device_missing") == [{"source": "CUPTI", "reason": "it lost 4 records"}]


def test_records_beyond_what_may_wait_between_two_marks_are_said_to_be_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device, "MAX_WAITING_ROWS", 2)
    cupti = Cupti()
    recording = Recording(Loader(libcupti=cupti))
    for count in (2, 3):
        cupti.waiting = [activity(operation=ALLOCATE) for _ in range(count)]
        recording.recorder.mark("run", is_alive=False)
    (allocations, others) = recording.named("device_allocations")
    assert (len(allocations["rows"]), len(others["rows"])) == (2, 2)
    assert recording.named("device_missing") == [{"source": "CUPTI", "reason": "it lost 1 records"}]


@pytest.mark.parametrize("reason", ["", "it was enough"])
def test_after_a_stop_nothing_is_recorded(reason: str) -> None:
    cupti = Cupti()
    recording = Recording(Loader(libcupti=cupti))
    recording.recorder.stop_allocations(reason)
    recording.recorder.stop_allocations("a second time")
    assert cupti.disabled == [device.MEMORY_ACTIVITY]
    recording.recorder.mark("end", is_alive=False)
    assert recording.named("device_mark")[0]["cupti_ns"] is None
    missing = [{"source": "CUPTI", "reason": reason}] if reason else []
    assert recording.named("device_missing") == missing


def test_a_reading_that_fails_is_missing() -> None:
    recording = Recording(Loader(libcupti=Cupti(), libcudart=Cudart(code=35)))
    recording.recorder.mark("session")
    assert recording.named("device_mark")[0]["used_bytes"] is None
    assert recording.named("device_missing")[0]["reason"] == "it failed with error 35"


@pytest.mark.parametrize(("version", "major"), [("12.8", "12"), ("13.0", "13"), ("", "13")])
def test_the_libraries_are_those_of_onnxruntimes_cuda(version: str, major: str) -> None:
    loader = Loader()
    Recording(loader, version)
    assert [name for name, _ in loader.opened] == [
        f"/nvidia/lib/libcupti.so.{major}",
        f"libcupti.so.{major}",
    ]


def test_every_batch_fits_into_one_event() -> None:
    rows = [[2**63, 1, 3, 2**47, 2**40, None, None, 0, "l" * 100] for _ in range(500)]
    batches = list(device.event_batches(rows))
    assert [row for batch in batches for row in batch] == rows
    assert len(batches) < 40
    for batch in batches:
        fields = {"rows": batch, "event": "device_allocations"}
        line = child.EVENT_MARK + b"0" * 32 + b" " + json.dumps(fields).encode() + b"\n"
        assert len(line) <= child.MAX_EVENT_BYTES
    assert list(device.event_batches([])) == []


def test_packages_of_nvidia_are_looked_for_in_their_folders(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "nvidia" / "cu13" / "lib").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert str(tmp_path / "nvidia" / "cu13" / "lib") in device.nvidia_folders()
    monkeypatch.setattr(sys, "path", [])
    assert device.nvidia_folders() == []


@pytest.mark.parametrize(
    ("generation", "later", "names"),
    [
        (None, [], ["inputs 0", "inputs 0", "inputs 0"]),
        (None, [[], []], ["inputs 0", "inputs 0", "inputs 1"]),
        ({}, [[]], ["call 0", "call 1", "call 2"]),
    ],
)
def test_calls_with_the_same_sizes_share_a_name(
    generation: Any, later: list[Any], names: list[str]
) -> None:
    job = {"generation": generation, "later_feeds": later}
    assert [child.inputs_name(job, call) for call in range(3)] == names


class Channel:
    def send(self, event: str, **fields: Any) -> None:
        raise AssertionError(event)


def test_a_job_that_does_not_ask_for_it_loads_nothing() -> None:
    job = Job(model=Path("m.onnx")).message()
    before = set(sys.modules)
    assert child.device_recorder(Channel(), job, None) is None  # type: ignore[arg-type] # as a channel
    assert set(sys.modules) == before
    child.mark_device(None, "session")


def test_the_script_loads_the_standard_library_only() -> None:
    path = f"import sys; sys.path.insert(0, {child.SCRIPTS_FOLDER!r}); "
    program = path + "import device; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True
    )
    assert "device" in done.stdout.split()
    assert not {"numpy", "onnxruntime", "memdiag"} & set(done.stdout.split())


CUDART = """
#include <stddef.h>
int cudaMemGetInfo(size_t *free, size_t *total) { *free = 300; *total = 1000; return 0; }
"""
DEVICE_ADDRESS = 0x7E0000000000
CUDART_WITH_CONTENTS = r"""
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int last_error;

static int failed(int code) { return last_error = code; }
int cudaGetLastError(void) { int code = last_error; last_error = 0; return code; }
int cudaMemGetInfo(size_t *free, size_t *total) {
  *free = 512u << 20, *total = 1024u << 20;
  return last_error;
}
int cudaHostRegister(void *memory, size_t size, unsigned flags) {
  memset(memory, 0, size);
  return getenv("FAKE_UNPINNABLE") ? failed(801) : 0;
}
int cudaHostUnregister(void *memory) { return getenv("FAKE_UNPINNABLE") ? failed(1) : 0; }

/* The memory of the device is a file, whose allocations have ALLOCATION_BYTES each. */
int cudaMemcpy(void *target, const void *source, size_t size, int kind) {
  uint64_t start = (uint64_t)source - DEVICE_ADDRESS;
  if (kind != 2 || start / ALLOCATION_BYTES != (start + size - 1) / ALLOCATION_BYTES)
    return failed(1);
  int device = open(getenv("FAKE_DEVICE"), O_RDWR);
  ssize_t copied = pread(device, target, size, start);
  close(device);
  return copied == (ssize_t)size ? 0 : failed(1);
}
"""
CUPTI = r"""
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
  uint32_t kind, operation, memory_kind, correlation;
  uint64_t address, bytes, timestamp, pc;
  uint32_t process, device, context, stream;
  const char *name;
  uint32_t is_async, pad;
  struct { uint32_t type, pad; uint64_t address, threshold, size, used; } pool;
  const char *source;
} Memory;

static void (*requested)(uint8_t **, size_t *, size_t *);
static void (*completed)(void *, uint32_t, uint8_t *, size_t, size_t);
static uint64_t now = 1000;

int cuptiActivityRegisterCallbacks(void *first, void *second) {
  requested = first, completed = second;
  return 0;
}
int cuptiActivityEnable(int kind) { return kind == 49 ? 0 : 1; }
int cuptiActivityDisable(int kind) { return kind == 49 ? 0 : 1; }
int cuptiActivityEnableAllocationSource(uint8_t is_on) { return is_on == 1 ? 0 : 1; }
int cuptiGetTimestamp(uint64_t *stamp) { *stamp = ++now; return 0; }
int cuptiActivityFlushAll(uint32_t flag) {
  uint8_t *buffer = NULL;
  size_t size = 0, count = 9;
  Memory memory = {0};
  requested(&buffer, &size, &count);
  if (count != 0 || size < 2 * sizeof memory || (uintptr_t)buffer % 8) return 1;
  memory.kind = 49, memory.operation = 1, memory.memory_kind = 3;
  memory.address = 0x7f0000000000, memory.bytes = 67108864, memory.timestamp = now;
  memory.source = "/cuda/lib/libcublas.so.13";
  memcpy(buffer, &memory, sizeof memory);
  memory.operation = 2, memory.source = NULL;
  memcpy(buffer + sizeof memory, &memory, sizeof memory);
  completed(NULL, 0, buffer, size, 2 * sizeof memory);
  return 0;
}
int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, void **record) {
  uint8_t *next = *record ? (uint8_t *)*record + sizeof(Memory) : buffer;
  if (next + sizeof(Memory) > buffer + valid) return 12;
  *record = next;
  return 0;
}
int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *dropped) {
  *dropped = 0;
  return 0;
}
"""


def compiled(source: str, library: Path, **constants: int) -> Path:
    """Return the shared library of a source in C, with its file name as its SONAME."""
    library.parent.mkdir(parents=True, exist_ok=True)
    defined = [f"-D{name}={value}" for name, value in constants.items()]
    name = f"-Wl,-soname,{library.name}"
    subprocess.run(
        ["cc", "-shared", "-fPIC", name, *defined, "-x", "c", "-o", library, "-"],
        input=source,
        text=True,
        check=True,
    )
    return library


def device_events(job: Job) -> list[ScriptEvent]:
    events: list[ScriptEvent] = []
    measured = MeasuredChild(
        job, on_device_event=lambda event, elapsed_s, reader: events.append(event)
    ).run()
    assert measured.outcome.status == "completed", measured.outcome
    return events


def marks_of(events: list[ScriptEvent]) -> list[Mapping[str, Any]]:
    return [event.fields for event in events if event.name == "device_mark"]


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a compiler")
def test_a_child_reports_its_device_at_each_step(
    fake_job: Callable[..., Job], tmp_path: Path
) -> None:
    runtime = compiled(CUDART, tmp_path / "libcudart.so.13")
    # Found as a package of NVIDIA, next to the runtime that the test has made.
    compiled(CUPTI, tmp_path / "fake_runtime" / "nvidia" / "cu13" / "lib" / "libcupti.so.13")
    script = {"create": [{"load": str(runtime)}], "providers": ["CUDAExecutionProvider"]}
    events = device_events(fake_job(script, runs=2, records_device=True))
    assert [event.name for event in events] == ["device_allocations", "device_mark"] * 6
    rows = [row for event in events[::2] for row in event.fields["rows"]]
    assert rows[0][1:] == [1, 3, 0x7F0000000000, 64 << 20, None, None, 0, "libcublas.so.13"]
    assert rows[1][1:] == [2, 3, 0x7F0000000000, 64 << 20, None, None, 0, ""]
    marks = marks_of(events)
    assert [(mark["name"], mark["inputs"], mark["used_bytes"]) for mark in marks] == [
        ("start", "", None),
        ("session", "", 700),
        ("first run", "inputs 0", 700),
        ("run", "inputs 0", 700),
        ("run", "inputs 0", 700),
        ("deleted", "", 700),
    ]
    assert [mark["is_alive"] for mark in marks] == [False, True, True, True, True, False]
    times = [mark["cupti_ns"] for mark in marks]
    assert times == sorted(times)
    builder = RecordingBuilder()
    for event in events:
        builder.add_event(event)
    recording = builder.recording(Device(name="GPU"))
    assert len(recording.allocations or ()) == len(rows) == 12
    assert recording.mark_after_deletion == recording.marks[-1]


def test_an_error_of_a_run_is_preceded_by_the_memory_then(fake_job: Callable[..., Job]) -> None:
    script = {"run": [{"raise": "out of memory"}], "providers": ["CUDAExecutionProvider"]}
    events: list[ScriptEvent] = []
    job = fake_job(script, records_device=True)
    measured = MeasuredChild(job, on_device_event=lambda event, *_: events.append(event)).run()
    assert measured.outcome.message == "out of memory"
    marks = [(mark["name"], mark["is_alive"]) for mark in marks_of(events)]
    assert marks == [("start", False), ("session", True), ("failed", True)]


def test_an_error_of_the_creation_leaves_no_session(fake_job: Callable[..., Job]) -> None:
    events: list[ScriptEvent] = []
    job = fake_job({"create": [{"raise": "out of memory"}]}, records_device=True)
    MeasuredChild(job, on_device_event=lambda event, *_: events.append(event)).run()
    marks = [(mark["name"], mark["is_alive"]) for mark in marks_of(events)]
    assert marks == [("start", False), ("failed", False)]


def test_the_options_that_the_provider_has_are_reported(fake_job: Callable[..., Job]) -> None:
    options = {"CUDAExecutionProvider": {"b": "1", "a": "0"}, "CPUExecutionProvider": {}}
    script = {"providers": ["CUDAExecutionProvider"], "provider_options": options}
    events = device_events(fake_job(script, runs=1, records_device=True))
    (known,) = (event.fields for event in events if event.name == "device_options")
    assert known == {"provider": "CUDAExecutionProvider", "known": ["a", "b"]}


def test_a_job_without_runs_deletes_its_session_too(fake_job: Callable[..., Job]) -> None:
    script = {"providers": ["CUDAExecutionProvider"]}
    marks = marks_of(device_events(fake_job(script, runs=None, records_device=True)))
    assert [mark["name"] for mark in marks] == ["start", "session", "deleted"]


def test_a_child_without_cuda_reports_that_and_runs_all_the_same(
    fake_job: Callable[..., Job],
) -> None:
    job = fake_job({"providers": ["CUDAExecutionProvider"]}, runs=1, records_device=True)
    marks = marks_of(device_events(job))
    names = ["start", "session", "first run", "run", "deleted"]
    assert [mark["name"] for mark in marks] == names
    assert {mark["used_bytes"] for mark in marks} == {None}


def test_a_session_on_the_cpu_has_no_memory_on_a_device(fake_job: Callable[..., Job]) -> None:
    marks = marks_of(device_events(fake_job({}, runs=1, records_device=True)))
    assert [mark["name"] for mark in marks] == ["start"]


def test_a_child_that_is_not_asked_reports_no_device(fake_job: Callable[..., Job]) -> None:
    assert device_events(fake_job({"providers": ["CUDAExecutionProvider"]}, runs=1)) == []
