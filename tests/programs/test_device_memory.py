"""What a recorded program has on a GPU: recorded sessions, reported by a hook and assembled."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from memdiag.device.ledger import OTHERS_NOTE
from memdiag.programs import events
from memdiag.programs.assemble import assemble_run
from memdiag.programs.device_memory import MAX_SAMPLES, NEIGHBOURS_NOTE
from memdiag.programs.recorded_process import RecordedProcess
from memdiag.programs.recorder import Recorder
from memdiag.records.codec import decode, encode
from memdiag.records.device import Ledger
from memdiag.records.run import ProcessDevice, ProgramRun, SessionDevice, XrayReason
from memdiag.runner.nvml import DeviceReading
from tests.device.raw_records import (
    PAGE,
    raw_bytes_of,
    raw_chunks,
    raw_live,
    raw_mark,
    raw_pages,
)
from tests.device.recorded_sessions import (
    NAMES,
    RECORDED_WITH_CUPTI,
    RECORDED_WITHOUT_CUPTI,
    raw,
)
from tests.device.replay import CUDA
from tests.programs.device_replay import (
    ScriptedReader,
    hook_steps,
    replayed_run,
    send_step,
    xray_at_end,
)
from tests.programs.test_recorder import Hook
from tests.waiting import wait_until

MIB = 1 << 20
WITH_ARENA = [name for name in RECORDED_WITH_CUPTI if raw_chunks(raw(name)) != (0, 0)]


def device_of(run: ProgramRun) -> ProcessDevice:
    (process,) = run.processes
    assert process.device is not None
    return process.device


def ledger_of(run: ProgramRun) -> Ledger:
    ledger = device_of(run).memory.ledger
    assert ledger is not None
    assert ledger.used_bytes == sum(row.bytes for row in ledger.rows)
    return ledger


def labels(ledger: Ledger) -> list[str]:
    return [row.label for row in ledger.rows]


def missing_of(device: ProcessDevice) -> dict[str, str]:
    return {missing.source: missing.reason for missing in device.memory.missing}


@pytest.mark.parametrize("name", WITH_ARENA)
def test_each_owner_is_what_the_raw_records_say(name: str, tmp_path: Path) -> None:
    data, run = raw(name), replayed_run(name, tmp_path)
    device, ledger = device_of(run), ledger_of(run)
    mark = raw_mark(data, "before delete")
    records = raw_live(data, mark["cupti_ns"])
    _, free = raw_chunks(data)
    weights = sum(size for _, size in data["weights"])
    assert (ledger.mark, ledger.used_bytes) == ("end", mark["mem_get_info_used"])
    assert ledger.bytes_of("cublas") == raw_bytes_of(records, "libcublas")
    assert ledger.bytes_of("cudnn") == raw_bytes_of(records, "libcudnn")
    assert ledger.bytes_of("empty_arena") == free
    assert ledger.bytes_of("weights") == weights
    onnxruntime = raw_bytes_of(records, "libcudart")
    assert ledger.bytes_of("weights") + ledger.bytes_of("values") == onnxruntime - free
    assert ledger.bytes_of("runtime") == 0
    pages = len(raw_pages(records)) * PAGE
    assert ledger.bytes_of("context") == mark["mem_get_info_used"] - pages
    assert (device.allocated_bytes, device.weight_bytes) == (pages, weights)
    assert missing_of(device) == {"contents": "memdiag profile compares them"}


@pytest.mark.parametrize("name", NAMES)
def test_creation_and_first_run_of_a_session_are_told_apart(name: str, tmp_path: Path) -> None:
    data = raw(name)
    _, created, first_run, *_ = (mark["mem_get_info_used"] for mark in data["marks"])
    run = replayed_run(name, tmp_path)
    # What the driver reserves is the difference: no other process used the device.
    differences = {mark["nvml_used"] - (mark["mem_get_info_used"] or 0) for mark in data["marks"]}
    assert len(differences) == 1
    assert run.sessions[0].device == SessionDevice(
        creation_bytes=created, first_run_bytes=first_run - created
    )


@pytest.mark.parametrize("name", NAMES)
def test_phases_and_samples_follow_the_marks(name: str, tmp_path: Path) -> None:
    data = raw(name)
    device = device_of(replayed_run(name, tmp_path))
    assert [phase.name for phase in device.memory.phases] == ["session", "first run", "run", "end"]
    peaks = {phase.peak_bytes is None for phase in device.memory.phases}
    assert peaks == {name in RECORDED_WITHOUT_CUPTI}
    sizes = [size for mark in data["marks"][:-1] for is_own, size in mark["nvml_processes"]]
    changes = [size for before, size in zip([0, *sizes], sizes, strict=False) if size != before]
    assert list(device.samples.process_bytes) == changes
    assert device.process_bytes == sizes[-1]
    assert device.peak_process_bytes == max(sizes)
    assert device.memory.device.name == data["device"]["name"]


@pytest.mark.parametrize("name", RECORDED_WITHOUT_CUPTI)
def test_without_cupti_the_rest_is_one_row(name: str, tmp_path: Path) -> None:
    run = replayed_run(name, tmp_path)
    ledger = ledger_of(run)
    in_use, free = raw_chunks(raw(name))
    assert ledger.is_coarse
    assert ledger.bytes_of("empty_arena") == free
    used = raw_mark(raw(name), "before delete")["mem_get_info_used"]
    assert ledger.bytes_of("context") == used - in_use - free
    assert device_of(run).allocated_bytes is None
    assert device_of(run).memory.peak_bytes is None


def test_nvml_is_6_to_12_mib_below_as_the_note_says() -> None:
    for name in NAMES:
        for mark in raw(name)["marks"][1:]:
            ((_, size),) = mark["nvml_processes"]
            assert 6 * MIB < mark["mem_get_info_used"] - size < 12 * MIB, name


def test_after_the_release_context_and_code_are_computed(tmp_path: Path) -> None:
    data = raw("dense_default")
    run = replayed_run("dense_default", tmp_path, is_released=True)
    ledger = ledger_of(run)
    deleted = raw_mark(data, "deleted")
    left = raw_pages(raw_live(data, deleted["cupti_ns"]))
    assert ledger.mark == "run"
    assert ledger.bytes_of("context") == deleted["mem_get_info_used"] - len(left) * PAGE
    assert ledger.bytes_of("unexplained") == 0
    assert "released before" in missing_of(device_of(run))["arena"]


@pytest.mark.parametrize("is_released", [False, True])
def test_an_arena_that_was_not_read_is_not_empty(tmp_path: Path, is_released: bool) -> None:
    data = raw("dense_same")
    run = replayed_run("dense_same", tmp_path, has_xray=False, is_released=is_released)
    ledger = ledger_of(run)
    records = raw_live(data, raw_mark(data, "before delete")["cupti_ns"])
    (row,) = (row for row in ledger.rows if row.owner == "runtime")
    assert (row.label, row.bytes) == (
        "weights, values and arena",
        raw_bytes_of(records, "libcudart"),
    )
    assert not {"weights", "empty_arena", "values"} & {row.owner for row in ledger.rows}
    assert "arena" in missing_of(device_of(run))


def test_weights_of_a_model_that_cannot_be_read_are_not_zero(tmp_path: Path) -> None:
    run = replayed_run("dense_same", tmp_path, has_model=False)
    ledger = ledger_of(run)
    in_use, _ = raw_chunks(raw("dense_same"))
    assert "weights" not in {row.owner for row in ledger.rows}
    (row,) = (row for row in ledger.rows if row.owner == "values")
    assert (row.label, row.bytes) == ("weights, values and copies", in_use)
    assert device_of(run).weight_bytes is None


def test_the_record_survives_being_saved(tmp_path: Path) -> None:
    run = replayed_run("resnet50_default", tmp_path)
    assert decode(encode(run), ProgramRun) == run


class Side:
    """Two processes side by side: this one, with a hook, and a child that does nothing."""

    def __init__(
        self,
        recorder: Recorder,
        child: "subprocess.Popen[bytes]",
        readers: dict[int, ScriptedReader],
    ) -> None:
        self.recorder, self.popen, self.readers = recorder, child, readers
        process = recorder._sampling.watch(child.pid)
        assert process is not None
        self.child: RecordedProcess = process

    def send_child(self, event: str, **fields: Any) -> None:
        """Take an event as one of the child's hook."""
        device = self.child.open_device(self.recorder.open_device_reader)
        taken = events.hook_event({"event": event, **fields})
        assert isinstance(taken, events.DeviceEvent)
        device.add_event(taken, self.recorder.now_s())


