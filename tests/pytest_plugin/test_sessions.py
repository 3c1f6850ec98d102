"""``--memdiag-sessions``: the sessions of a test run in the terminal summary."""

import sys

import pytest

from memdiag.runner.child import RECORDING_ADDRESS
from tests.pytest_plugin.conftest import RunPytest

pytestmark = pytest.mark.usefixtures("tiny_model")

CREATE = """
import subprocess
import sys
import numpy as np
import onnxruntime
import pytest

def create():
    return onnxruntime.InferenceSession("tiny.onnx", providers=["CPUExecutionProvider"])
"""


def test_every_session_is_listed_below_its_test_and_findings_below_all(
    pytester: pytest.Pytester, run_pytest: RunPytest
) -> None:
    pytester.makepyfile(
        test_service=CREATE
        + """
imported = create()

@pytest.fixture(scope="module")
def service():
    return create()

def test_first(service):
    service.run(None, {"x": np.ones(3, np.float32)})

def test_second(service):
    service.run(None, {"x": np.ones(3, np.float32)})
    create()

def test_child():
    program = "import onnxruntime; onnxruntime.InferenceSession('tiny.onnx')"
    subprocess.run([sys.executable, "-c", program], check=True)

def test_fails():
    pytest.raises(Exception, onnxruntime.InferenceSession, "missing.onnx")
    assert False

def test_many():
    for _ in range(6):
        create().run(None, {"x": np.ones(3, np.float32)})
"""
    )
    lines = [
        "*onnxruntime sessions of the tests (memdiag)*",
        "11 sessions; *",
        "outside tests",
        "   1  tiny.onnx * test_service.py:* +* 0 runs  *",
        "test_service.py::test_first",
        "   2  tiny.onnx * test_service.py:* +* 2 runs  *",
        "test_service.py::test_second",
        "   3  tiny.onnx * test_service.py:* +* 0 runs  released",
        "test_service.py::test_child",
        "   4  tiny.onnx * <string>:1 * +* 0 runs  *",
        "test_service.py::test_fails",
        "   5  missing.onnx  _pytest: raises.py:*, called from test_service.py:* failed",
        "test_service.py::test_many",
        "- session-per-call*: *",
        "  → *",
    ]
    run_pytest("--memdiag-sessions", passed=4, failed=1, lines=lines)


def test_captured_output_stays_as_it_is(pytester: pytest.Pytester, run_pytest: RunPytest) -> None:
    pytester.makepyfile(
        CREATE
        + """
import os

def test_output():
    print("to stdout")
    print("to stderr", file=sys.stderr)
    create()
    os.write(2, b"to the descriptor")
    create()
    print("", file=sys.stderr)
    assert False
"""
    )

    def captured(*flags: str) -> list[str]:
        lines = run_pytest("--show-capture=all", *flags).outlines
        start = next(index for index, line in enumerate(lines) if "Captured stdout" in line)
        return lines[start : start + 5]

    expected = captured()
    assert "to the descriptor" in expected
    assert captured("--memdiag-sessions") == expected


def test_without_sessions_there_is_one_line_and_no_import(
    pytester: pytest.Pytester, run_pytest: RunPytest
) -> None:
    pytester.makepyfile('import sys\ndef test_quick(): assert "onnxruntime" not in sys.modules')
    lines = ["memdiag: no onnxruntime session was created"]
    result = run_pytest("--memdiag-sessions", process=True, passed=1, lines=lines)
    result.stdout.no_fnmatch_line("*(memdiag)*")


def test_a_late_import_is_recorded(pytester: pytest.Pytester, run_pytest: RunPytest) -> None:
    late = '__import__("onnxruntime").InferenceSession("tiny.onnx")'
    pytester.makepyfile(f"def test_late(): {late}")
    lines = ["*::test_late", "  1  tiny.onnx *"]
    run_pytest("--memdiag-sessions", process=True, passed=1, lines=lines)


def test_without_onnxruntime_it_says_so(
    pytester: pytest.Pytester, run_pytest: RunPytest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    pytester.makepyfile("def test_quick(): ...")
    lines = ["*no session was created; onnxruntime is not installed"]
    run_pytest("--memdiag-sessions", passed=1, lines=lines)


def test_two_workers_are_summed_up(pytester: pytest.Pytester, run_pytest: RunPytest) -> None:
    pytester.makepyfile(
        CREATE
        + """
@pytest.mark.parametrize("number", range(2))
def test_worker(number):
    create()
"""
    )
    # Each worker gets one of the tests.
    result = run_pytest("-n2", "--dist=each", "--memdiag-sessions", passed=4)
    result.stdout.fnmatch_lines_random(
        ["4 sessions; *", *(f"  gw{worker} {n}  tiny.onnx *" for worker in "01" for n in "12")]
    )


def test_a_run_that_is_recorded_already_is_refused(
    pytester: pytest.Pytester, run_pytest: RunPytest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RECORDING_ADDRESS, "@elsewhere#secret")
    pytester.makepyfile("def test_quick(): ...")
    result = run_pytest("--memdiag-sessions")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --memdiag-sessions: this test run is being recorded *"])
