"""Processes on a GPU under ``memdiag watch`` and ``memdiag run``, with a scripted NVML."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from memdiag.api.run import run, run_program
from memdiag.api.watch import watch
from memdiag.programs import device_sampling
from memdiag.programs.recorder import Recorder
from memdiag.programs.run_pause import RunPause
from memdiag.records.device import MissingSource
from memdiag.records.run import ProcessDevice, ProgramRun
from memdiag.runner.nvml import NO_READER_REASON
from memdiag.system.loaded_runtime import has_loaded_cuda
from tests.programs.test_watch import running
from tests.runner.test_device_script import CUDART, CUPTI, compiled
from tests.runner.test_nvml import Nvml

SERVER = """
import mmap, sys
import onnxruntime
if sys.argv[1:]:
    library = open(sys.argv[1], "rb")
    loaded = mmap.mmap(library.fileno(), 0, prot=mmap.PROT_READ)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A process with onnxruntime that has loaded what is named as the library of the driver."""
    library = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    library.write_bytes(b"library")
    with running(SERVER, str(library)) as process:
        yield process.pid


def device_of(recording: ProgramRun) -> ProcessDevice:
    device = recording.processes[0].device
    assert device is not None
    assert device.memory.ledger is None
    return device


@pytest.mark.parametrize(
    ("is_listed", "size", "sizes", "words"),
    [
        (True, 100, (100,), ""),
        (True, 0, (), "with 0 bytes, as under WSL"),
        (True, None, (), "no size for the process, as on a part of a device (MIG)"),
        (False, None, (), "does not list the process, as in a container"),
    ],
    ids=["listed", "wsl", "mig", "container"],
)
def test_a_watched_process_has_the_figure_of_nvml(
    server: int,
    monkeypatch: pytest.MonkeyPatch,
    is_listed: bool,
    size: int | None,
    sizes: tuple[int, ...],
    words: str,
) -> None:
    nvml = Nvml({server: size} if is_listed else {})
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    device = device_of(watch(server, duration_s=0.1, xray=False))
    assert device.samples.process_bytes == sizes
    assert device.steady_bytes == (sizes[-1] if sizes else None)
    assert device.memory.device.name == "Scripted"
    reasons = [missing.reason for missing in device.memory.missing]
    assert [words in reason for reason in reasons] == [True] * bool(words)
    assert nvml.open == 0


def test_without_nvml_that_is_said(server: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    device = device_of(watch(server, duration_s=0.1, xray=False))
    assert device.memory.missing == (MissingSource(source="NVML", reason=NO_READER_REASON),)


def test_the_figure_is_followed_over_time(server: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_sampling, "DEVICE_PERIOD_S", 0.01)
    sizes: dict[Any, int | None] = {server: 100}
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(sizes))

    def grow(recorder: Recorder) -> None:
        sizes[server] = 300 if recorder.now_s() < 0.4 else 200

    device = device_of(watch(server, duration_s=0.8, period_s=0.02, xray=False, on_progress=grow))
    assert device.samples.process_bytes == (100, 300, 200)
    assert (device.process_bytes, device.peak_process_bytes) == (200, 300)
    assert list(device.samples.t_s) == sorted(device.samples.t_s)


def test_a_process_without_the_driver_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml({})
    monkeypatch.setattr(nvml, "nvmlInit", lambda: pytest.fail("NVML was opened"))
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    with running(SERVER) as process:
        assert not has_loaded_cuda(process.pid)
        recording = watch(process.pid, duration_s=0.1, xray=False)
    assert recording.processes[0].onnxruntime
    assert recording.processes[0].device is None


PROGRAM = """
import ctypes, sys
sys.path.insert(0, sys.argv[2])
ctypes.CDLL(sys.argv[2] + "/libcudart.so.13")
import numpy, onnxruntime
own_providers = onnxruntime.InferenceSession.get_providers
onnxruntime.InferenceSession.get_providers = lambda self: [
    "CUDAExecutionProvider", *own_providers(self)
]
providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
session = onnxruntime.InferenceSession(sys.argv[1], providers=providers)
feeds = {"x": numpy.ones((1, 512), numpy.float32)}
for _ in range(3):
    session.run(None, feeds)
