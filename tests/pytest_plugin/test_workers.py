"""Under pytest-xdist: models are measured one after the other, unless that is allowed."""

import sys
from pathlib import Path

import pytest

from memdiag.api.measurement_lock import measurement_lock
from tests.pytest_plugin.conftest import RunPytest

# An interpreter that says so when another one of its kind is still at work. It keeps the lock
# through exec, for as long as the process lives.
ALONE = f"""#!{sys.executable}
import fcntl, os, sys, time
lock = os.open("at_work", os.O_CREAT | os.O_RDWR)
os.set_inheritable(lock, True)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    said = "alone"
except BlockingIOError:
    said = "next to another"
with open("said", "a") as file:
    print(said, file=file)
time.sleep(0.5)
os.execv({sys.executable!r}, [{sys.executable!r}, *sys.argv[1:]])
"""
TESTS = """
import pytest

@pytest.mark.parametrize("number", range(2))
@pytest.mark.memory_budget("model.onnx", peak="100 MB", runs=2)
def test_model(number): ...
"""


@pytest.fixture
def said(pytester: pytest.Pytester, model: Path) -> Path:
    """The file to which each measuring child says whether it is alone."""
    (pytester.path / "alone").write_text(ALONE)
    (pytester.path / "alone").chmod(0o700)
    pytester.makepyfile(TESTS)
    return pytester.path / "said"


def test_two_workers_measure_one_after_the_other(run_pytest: RunPytest, said: Path) -> None:
    result = run_pytest("-n2", "--memdiag-python=./alone", "--junit-xml=result.xml")
    result.assert_outcomes(passed=2)
    assert said.read_text().splitlines() == ["alone"] * 2
    lines = [line for line in result.outlines if line.startswith("model.onnx ")]
    assert len(lines) == 2
    assert (said.parent / "result.xml").read_text().count("memdiag.model.onnx.peak") == 2


@pytest.mark.usefixtures("model")
def test_models_are_measured_beside_others_where_that_is_allowed(
    run_pytest: RunPytest, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(TESTS)
    # It would wait for us without end.
    with measurement_lock():
        run_pytest("--memdiag-parallel").assert_outcomes(passed=2)
