"""A profile of a session on a device, with a runtime and libraries that tests have made."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import onnx
import psutil
import pytest
from onnx import TensorProto, helper

import memdiag
from memdiag.api import device_watch
from memdiag.api.device_watch import DeviceWatch, device_memory
from memdiag.device.ledger import CUPTI_NOTE
from memdiag.device.recording_builder import RecordingBuilder
from memdiag.errors import XrayError
from memdiag.model.model_file import open_model
from memdiag.records.attribution import DeviceArena
from memdiag.records.device import DeviceMemory, DeviceXray
from memdiag.records.profile import Profile
from memdiag.runner.job import Job
from tests.device.recorded_sessions import failed_in_last_run, recorded, with_loss_after
from tests.reports.gpus import XRAY
from tests.runner.conftest import RUNTIME
from tests.runner.test_device_script import CUDART, CUPTI, compiled

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
ON_DEVICE = {"available": [CUDA, CPU], "providers": [CUDA, CPU]}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", "x", "y")], "g", values[:1], values[1:])
    onnx.save(helper.make_model(graph), tmp_path / "relu.onnx")
    return tmp_path / "relu.onnx"


def profile(model: Path, script: Mapping[str, Any], **options: Any) -> Profile:
    folder = model.parent / "fake_runtime"
    folder.mkdir(exist_ok=True)
    (folder / "onnxruntime.py").write_text(RUNTIME)
    variables = {"PYTHONPATH": str(folder), "FAKE_RUNTIME": json.dumps(script)}
    return memdiag.profile(
        model, providers=[CUDA, CPU], environment=variables, **{"runs": 2, **options}
    )


def device_of(profile: Profile) -> DeviceMemory:
    assert profile.device is not None
    return profile.device


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a compiler")
@pytest.mark.parametrize("xray", ["steady", "none"])
def test_a_profile_has_what_the_child_reports(model: Path, xray: str) -> None:
    folder = model.parent / "fake_runtime"
    runtime = compiled(CUDART, model.parent / "libcudart.so.13")
    compiled(CUPTI, folder / "nvidia" / "cu13" / "lib" / "libcupti.so.13")
    script = {**ON_DEVICE, "create": [{"load": str(runtime)}]}
    device = device_of(profile(model, script, xray=xray))
    assert device.ledger is not None
    assert device.ledger.used_bytes == 700
    assert device.device.total_bytes == 1000
    assert [phase.name for phase in device.phases] == ["session", "first run", "run", "deleted"]
    assert device.phases[2].count == 2
    # Each mark of the library flushes an allocation of 64 MiB and its release.
    if xray == "none":
        assert device.timeline is None
        assert device.missing_reason("CUPTI") == "it was not asked for (--xray none)"
    else:
        assert device.timeline is not None
        assert max(device.timeline.allocated_bytes) == 64 << 20
    assert device.missing_reason("NVML")


def test_a_provider_that_was_not_used_is_a_finding_and_no_note(model: Path) -> None:
    made = profile(model, {"available": [CUDA, CPU], "providers": [CPU]})
    (finding,) = device_of(made).findings
    assert finding.name == "provider-fallback"
    assert device_of(made).ledger is None
    assert not any("without CUDA" in note for note in made.notes)


def test_an_error_for_lack_of_memory_is_explained(model: Path) -> None:
    message = "Available memory of 1048576 is smaller than requested bytes of 2097152"
    made = profile(model, {**ON_DEVICE, "run": [{"raise": message}]})
    assert made.outcome.message.startswith("Available memory")
    assert device_of(made).failure.startswith("onnxruntime asked for 2.0 MiB where gpu_mem_limit")


def arenas_after_failure(model: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    """Return the memory of a child whose run failed, and the processes whose arenas were read."""
    arena = DeviceArena(
        device="Cuda",
        used_bytes=1 << 20,
        slack_bytes=3 << 20,
        largest_slack_bytes=2 << 20,
        used_ranges=((1 << 30, (1 << 30) + (1 << 20)),),
        slack_ranges=((2 << 30, (2 << 30) + (3 << 20)),),
    )
    pids: list[int] = []

    def read(pid: int) -> tuple[DeviceArena, ...]:
        assert psutil.pid_exists(pid)
        pids.append(pid)
        return (arena,)

    monkeypatch.setattr(device_watch, "read_device_arenas", read)
    message = "Failed to allocate memory for requested buffer of size 4194304"
    return device_of(profile(model, {**ON_DEVICE, "run": [{"raise": message}]}, **options)), pids


def test_the_arenas_of_a_failed_run_are_read_while_the_child_waits(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, pids = arenas_after_failure(model, monkeypatch)
    assert len(pids) == 1
    assert "the largest had 2.0 MiB once the run had released its values." in device.failure
    assert not device.missing_reason("arena")


def test_without_an_xray_the_arenas_of_a_failed_run_are_not_read(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, pids = arenas_after_failure(model, monkeypatch, xray="none")
    assert pids == []
    assert device.missing_reason("arena") == "there is no X-ray"
    assert "No free chunk of its arena could take it." in device.failure


def test_what_cupti_reported_before_a_loss_is_kept() -> None:
    recording = recorded("dense_default")
    elapsed_s = [mark.seconds for mark in recording.marks]
    whole = device_memory(recording, elapsed_s)
    memory = device_memory(with_loss_after(recording, "session"), elapsed_s, "out of memory")
    assert memory.phases[0] == whole.phases[0]
    assert memory.phases[0].peak_bytes is not None
    assert {phase.peak_allocated_bytes for phase in memory.phases[1:]} == {None}
    assert [phase.used_bytes for phase in memory.phases] == [
        phase.used_bytes for phase in whole.phases
    ]
    assert memory.ledger is not None
    assert memory.ledger.is_coarse
    assert "it lost 4 records" in memory.ledger.notes[0]
    assert CUPTI_NOTE in memory.ledger.notes  # it runs until the end
    assert memory.peak_bytes is None
    assert memory.timeline is not None
    assert whole.timeline is not None
    assert memory.timeline.t_s[-1] < whole.timeline.t_s[-1]
    assert "Before the error" not in memory.failure


def test_a_loss_while_the_session_is_deleted_costs_nothing_before() -> None:
    recording = recorded("dense_default")
    elapsed_s = [mark.seconds for mark in recording.marks]
    last_run = recording.marks[-2].name
    whole = device_memory(recording, elapsed_s)
    memory = device_memory(with_loss_after(recording, last_run), elapsed_s)
    assert memory.ledger == whole.ledger
    assert memory.peak_bytes == whole.peak_bytes
    assert memory.timeline == whole.timeline


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[DeviceXray | XrayError]:
    """Return what searches of the device find or raise, one after the other."""
    results: list[DeviceXray | XrayError] = []

    def search(*arguments: Any) -> DeviceXray:
        result = results.pop(0)
        if isinstance(result, XrayError):
            raise result
        return result

    monkeypatch.setattr(device_watch, "take_device_xray", search)
    monkeypatch.setattr(device_watch, "runtime_ranges", lambda *arguments: ((0, 1),))
    return results


def searched_twice(model: Path) -> DeviceXray | None:
    """Return what two searches of a device at steady state leave."""
    access = SimpleNamespace(regions=(), copy=None)
    steady: Any = SimpleNamespace(pid=1, device=access)
    attribution: Any = SimpleNamespace(device_arenas=())
    with open_model(model) as model_file:
        watch = DeviceWatch(model_file, Job(model=model))
        watch.take_xray(steady, [], attribution)
        return watch.take_xray(steady, [], attribution)


def test_the_cost_of_a_second_search_is_added_to_that_of_the_first(
    model: Path, searches: list[DeviceXray | XrayError]
) -> None:
    second = msgspec.structs.replace(XRAY, copies=())
    searches += [XRAY, second]
    assert searched_twice(model) == msgspec.structs.replace(
        second, copied_bytes=2 * XRAY.copied_bytes, duration_s=2 * XRAY.duration_s
    )


def test_a_second_search_that_fails_keeps_the_first(
    model: Path, searches: list[DeviceXray | XrayError]
) -> None:
    searches += [XRAY, XrayError("it ended")]
    assert searched_twice(model) == XRAY


PARTS: dict[str, tuple[str, Any]] = {
    "device_ledger": ("ledger", None),
    "peak_ledger": ("peak_ledger", None),
    "device_phases": ("phases", ()),
    "device_timeline": ("timeline", None),
    "device_allocations": ("allocations", ()),
    "out_of_memory_text": ("failure", ""),
}


@pytest.mark.parametrize("function", PARTS)
def test_a_defect_in_one_part_is_a_note_and_the_other_parts_stay(
    function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = failed_in_last_run(recorded("dense_default"))
    elapsed_s = [mark.seconds for mark in recording.marks]
    whole = device_memory(recording, elapsed_s, "out of memory")
    monkeypatch.setattr(device_watch, function, _fail)
    memory = device_memory(recording, elapsed_s, "out of memory")
    (note,) = memory.notes
    assert "a defect of memdiag" in note
    assert "ZeroDivisionError: wrong" in note
    name, missing = PARTS[function]
    assert getattr(whole, name) != missing
    changes = {name: missing, "notes": memory.notes}
    assert memory == msgspec.structs.replace(whole, **changes)


def test_a_defect_in_the_recording_does_not_lose_the_measurement_of_the_host(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RecordingBuilder, "recording", _fail)
    made = profile(model, ON_DEVICE, xray="none")
    (note,) = device_of(made).notes
    assert note.startswith("the recording of the GPU failed, which is a defect of memdiag.")
    assert made.peak_rss_bytes > 0


def _fail(*arguments: Any, **options: Any) -> None:
    raise ZeroDivisionError("wrong")


def test_what_tensorrt_logs_is_in_the_record(model: Path) -> None:
    step = "[MemUsageChange] Init CUDA: CPU +9, GPU +5, now: CPU 20, GPU 700 (MiB)"
    made = profile(model, {**ON_DEVICE, "create": [{"warn": step}]}, xray="none")
    (logged,) = device_of(made).tensorrt_steps
    assert (logged.name, logged.device_added_bytes) == ("Init CUDA", 5 << 20)
    assert not any("MemUsageChange" in note for note in made.notes)


def test_a_profile_on_the_cpu_has_no_device(model: Path) -> None:
    folder = model.parent / "fake_runtime"
    folder.mkdir()
    (folder / "onnxruntime.py").write_text(RUNTIME)
    variables = {"PYTHONPATH": str(folder), "FAKE_RUNTIME": "{}"}
    assert memdiag.profile(model, environment=variables, runs=1, xray="none").device is None
