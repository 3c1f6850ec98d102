"""The growth of programs that end too early to be judged, and of a server that never ends."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

from memdiag.api.leak_program import leak_process, leak_program
from memdiag.errors import UsageError, XrayError
from memdiag.reports.growth.headline import growth_headline

FAILING = """
import sys, numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
for _ in range(30):
    session.run(None, {"x": numpy.zeros(4, numpy.float32)})
sys.exit(3)
"""

SERVER = """
import sys, time, numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
try:
    while True:
        session.run(None, {"x": numpy.zeros(4, numpy.float32)})
        time.sleep(0.002)
except KeyboardInterrupt:
    sys.exit(3)
"""


KEEPING = """
import sys, time, numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
random = numpy.random.default_rng(0)
kept = []
while True:
    (output,) = session.run(None, {"x": random.standard_normal(1024, numpy.float32)})
    kept.append(output.copy())
    time.sleep(0.003)
"""


THREADS = """
import ctypes, sys, threading, time, numpy, onnxruntime
size, rounds = map(int, sys.argv[2:])
libc = ctypes.CDLL(None)
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
def work():
    for _ in range(rounds):
        session.run(None, {"x": numpy.zeros(4, numpy.float32)})
        if size:
            libc.malloc(ctypes.c_size_t(size))
        time.sleep(0.006)
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    text = '<ir_version: 8, opset_import: ["": 17]> m (float[4] x) => (float[4] y) { y = Relu(x) }'
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def test_a_server_is_ended_after_the_runs(model: Path) -> None:
    command = [sys.executable, "-c", SERVER, str(model)]
    growth, exit_code = leak_program(command, runs=40, duration_s=60.0)
    assert growth.runs >= 40
    # A slow machine has read it often enough for a verdict.
    is_short = growth.message.startswith("too short for a verdict")
    assert growth.verdict == ("undecided" if is_short else "flat")
    # How it ends after the interrupt is not its verdict.
    assert exit_code == 0


def test_a_program_is_ended_after_the_time() -> None:
    with pytest.raises(XrayError, match=r"sleep 30: no process with onnxruntime was seen\."):
        leak_program(["sleep", "30"], duration_s=0.3)


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ({"runs": 39}, "runs must be at least 40"),
        ({"duration_s": 0.0}, "--for must be greater than 0"),
    ],
)
def test_limits_out_of_bounds_are_refused(limits: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        leak_program(["server"], **limits)


@pytest.mark.measures
def test_copies_of_outputs_are_named(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    text = '<ir_version: 8, opset_import: ["": 17]> m (float[1024] x) => (float[1024] y)'
    onnx.save(onnx.parser.parse_model(f"{text} {{ y = Exp(x) }}"), path)
    growth, _ = leak_program([sys.executable, "-c", KEEPING, str(path)], duration_s=5.0)
    found = growth.verdict, growth.owner, growth.kept_values
    assert found == ("kept", "heap", "copies of output 'y'")
    assert growth.slope is not None
    assert 4096 <= growth.slope.bytes_per_unit < 4400


@pytest.mark.measures
@pytest.mark.parametrize(
    ("size", "verdicts"), [(20_480, {"leak"}), (0, {"flat", "plateau", "undecided"})]
)
def test_the_memory_of_several_threads_is_read_while_none_runs(
    model: Path, size: int, verdicts: set[str]
) -> None:
    growth, _ = leak_program([sys.executable, "-c", THREADS, str(model), str(size), "300"])
    assert growth.verdict in verdicts
    assert growth.runs == 1200
    assert all(moment.heap_bytes is not None for moment in growth.moments)
    if size:
        assert growth.owner == "heap"
        assert growth.slope is not None
        assert size <= growth.slope.low <= growth.slope.high <= 1.05 * size


def test_a_program_that_failed_is_not_judged(model: Path) -> None:
    command = [sys.executable, "-c", FAILING, str(model)]
    growth, exit_code = leak_program(command, duration_s=60.0)
    assert exit_code == 3
    assert growth.verdict == "undecided"
    assert re.fullmatch(
        r"the program ended with exit code 3 after [\d.]+ m?s, and nothing could be judged",
        growth.sentence,
    )
    assert (growth.runs, growth.is_run_count_exact) == (30, True)
    assert [moment.run for moment in growth.moments] == [1, 30]  # the last one at its end
    assert "exit code 3" in growth_headline(growth).first


def test_a_program_that_failed_before_its_first_session_is_an_error() -> None:
    with pytest.raises(XrayError, match=r"ended with exit code 4 after .* Correct its error\."):
        leak_program([sys.executable, "-c", "raise SystemExit(4)"])


def test_a_process_that_ends_early_leaves_its_record(model: Path) -> None:
    ending = SERVER.replace("while True:", "for _ in range(600):")
    with subprocess.Popen([sys.executable, "-c", ending, str(model)]) as process:
        growth = leak_process(process.pid, duration_s=60.0)
    assert re.fullmatch(r"the process ended after [\d.]+ m?s of 60 s", growth.message)
    assert growth.moments


@pytest.mark.parametrize("has_parent", [True, False])
def test_the_process_that_was_judged_is_named(model: Path, has_parent: bool) -> None:
    ending = SERVER.replace("while True:", "for _ in range(1500):")
    command = [sys.executable, "-c", ending, str(model)]
    shell = ["sh", "-c", '"$@" & wait', "sh"] if has_parent else []
    with subprocess.Popen([*shell, *command]) as process:
        growth = leak_process(process.pid)
    named = rf"process {process.pid}, process \d+" if has_parent else f"process {process.pid}"
    assert re.fullmatch(named, growth.subject)


@pytest.mark.parametrize("has_onnxruntime", [True, False])
def test_a_process_that_began_long_ago_without_onnxruntime_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch, *, has_onnxruntime: bool
) -> None:
    monkeypatch.setattr("memdiag.api.leak_program.STARTUP_S", 0.0)
    module = "onnxruntime" if has_onnxruntime else "sys"
    code = f"import {module}, time; print(flush=True); time.sleep(600)"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            if has_onnxruntime:
                assert leak_process(process.pid, duration_s=1.0).moments
            else:
                with pytest.raises(XrayError, match=r"was not recognized in it.* memray run"):
                    leak_process(process.pid)  # without a limit: it would last for ten minutes
        finally:
            process.kill()


def test_a_process_that_ends_at_once_is_one_sentence() -> None:
    with (
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.2)"]) as process,
        pytest.raises(XrayError, match=r"^process \d+: [^:]+\. [A-Z][^:]+\.$"),
    ):
        leak_process(process.pid, duration_s=60.0)


SCALARS = """
import sys, time, numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
kept, other = [], []
for _ in range(1500):
    kept.append(session.run(None, {"x": numpy.zeros(4, numpy.float32)})[0][:1])
    other.append(bytearray(int(sys.argv[2])))
    time.sleep(0.001)
"""


@pytest.mark.measures
@pytest.mark.parametrize(("other_bytes", "kept"), [(0, "output 'y'"), (4096, "")])
def test_arrays_of_a_few_numbers_are_named_unless_most_is_other_memory(
    model: Path, other_bytes: int, kept: str
) -> None:
    growth, _ = leak_program([sys.executable, "-c", SCALARS, str(model), str(other_bytes)])
    assert (growth.verdict, growth.kept_values) == ("kept", kept)
