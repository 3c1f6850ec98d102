"""A leak search in a session on a device, with a runtime and libraries that tests have made."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from memdiag.api.leak import LeakConfig, observe_model
from memdiag.errors import MeasurementError
from memdiag.records.growth import Growth
from memdiag.runner.job import SessionConfig
from memdiag.units import MIB
from tests.api.small_models import save_model
from tests.runner.conftest import RUNTIME
from tests.runner.test_device_script import CUDART, CUPTI, compiled

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
ON_DEVICE = {"available": [CUDA, CPU], "providers": [CUDA, CPU]}
RUNS = 40
HANDLE = 64 * MIB

# At each mark cuBLAS has one more handle, at an address of its own.
GROWING_CUPTI = (
    CUPTI.replace("= 0x7f0000000000,", f"= 0x7f0000000000 + now * {HANDLE},")
    .replace("memory.operation = 2, memory.source = NULL;", "")
    .replace("buffer, size, 2 * sizeof memory);", "buffer, size, sizeof memory);")
)

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a compiler")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_model(tmp_path / "relu.onnx", "g (float[1] x) => (float[1] y) { y = Relu(x) }")


def growth_of(
    model: Path, script: dict[str, Any], cupti: str = "", *, has_cuda: bool = True, **options: Any
) -> Growth:
    """Return the growth of `model` in a runtime that does as `script` says.

    Args:
        model: the model, in an empty folder.
        script: what the runtime does at each stage.
        cupti: the source of CUPTI; empty without it.
        has_cuda: whether the runtime has libcudart.
        options: fields of the configuration.
    """
    folder = model.parent / "fake_runtime"
    folder.mkdir()
    (folder / "onnxruntime.py").write_text(RUNTIME)
    if has_cuda:
        runtime = compiled(CUDART, model.parent / "libcudart.so.13")
        script = {**script, "import": [{"load": str(runtime)}]}
    if cupti:
        compiled(cupti, folder / "nvidia" / "cu13" / "lib" / "libcupti.so.13")
    variables = {"PYTHONPATH": str(folder), "FAKE_RUNTIME": json.dumps(script)}
    session = SessionConfig(providers=(CUDA, CPU), environment=variables)
    return observe_model(model, LeakConfig(session=session, runs=RUNS, **options))


@needs_compiler
@pytest.mark.parametrize("reload", [False, True], ids=["runs", "reloads"])
def test_allocations_that_each_moment_has_more_of_are_a_leak_on_the_gpu(
    model: Path, reload: bool
) -> None:
    growth = growth_of(model, ON_DEVICE, GROWING_CUPTI, reload=reload)
    assert not growth.message
    assert growth.device is not None
    assert (growth.device.verdict, growth.device.basis) == ("leak", "allocations")
    assert (growth.device.part, growth.device.library) == ("libraries", "cuBLAS")
    assert growth.stated_first is growth.device
    # The reading itself leaves nothing on the host that looks like growth: a block at each moment.
    assert not growth.is_host_leak_or_kept, growth.sentence
    blocks = [moment.heap_blocks or 0 for moment in growth.moments[1:]]
    assert blocks[-1] - blocks[0] < len(blocks)
    sizes = [moment.device and moment.device.libraries for moment in growth.moments]
    handles = [libraries and libraries["cuBLAS"] // HANDLE for libraries in sizes]
    # One mark before the session, one after its first creation, and one for each moment.
    assert handles == list(range(3, 3 + len(handles)))
    assert {moment.device and moment.device.used_bytes for moment in growth.moments} == {700}


@needs_compiler
def test_allocations_that_are_released_are_no_growth(model: Path) -> None:
    growth = growth_of(model, ON_DEVICE, CUPTI)
    assert growth.device is not None
    assert (growth.device.verdict, growth.device.basis) == ("flat", "allocations")
    assert not growth.is_leak_or_kept
    assert [note for note in growth.notes if "NVML reported nothing" in note]


@needs_compiler
def test_without_cupti_the_whole_device_is_said(model: Path) -> None:
    growth = growth_of(model, ON_DEVICE)
    assert growth.device is not None
    assert (growth.device.verdict, growth.device.basis) == ("flat", "device")
    assert "the memory of all processes there is 700 B after 40 runs" in growth.device.sentence
    assert [note for note in growth.notes if "CUPTI reported nothing" in note]


def test_without_any_source_nothing_is_judged_and_the_sources_are_said(model: Path) -> None:
    growth = growth_of(model, ON_DEVICE, has_cuda=False)
    assert growth.device is None
    assert all(moment.device is not None for moment in growth.moments)
    missing = [note for note in growth.notes if "reported nothing" in note]
    for source in ("cudaMemGetInfo", "CUPTI", "NVML"):
        assert sum(source in note for note in missing) == 1


def test_a_session_that_does_not_use_the_gpu_is_refused(model: Path) -> None:
    with pytest.raises(MeasurementError, match="without the provider for the GPU"):
        growth_of(model, {"available": [CUDA, CPU], "providers": [CPU]}, has_cuda=False)
