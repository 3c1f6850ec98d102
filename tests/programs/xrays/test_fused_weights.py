"""X-rays of recorded processes in which onnxruntime has computed new weights from the model's."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import msgspec
import pytest

from memdiag.api.run import run
from memdiag.model.model_file import ModelFile, open_model
from memdiag.programs.events import SessionModelSource
from memdiag.programs.hook.sessions import import_path
from memdiag.programs.recorder import STARTUP_FOLDER
from memdiag.programs.xrays import optimizing_jobs as module
from memdiag.programs.xrays import xray_task
from memdiag.programs.xrays.optimizing_jobs import optimizing_jobs
from memdiag.records.attribution import Attribution
from tests.normalized_conv import CHANNELS, FILTER_BYTES, write_normalized_conv
from tests.programs.rules.records import copy
from tests.programs.rules.records import xray as an_xray

BIAS_BYTES = 4 * CHANNELS
LINEAR_BYTES = 4 * 512 * 512
CPU = "CPUExecutionProvider"


@pytest.fixture(scope="module")
def conv_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A convolution with a normalization, of which onnxruntime computes one filter and bias."""
    return write_normalized_conv(tmp_path_factory.mktemp("model") / "conv.onnx")


@pytest.fixture
def model(conv_model: Path) -> Iterator[ModelFile]:
    with open_model(conv_model) as file:
        yield file


@pytest.fixture
def lock() -> Iterator[IO[bytes]]:
    with tempfile.TemporaryFile() as file:
        yield file


class Process:
    def __init__(self, executable: str = sys.executable) -> None:
        self.executable = executable
        self.import_path = ("/lib/a", "/lib/b")


class Session:
    """A recorded session, as far as X-rays and jobs need it."""

    def __init__(
        self,
        path: Path | str = "m.onnx",
        *,
        process: Process | None = None,
        providers: tuple[str, ...] = (CPU,),
        config: dict[str, str] | None = None,
        **options: str,
    ) -> None:
        self.number, self.address, self.providers = 1, None, providers
        self.process = process or Process()
        self.model_key = str(path)
        self.description = SimpleNamespace(
            model=SessionModelSource(path=str(path), bytes=None),
            options=options,
            config=config or {},
        )


def test_fused_weights_are_those_of_their_sessions(
    tmp_path: Path, conv_model: Path, linear_model: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, onnxruntime\n"
        f"providers = [{CPU!r}]\n"
        "all = [onnxruntime.InferenceSession(path, providers=providers) for path in sys.argv[1:]]\n"
    )
    models = [str(conv_model), str(conv_model), str(linear_model)]
    recording = run([sys.executable, str(program), *models])
    memories = [session.memory for session in recording.sessions]
    assert [each and each.weight_bytes for each in memories] == [
        FILTER_BYTES + BIAS_BYTES,
        FILTER_BYTES + BIAS_BYTES,
        LINEAR_BYTES,
    ]
    (found,) = recording.xrays
    used = [each for each in found.attribution.copies if each.in_use is not False]
    fused = [each for each in used if each.kind == "fused"]
    assert sorted(each.bytes for each in fused) == [BIAS_BYTES] * 2 + [FILTER_BYTES] * 2
    assert {each.models for each in fused} == {(0,)}
    assert {model.name for model in found.attribution.models} == {"conv.onnx", "linear.onnx"}


@pytest.fixture
def process() -> Iterator[int]:
    """A process without any weights."""
    with subprocess.Popen(["sleep", "600"]) as started:
        try:
            yield started.pid
        finally:
            started.kill()


@pytest.mark.parametrize(
    ("name", "starts"),
    [
        pytest.param("missing/python", False, id="no interpreter"),
        pytest.param("python", True, id="an interpreter that fails"),
        pytest.param("uwsgi", False, id="a program with Python inside"),
    ],
)
def test_without_the_interpreter_the_xray_is_as_before(
    process: int, conv_model: Path, lock: IO[bytes], tmp_path: Path, name: str, starts: bool
) -> None:
    executable = tmp_path / name
    if executable.parent.exists():
        executable.write_text(f"#!/bin/sh\ntouch '{tmp_path}/started'\nexit 1\n")
        executable.chmod(0o755)
    session: Any = Session(conv_model, process=Process(str(executable)))
    ((keys, attribution),) = xray_task.yield_attributions(process, [session], None, lock)
    assert keys == [str(conv_model)]
    assert attribution.pid == process
    assert attribution.resident_bytes > 0
    assert (tmp_path / "started").exists() == starts