@pytest.fixture
def side() -> Iterator[Side]:
    readers: dict[int, ScriptedReader] = {}
    recorder = Recorder(
        takes_xray=False,
        open_device_reader=lambda pid: readers.setdefault(pid, ScriptedReader()),
    )
    with subprocess.Popen(["sleep", "60"]) as child:
        yield Side(recorder, child, readers)
        recorder.close()
        child.kill()


def run_side_by_side(
    side: Side, name: str, folder: Path, *, lists_processes: bool = True, child_ends: bool = False
) -> ProgramRun:
    """Return the record of a program whose child has started to use the GPU before it."""
    data, recorder = raw(name), side.recorder
    child_reader = side.readers.setdefault(side.child.pid, ScriptedReader())
    for mark, step in list(hook_steps(data))[:2]:
        send_step(side.send_child, child_reader, data, mark, step)
    if child_ends:
        side.popen.kill()
        side.popen.wait()
    hook = Hook(recorder)
    if child_ends:
        wait_until(lambda: hook.ask("importing") and side.child.ended_s is not None)
    reader = side.readers.setdefault(os.getpid(), ScriptedReader())
    reader.lists_processes = lists_processes
    hook.create(1, str(folder / "missing.onnx"), CUDA)
    for mark, step in hook_steps(data):
        send_step(hook.ask, reader, data, mark, step)
    recorder.xrays.append(xray_at_end(data, recorder, has_arenas=True))
    hook.close()
    return assemble_run(recorder, ["python", "app.py"], 0, memdiag_version="1")


