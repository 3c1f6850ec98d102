"""The marker with ``growth="none"``, on a model that does not leak and one that is said to."""

import shutil
from pathlib import Path

import pytest

from tests.pytest_plugin.conftest import RunPytest

CONFTEST = """
import msgspec
import memdiag.pytest_plugin.growth as growth
from memdiag.records.growth import DeviceGrowth

measure = growth.leak
measured = []

def leak(model, **options):
    if model.name == "tiny.onnx":
        measured.append(measure(model, **options))
        return measured[0]
    said = {"subject": model.name}
    leaks = {"verdict": "leak", "sentence": "a leak: 25 KiB a run"}
    if model.name == "gpu.onnx":
        others = {"basis": "process", "advice": "", "part": "arena", "library": "", "slope": None}
        said["device"] = DeviceGrowth(**leaks, **others, grown_bytes=0)
    else:
        said |= leaks
    return msgspec.structs.replace(measured[0], **said)

growth.leak = leak
"""

TESTS = """
import pytest

@pytest.mark.memory_budget("tiny.onnx", growth="none", runs=40, dims={"n": (1, 4)})
def test_clean():
    pass

@pytest.mark.memory_budget("leaky.onnx", growth="none", runs=40)
def test_leaky():
    pass

@pytest.mark.memory_budget("gpu.onnx", growth="none", runs=40)
def test_leaky_on_gpu():
    pass

@pytest.mark.memory_budget("tiny.onnx", growth="1 MB")
def test_wrong_value():
    pass

@pytest.mark.memory_budget("tiny.onnx", growth="none", runs=3)
def test_too_few_runs():
    pass
"""


def test_a_verdict_of_leak_fails_and_others_pass(
    pytester: pytest.Pytester, run_pytest: RunPytest, tiny_model: Path
) -> None:
    for name in ("leaky.onnx", "gpu.onnx"):
        shutil.copy(tiny_model, pytester.path / name)
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TESTS)
    output = run_pytest(passed=1, failed=2, errors=2).stdout.str()
    assert "memory growth: leaky.onnx: a leak: 25 KiB a run" in output
    assert "memory growth: gpu.onnx: a leak: 25 KiB a run" in output
    assert "growth can only be \"none\", not '1 MB'" in output
    assert "runs must be at least 40" in output