BASIC = {"graph_optimization_level": "ORT_ENABLE_BASIC"}
QUANT, PREPACKING = ({f"session.disable_{name}": "1"} for name in ("quant_qdq", "prepacking"))
JOBS: dict[str, tuple[list[Session], list[dict[str, str]]]] = {
    "one": ([Session()], [{}]),
    "the same twice": ([Session(), Session(intra_op_num_threads="2")], [{}]),
    "another level": (
        [Session(), Session(graph_optimization_level="GraphOptimizationLevel.ORT_ENABLE_BASIC")],
        [{}, BASIC],
    ),
    "an entry that matters, and options that do not": (
        [Session(config=QUANT, enable_profiling="True"), Session(config=PREPACKING | QUANT)],
        [QUANT],
    ),
    "a GPU": ([Session(providers=("CUDAExecutionProvider", CPU))], []),
    "an unknown interpreter": ([Session(process=Process(""))], []),
}


@pytest.mark.parametrize(("sessions", "options"), JOBS.values(), ids=JOBS)
def test_each_optimization_has_a_job(
    model: ModelFile, lock: IO[bytes], sessions: Any, options: list[dict[str, str]]
) -> None:
    jobs = list(optimizing_jobs(model, sessions, lock))
    assert [job.session.options for job in jobs] == [
        {**each, "intra_op_num_threads": "1"} for each in options
    ]
    for job in jobs:
        assert job.session.environment == {"PYTHONPATH": "/lib/a:/lib/b"}
        assert (job.runs, job.limits.timeout_s) == (None, module.MAX_OPTIMIZING_S)


WEIGHT_BYTES = FILTER_BYTES + 4 * BIAS_BYTES
MEMORY, DISK = module.MIN_MEMORY_MULTIPLE * WEIGHT_BYTES, module.MIN_DISK_MULTIPLE * WEIGHT_BYTES


@pytest.mark.parametrize(
    ("memory", "disk", "count"), [(MEMORY, DISK, 1), (MEMORY - 1, DISK, 0), (MEMORY, DISK - 1, 0)]
)
def test_no_model_is_optimized_where_memory_or_disk_is_short(
    model: ModelFile,
    lock: IO[bytes],
    monkeypatch: pytest.MonkeyPatch,
    memory: int,
    disk: int,
    count: int,
) -> None:
    monkeypatch.setattr(module, "available_memory_bytes", lambda: memory)
    monkeypatch.setattr(module, "disk_usage", lambda _: SimpleNamespace(free=disk))
    session: Any = Session()
    assert len(list(optimizing_jobs(model, [session], lock))) == count


def test_the_import_path_is_absolute_and_without_the_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", "lib", "/usr/lib"])
    here = Path.cwd()
    assert import_path() == [str(here), str(here / "lib"), "/usr/lib"]
    monkeypatch.undo()
    assert str(STARTUP_FOLDER) not in import_path()


def an_attribution(size: int) -> Attribution:
    return an_xray(1, copy("w", 0x1000, size=size)).attribution


@pytest.mark.parametrize(("is_partial", "sizes"), [(False, [4096, 8192]), (True, [4096])])
def test_a_process_that_ends_meanwhile_keeps_its_complete_xray(
    monkeypatch: pytest.MonkeyPatch,
    lock: IO[bytes],
    conv_model: Path,
    is_partial: bool,
    sizes: list[int],
) -> None:
    second = msgspec.structs.replace(an_attribution(8192), partial=is_partial)
    results = iter([an_attribution(4096), second])
    monkeypatch.setattr(xray_task, "take_xray", lambda *_, **__: next(results))
    monkeypatch.setattr(xray_task, "fused_search_targets", lambda target, *_, **__: [target])
    session: Any = Session(conv_model)
    found = xray_task.yield_attributions(os.getpid(), [session], None, lock)
    assert [each.copies[0].bytes for _, each in found] == sizes


@pytest.mark.parametrize(("count", "size"), [(2, 8192), (1, 4096), (0, None)])
def test_an_interrupted_xray_has_its_last_complete_result(
    monkeypatch: pytest.MonkeyPatch, lock: IO[bytes], count: int, size: int | None
) -> None:
    def results(*_: object) -> Iterator[tuple[list[str], Attribution]]:
        for number in range(count):
            yield ["m.onnx"], an_attribution(4096 * (number + 1))
        time.sleep(600)

    monkeypatch.setattr(xray_task, "yield_attributions", results)
    task = xray_task.ProcessXrayTask(1, [], lock=lock)
    while task._result.count(b"\0") < count:
        assert task.read()
    task.interrupt()
    assert task.has_result == (size is not None)
    if size is None:
        task.close()
        return
    keys, found = task.result()
    assert keys == ["m.onnx"]
    assert [each.bytes for each in found.copies] == [size]
