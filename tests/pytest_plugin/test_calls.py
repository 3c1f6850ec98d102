"""The fixture ``memdiag_leak``, on functions whose growth is known by construction."""

import pytest

from tests.pytest_plugin.conftest import RunPytest

TESTS = """
import ctypes
import logging
import warnings

import pytest

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
KEPT = []

@pytest.fixture(autouse=True)
def drop():
    yield
    KEPT.clear()

def test_malloc_leaks(memdiag_leak):
    memdiag_leak(lambda: libc.malloc(4096))

def test_python_leaks(memdiag_leak):
    memdiag_leak(lambda: KEPT.append([f"{len(KEPT)} {number} {'x' * 100}" for number in range(50)]))

def test_clean(memdiag_leak, caplog):
    def work():
        if len(KEPT) < 160:  # a warm-up that ends
            KEPT.append(libc.malloc(5000))
        cycle = [bytearray(3000)]
        cycle.append(cycle)
        for number in range(10):
            logging.getLogger("work").warning("message %d %s", number, "x" * 300)
        warnings.warn("deprecated", DeprecationWarning)
    growth = memdiag_leak(work)
    assert (growth.verdict, growth.runs, len(growth.moments)) == ("flat", 200, 13)
    # Those of the first call.
    assert len(caplog.records) == 10

def test_error(memdiag_leak):
    def work():
        KEPT.append(0)
        if len(KEPT) == 15:
            raise KeyError("the error of the function")
    memdiag_leak(work, runs=40)

def test_too_few_runs(memdiag_leak):
    memdiag_leak(lambda: None, runs=39)

def test_no_number(memdiag_leak):
    memdiag_leak(lambda: None, runs="many")

def test_no_function(memdiag_leak):
    memdiag_leak(None)
"""

SESSIONS = """
import numpy as np
import onnxruntime
import pytest

KEPT = []

def create():
    return onnxruntime.InferenceSession("tiny.onnx", providers=["CPUExecutionProvider"])

@pytest.fixture(scope="module")
def run():
    session = create()
    return lambda: session.run(None, {"x": np.ones(1024, np.float32)})

def test_outputs_are_kept(run, memdiag_leak):
    memdiag_leak(lambda: KEPT.append(run()), runs=40)

def test_sessions_are_kept(memdiag_leak):
    memdiag_leak(lambda: KEPT.append(create()), runs=40)
"""


def test_functions_that_leak_fail_and_others_pass(
    pytester: pytest.Pytester, run_pytest: RunPytest
) -> None:
    pytester.makepyfile(test_calls=TESTS)
    name = "memory growth: test_calls.py::test_"
    lines = [
        f"{name}malloc_leaks: a leak: malloc blocks in use grow by 4* KiB a run*",
        f"{name}python_leaks: a leak: Python objects grow by * KiB a run*",
        "*KeyError: 'the error of the function'",
        "*UsageError: runs must be at least 40, to distinguish growth from warm-up.",
        "*UsageError: runs must be a whole number, not 'many'.",
        "*UsageError: memdiag_leak: None is not a function. Pass one to be called.",
    ]
    words = ("--strict-markers", "--junit-xml=result.xml")
    run_pytest(*words, process=True, passed=1, failed=6, lines=lines)
    verdicts = (pytester.path / "result.xml").read_text()
    assert verdicts.count('name="memdiag.verdict" value="leak"') == 2


@pytest.mark.usefixtures("tiny_model")
def test_values_and_sessions_that_are_kept_fail_in_a_worker_as_well(
    pytester: pytest.Pytester, run_pytest: RunPytest
) -> None:
    pytester.makepyfile(test_sessions=SESSIONS)
    result = run_pytest("-n1", failed=2)
    name = "memory growth: test_sessions.py::test_"
    for line in (
        f"{name}outputs_are_kept: the program keeps output 'y': 4 KiB more after each run. Arena *",
        f"{name}sessions_are_kept: the program keeps its sessions (*), * KiB a session: they *",
    ):
        result.stdout.fnmatch_lines([line])