def own_process(run: ProgramRun) -> ProcessDevice:
    (device,) = (each.device for each in run.processes if each.pid == os.getpid())
    assert device is not None
    return device


def test_of_processes_side_by_side_each_has_its_own_figure(side: Side, tmp_path: Path) -> None:
    data = raw("dense_default")
    run = run_side_by_side(side, "dense_default", tmp_path)
    device = own_process(run)
    mark = raw_mark(data, "before delete")
    ((_, own),) = mark["nvml_processes"]
    ledger = device.memory.ledger
    assert ledger is not None
    assert ledger.used_bytes == ledger.own_bytes == own
    records = raw_live(data, mark["cupti_ns"])
    assert ledger.bytes_of("cublas") == raw_bytes_of(records, "libcublas")
    assert NEIGHBOURS_NOTE in device.memory.notes
    assert OTHERS_NOTE not in ledger.notes
    ((_, created),) = data["marks"][1]["nvml_processes"]
    assert run.sessions[0].device is not None
    assert run.sessions[0].device.creation_bytes == created


def test_side_by_side_without_nvml_only_allocations_are_known(side: Side, tmp_path: Path) -> None:
    data = raw("dense_default")
    run = run_side_by_side(side, "dense_default", tmp_path, lists_processes=False)
    device = own_process(run)
    records = raw_live(data, raw_mark(data, "before delete")["cupti_ns"])
    assert device.memory.ledger is None
    assert device.steady_bytes is None
    assert device.allocated_bytes == len(raw_pages(records)) * PAGE
    assert run.sessions[0].device == SessionDevice(creation_bytes=None, first_run_bytes=None)
    assert missing_of(device)["NVML"] == "NVML does not list the process"


def test_a_process_that_ended_before_does_not_count(side: Side, tmp_path: Path) -> None:
    run = run_side_by_side(side, "dense_default", tmp_path, child_ends=True)
    ledger = own_process(run).memory.ledger
    assert ledger is not None
    mark = raw_mark(raw("dense_default"), "before delete")
    assert ledger.used_bytes == mark["mem_get_info_used"]
    assert NEIGHBOURS_NOTE not in own_process(run).memory.notes


@pytest.fixture
def reader() -> ScriptedReader:
    return ScriptedReader()


@pytest.fixture
def recorder(reader: ScriptedReader) -> Iterator[Recorder]:
    made = Recorder(takes_xray=False, open_device_reader=lambda pid: reader)
    yield made
    made.close()


