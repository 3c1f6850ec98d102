"""Running processes under ``memdiag watch``: what is recorded of them, and what is refused."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest

from memdiag.api.watch import watch
from memdiag.errors import MemdiagError, ModelError, UsageError, XrayError
from memdiag.programs.recorder import Recorder
from memdiag.programs.xrays import xray_task
from memdiag.programs.xrays.xray_requests import request_xray
from memdiag.records.attribution import ARENA_IN_USE_NAME
from memdiag.records.codec import load
from memdiag.records.run import ProgramRun
from memdiag.system.loaded_runtime import LoadedRuntime, loaded_runtime
from tests.end_to_end.conftest import run_command_line
from tests.programs.conftest import one_product
from tests.waiting import wait_until

WEIGHT_BYTES = 4 * 512 * 512

SERVER = """
import sys
import numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.add_session_config_entry("session.disable_prepacking", "1")
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
session.run(None, {"x": numpy.ones((1, 512), numpy.float32)})
print("ready", flush=True)
sys.stdin.read()
"""
WAITING = "import sys; print('ready', flush=True); sys.stdin.read()"


@contextmanager
def running(program: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that runs `program`, once it has printed a line."""
    command = [sys.executable, "-c", program, *words]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with its weights in a file of their own, which a session maps."""
    path = tmp_path_factory.mktemp("model") / "linear.onnx"
    onnx.save(one_product(), path, save_as_external_data=True, location="weights", size_threshold=0)
    return path


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[int]:
    with running(SERVER, str(model)) as process:
        yield process.pid


@pytest.fixture(scope="module")
def recorded(server: int) -> ProgramRun:
    return watch(server, duration_s=1.0)


def test_the_process_is_recorded(recorded: ProgramRun, server: int, model: Path) -> None:
    (process,) = recorded.processes
    assert process.pid == server
    assert process.ended_s is None
    assert recorded.command == (sys.executable, "-c", SERVER, str(model))
    assert recorded.exit_code is None
    assert recorded.sessions == ()
    assert recorded.peak_rss_bytes == max(process.samples.rss_bytes)
    assert process.samples.t_s[-1] >= 1.0


def test_the_runtime_and_mapped_models_are_noted(recorded: ProgramRun, model: Path) -> None:
    import onnxruntime

    assert recorded.processes[0].onnxruntime == onnxruntime.__version__
    assert recorded.environment.onnxruntime == onnxruntime.__version__
    note, unchecked = recorded.notes
    assert unchecked.startswith("rules that need recorded sessions were not checked: session-per")
    assert "arena-slack" not in unchecked
    assert note.endswith(
        f"uses onnxruntime {onnxruntime.__version__} (onnxruntime) with linear.onnx"
    )


def test_the_xray_finds_weights_by_mapped_files(recorded: ProgramRun) -> None:
    assert recorded.xrays[-1].reason == "end"
    attribution = recorded.xrays[-1].attribution
    assert [found.name for found in attribution.models] == ["linear.onnx"]
    assert sum(copy.resident_bytes for copy in attribution.copies) >= WEIGHT_BYTES
    assert attribution.arenas
    in_use = sum(owner.bytes for owner in attribution.owners if owner.name == ARENA_IN_USE_NAME)
    assert sum(arena.resident_used_bytes or 0 for arena in attribution.arenas) == in_use


def test_the_duration_excludes_the_xrays_at_the_end(recorded: ProgramRun) -> None:
    assert recorded.end_xrays_s > 0
    # From the last sample on, until the last X-ray is there.
    ((start_s, end_s),) = recorded.end_waits
    assert end_s == pytest.approx(recorded.duration_s, abs=0.5)
    assert start_s == pytest.approx(recorded.samples.t_s[-1], abs=0.5)
    last = recorded.xrays[-1]
    assert start_s <= last.t_s <= last.t_s + (last.duration_s or 0) <= recorded.duration_s
    assert 1.0 <= recorded.duration_s - recorded.end_xrays_s < 5.0


def test_no_xray_is_taken_if_not_wanted(server: int) -> None:
    recording = watch(server, duration_s=0.2, xray=False)
    assert recording.xrays == ()
    assert recording.end_xrays_s == 0.0


def test_models_that_are_given_are_searched_for(server: int, tmp_path: Path, model: Path) -> None:
    other = tmp_path / "other.onnx"
    parsed = onnx.load(model)
    values = np.full((512, 512), 0.5, np.float32)
    parsed.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(values, "w"))
    onnx.save(parsed, other)
    recording = watch(server, duration_s=0.2, models=[model, other])
    attribution = recording.xrays[-1].attribution
    assert [searched.name for searched in attribution.models] == [model.name, other.name]
    assert {copy.models for copy in attribution.copies} == {(0,)}


def test_an_xray_is_taken_on_request(server: int, tmp_path: Path) -> None:
    folder, answers = tmp_path / "new", []

    def request() -> None:
        wait_until((folder / "recording.json").exists)
        answers.append(request_xray(folder))

    requester = threading.Thread(target=request)
    requester.start()

    def end_after_request(recorder: Recorder) -> None:
        if not requester.is_alive():
            signal.raise_signal(signal.SIGINT)

    recording = watch(server, xray=False, request_folder=folder, on_progress=end_after_request)
    assert [len(answer.processes) for answer in answers] == [1]
    assert [xray.reason for xray in recording.xrays] == ["request"]
    with pytest.raises(UsageError, match="no recording is under way"):
        request_xray(folder)


def test_a_signal_ends_xrays_that_are_being_taken(
    server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xray_task, "yield_attributions", lambda *words: time.sleep(60))

    def interrupt(recorder: Recorder) -> None:
        if recorder.pending_xrays:
            signal.raise_signal(signal.SIGINT)

    recording = watch(server, duration_s=0.3, on_progress=interrupt)
    assert recording.xrays == ()
    assert "the recording was stopped before its X-rays were complete" in recording.notes
    assert recording.duration_s < 60


def test_descendants_are_recorded() -> None:
    program = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {WAITING!r}], stdin=subprocess.PIPE)\n"
        "sys.stdin.read()"
    )
    with running(program) as process:
        recording = watch(process.pid, duration_s=0.3)
    parent, child = recording.processes
    assert child.parent == parent.pid == process.pid
    assert recording.peak_rss_bytes > max(parent.peak_rss_bytes, child.peak_rss_bytes)


def test_memdiag_itself_is_left_out(tmp_path: Path) -> None:
    program = (
        "import os, subprocess, sys\n"
        "print(os.getpid(), flush=True)\n"
        "subprocess.run([sys.executable, '-m', 'memdiag', 'watch', str(os.getpid()), '--for',"
        " '0.3s', '--out', sys.argv[1]])"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, capture_output=True)
    assert len(load(tmp_path / "run.json", ProgramRun).processes) == 1


def test_a_process_that_ends_is_recorded_until_then() -> None:
    steps: list[Recorder] = []

    def end(recorder: Recorder) -> None:
        steps.append(recorder)
        if len(steps) == 3:
            process.kill()

    with running(WAITING) as process:
        recording = watch(process.pid, on_progress=end)
    assert recording.processes[0].ended_s is not None
    assert recording.samples.rss_bytes
    (note,) = recording.notes
    assert re.fullmatch(rf"process {process.pid} ended after .*", note)


def test_the_high_water_mark_of_the_process_is_kept() -> None:
    with running("x = bytearray(200 << 20); del x; print(flush=True); input()") as process:
        recording = watch(process.pid, duration_s=0.2)
        status = Path(f"/proc/{process.pid}/status").read_text()
    mark = int(status.partition("VmHWM:")[2].split()[0]) << 10
    assert mark >= 200 << 20
    # It was reached before the recording.
    assert recording.processes[0].peak_rss_bytes < 100 << 20
    assert recording.processes[0].earlier_peak_rss_bytes == mark


def test_a_peak_between_samples_is_found() -> None:
    program = (
        "print(flush=True); input(); x = b'x' * (200 << 20); del x; print(flush=True); input()"
    )
    steps: list[Recorder] = []
    with running(program) as process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None

        def rise_and_fall(recorder: Recorder) -> None:
            steps.append(recorder)
            if len(steps) == 2:
                stdin.write(b"\n")
                stdin.flush()
                stdout.readline()

        recording = watch(process.pid, duration_s=0.5, period_s=60.0, on_progress=rise_and_fall)
    assert max(recording.samples.rss_bytes) < 100 << 20
    assert recording.peak_rss_bytes == recording.processes[0].peak_rss_bytes >= 200 << 20


def test_the_time_between_samples_is_kept() -> None:
    program = (
        "import time; print(flush=True); x = []\n"
        "while True: x.append(b'x' * (1 << 16)); time.sleep(0.01)"
    )
    with running(program) as process:
        recording = watch(process.pid, duration_s=1.2, period_s=0.5)
    assert len(recording.samples.t_s) <= 4
    assert recording.duration_s >= 1.2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_recording(server: int, number: int) -> None:
    recording = watch(server, xray=False, on_progress=lambda _: signal.raise_signal(number))
    assert recording.samples.rss_bytes


def test_a_signal_to_the_command_keeps_the_recording(tmp_path: Path, server: int) -> None:
    words = ["watch", str(server), "--no-xray", "--out", str(tmp_path)]
    with subprocess.Popen(
        [sys.executable, "-m", "memdiag", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert "until it ends" in process.stderr.readline()  # it heeds signals from now on
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    assert "1 process in" in output
    assert load(tmp_path / "run.json", ProgramRun).samples.rss_bytes


def test_a_process_that_does_not_exist_is_refused() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with pytest.raises(XrayError, match="does not exist"):
        watch(process.pid)


def test_a_process_without_memory_is_refused() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    try:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
        with pytest.raises(XrayError, match="has ended, or is a thread of the kernel"):
            watch(process.pid)
    finally:
        process.wait()


@pytest.mark.skipif(os.getuid() != 0, reason="changes its user")
def test_a_process_of_another_user_is_refused(tmp_path: Path) -> None:
    script = (
        "import os, sys; from memdiag.api.watch import watch; from memdiag.errors import *\n"
        "os.setuid(65534)\n"
        "try: watch(int(sys.argv[1]))\n"
        "except XrayError as error: print(error)"
    )
    found = subprocess.run(
        [sys.executable, "-c", script, str(os.getpid())], capture_output=True, text=True, check=True
    )
    assert "no permission" in found.stdout


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"pid": 1}, UsageError, "process 1 is the ancestor of all processes"),
        ({"pid": os.getpid()}, UsageError, "is memdiag itself"),
        ({"pid": 0}, XrayError, "does not exist"),
        ({"duration_s": 0.0}, UsageError, "a recording cannot last 0.0 s"),
        ({"duration_s": -1.0}, UsageError, "a recording cannot last -1.0 s"),
        ({"period_s": 0.0}, UsageError, "samples cannot be 0.0 s apart"),
        ({"period_s": -5.0}, UsageError, "samples cannot be -5.0 s apart"),
        ({"models": ["no.onnx"]}, ModelError, "no.onnx"),
        ({"request_folder": "/proc/none"}, UsageError, "cannot be written"),
    ],
)
def test_what_cannot_be_watched_is_one_sentence(
    server: int, settings: dict[str, object], error: type[MemdiagError], words: str
) -> None:
    with pytest.raises(error, match=re.escape(words)):
        watch(**{"pid": server, "duration_s": 0.1, **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "words",
    [["1"], ["-5"], ["nginx"], [], ["{pid}", "--for", "-5s"], ["{pid}", "--live", "--for", "1s"]],
)
def test_a_refused_command_ends_with_2_and_writes_nothing(
    tmp_path: Path,
    server: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [word.format(pid=server) for word in words]
    monkeypatch.setattr(sys, "argv", ["memdiag", "watch", *arguments])
    assert run_command_line() == 2
    output = capsys.readouterr()
    assert (output.out, len(output.err.splitlines())) == ("", 1)
    assert list(tmp_path.iterdir()) == []


NODE = "node_modules/onnxruntime-node/"
PYTHON = "site-packages/onnxruntime/capi/"


@pytest.mark.parametrize(
    ("library", "package", "expected"),
    [
        ("lib/libonnxruntime.so.1.20.1", {}, LoadedRuntime("1.20.1", None)),
        ("onnxruntime-linux-x64-1.19.2/lib/libonnxruntime.so", {}, LoadedRuntime("1.19.2", None)),
        ("lib/libonnxruntime.so.1", {}, LoadedRuntime(None, None)),
        (
            f"{NODE}bin/linux/x64/libonnxruntime.so.1",
            {f"{NODE}package.json": '{\n "name": "onnxruntime-node",\n "version": "1.21.0"\n}'},
            LoadedRuntime("1.21.0", "onnxruntime-node"),
        ),
        (
            f"{PYTHON}onnxruntime_pybind11_state.cpython-312.so",
            {
                f"{PYTHON}build_and_package_info.py": "package_name = 'onnxruntime-openvino'\n"
                "__version__ = '1.24.1'\n"
            },
            LoadedRuntime("1.24.1", "onnxruntime-openvino"),
        ),
        ("onnxruntime/lib/libother.so", {}, None),
        ("onnxruntime/onnxruntime.so.txt/model.onnx", {}, None),
    ],
)
def test_the_version_is_found_by_the_library(
    tmp_path: Path, library: str, package: dict[str, str], expected: LoadedRuntime | None
) -> None:
    for name, text in {library: "library", **package}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    mapping = (
        "import mmap, sys\n"
        "file = open(sys.argv[1], 'rb')\n"
        "mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)\n"
        "print(flush=True); sys.stdin.read()"
    )
    with running(mapping, str(tmp_path / library)) as process:
        assert loaded_runtime(process.pid) == expected