if sys.argv[3:]:
    del session
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with libraries that report as much as CUDA and CUPTI would."""
    if shutil.which("cc") is None:
        pytest.skip("needs a compiler")
    folder = tmp_path_factory.mktemp("libraries")
    compiled(CUDART, folder / "libcudart.so.13")
    compiled(CUPTI, folder / "nvidia" / "cu13" / "lib" / "libcupti.so.13")
    return folder


@pytest.fixture
def recorded(linear_model: Path, libraries: Path) -> Callable[..., ProcessDevice]:
    def record(*words: str, **options: Any) -> ProcessDevice:
        command = [sys.executable, "-c", PROGRAM, str(linear_model), str(libraries), *words]
        recording = run(command, **options)
        assert recording.exit_code == 0
        assert recording.sessions[0].device is not None
        assert recording.sessions[0].run_count == 3
        return next(each.device for each in recording.processes if each.device is not None)

    return record


def test_a_program_with_a_session_on_a_gpu_is_recorded(
    recorded: Callable[..., ProcessDevice],
) -> None:
    device = recorded()
    ledger = device.memory.ledger
    assert ledger is not None
    assert (ledger.mark, ledger.used_bytes, ledger.is_coarse) == ("end", 700, False)
    assert [phase.name for phase in device.memory.phases] == [
        "session",
        "between",
        "first run",
        "end",
    ]
    # CUPTI's allocation of 64 MiB is released at once.
    assert device.allocated_bytes == 0
    assert device.memory.phases[0].peak_allocated_bytes == 64 << 20
    assert device.memory.device.total_bytes == 1000
    assert device.memory.missing_reason("CUPTI") == ""
    assert device.memory.missing_reason("arena") == "the X-ray found no arena of the GPU"


def test_a_program_that_releases_its_session_ends_without_one(
    recorded: Callable[..., ProcessDevice],
) -> None:
    device = recorded("released")
    ledger = device.memory.ledger
    assert ledger is not None
    assert ledger.mark == "first run"
    assert "released before" in device.memory.missing_reason("arena")


def test_without_xrays_there_is_no_cupti(recorded: Callable[..., ProcessDevice]) -> None:
    device = recorded(xray=False)
    assert "no X-rays" in device.memory.missing_reason("CUPTI")
    assert device.memory.ledger is not None
    assert device.memory.ledger.is_coarse


def test_for_leak_the_gpu_of_a_program_is_not_read(linear_model: Path, libraries: Path) -> None:
    pause = RunPause(period_s=60.0, read=lambda process, now_s, event: 60.0)
    command = [sys.executable, "-c", PROGRAM, str(linear_model), str(libraries)]
    recording = run_program(command, takes_xray=False, run_pause=pause)
    assert recording.exit_code == 0
    assert recording.sessions[0].providers[0] == "CUDAExecutionProvider"
    assert {process.device for process in recording.processes} == {None}


BLOCK = """
import json, os, memdiag
with memdiag.recording(xray=sys.argv[3] == "True") as recording:
    block = onnxruntime.InferenceSession(sys.argv[1], providers=providers)
    block.run(None, feeds)
block.run(None, feeds)
assert not [name for name in os.environ if name.startswith("MEMDIAG_RUN")]
device = recording.run.processes[0].device
print(json.dumps([device.memory.ledger.used_bytes, device.memory.missing_reason("CUPTI")]))
"""


@pytest.mark.parametrize(("xray", "reason"), [(True, ""), (False, "no X-rays")])
def test_a_block_of_a_program_is_recorded_with_its_gpu(
    linear_model: Path, libraries: Path, xray: bool, reason: str
) -> None:
    program = PROGRAM.replace("if sys.argv[3:]:\n    del session\n", BLOCK)
    command = [sys.executable, "-c", program, str(linear_model), str(libraries), str(xray)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    used_bytes, missing = json.loads(done.stdout)
    assert used_bytes == 700
    assert (reason in missing) if reason else not missing