def test_a_session_that_fell_back_to_the_cpu_has_nothing_on_a_gpu(
    recorder: Recorder, reader: ScriptedReader
) -> None:
    hook, data = Hook(recorder), raw("dense_default")
    send_step(hook.ask, reader, data, data["marks"][0], "start")
    hook.create(1, providers=[CUDA])
    hook.close()
    run = assemble_run(recorder, ["app"], 0, memdiag_version="1")
    assert run.processes[0].device is None
    assert run.sessions[0].device is None


def test_a_reading_that_failed_is_said(recorder: Recorder) -> None:
    hook = Hook(recorder)
    hook.ask("device_missing", source="cudaMemGetInfo", reason="its reading failed")
    hook.create(1, provider=CUDA)
    hook.close()
    device = device_of(assemble_run(recorder, ["app"], 0, memdiag_version="1"))
    assert device.memory.ledger is None
    assert missing_of(device)["cudaMemGetInfo"] == "its reading failed"


def test_another_program_in_the_process_starts_anew(
    recorder: Recorder, reader: ScriptedReader
) -> None:
    data = raw("dense_default")
    hook = Hook(recorder)
    send_step(hook.ask, reader, data, data["marks"][0], "start")
    hook.close()  # exec
    Hook(recorder).close()
    assert recorder.processes[0].device is None
    assert reader.closed == 1


def test_samples_of_a_long_recording_are_thinned(
    recorder: Recorder, reader: ScriptedReader
) -> None:
    hook = Hook(recorder)
    hook.create(1, provider=CUDA)
    device = recorder.processes[0].open_device(recorder.open_device_reader)
    for number in range(3 * MAX_SAMPLES):
        reader.reading = DeviceReading(number + 1, None)
        device.sample(float(number))
    hook.close()
    run = assemble_run(recorder, ["app"], 0, memdiag_version="1")
    samples = device_of(run).samples
    assert len(samples.t_s) <= MAX_SAMPLES + 2
    assert (samples.process_bytes[0], samples.process_bytes[-1]) == (1, 3 * MAX_SAMPLES)


@pytest.mark.parametrize(
    ("reason", "is_before"),
    [("peak", False), ("request", False), ("end", True)],
)
def test_arenas_of_another_moment_than_the_last_reading_are_not_its(
    recorder: Recorder, reader: ScriptedReader, reason: XrayReason, is_before: bool
) -> None:
    hook, data = Hook(recorder), raw("dense_default")
    hook.create(1, provider=CUDA)
    xray = xray_at_end(data, recorder, has_arenas=True)
    for mark, step in hook_steps(data):
        send_step(hook.ask, reader, data, mark, step)
    t_s = xray.t_s if is_before else recorder.now_s()
    recorder.xrays.append(msgspec.structs.replace(xray, reason=reason, t_s=t_s))
    hook.close()
    device = device_of(assemble_run(recorder, ["app"], 0, memdiag_version="1"))
    assert missing_of(device)["arena"] == "there is no X-ray of the end of the process"
    assert device.memory.ledger is not None
    assert device.memory.ledger.bytes_of("empty_arena") == 0


def test_a_defect_leaves_the_record_of_the_host(
    recorder: Recorder, reader: ScriptedReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def device_ledger(*arguments: object) -> None:
        raise ZeroDivisionError("ledger")

    monkeypatch.setattr("memdiag.programs.device_memory.device_ledger", device_ledger)
    hook, data = Hook(recorder), raw("dense_default")
    hook.create(1, provider=CUDA)
    for mark, step in hook_steps(data):
        send_step(hook.ask, reader, data, mark, step)
    hook.close()
    run = assemble_run(recorder, ["app"], 0, memdiag_version="1")
    assert run.processes[0].peak_rss_bytes
    (note,) = device_of(run).memory.notes
    assert "the recording of the GPU failed" in note


def test_a_program_on_the_cpu_loads_nothing_of_devices() -> None:
    program = (
        "import memdiag.api.run, memdiag.programs.assemble, memdiag.reports.run, json, sys;"
        " print(json.dumps([name for name in sys.modules if name.startswith('memdiag.')]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(json.loads(done.stdout))
    assert "memdiag.programs.assemble" in loaded
    assert not {name for name in loaded if name.startswith("memdiag.device")}
    assert not loaded & {
        "memdiag.programs.device_memory",
        "memdiag.programs.recorded_device",
        "memdiag.runner.scripts.device",
    }
