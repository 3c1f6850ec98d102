"""The growth of programs that end too early to be judged, and of a server that never ends."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from memdiag.api.leak_program import leak_process, leak_program
from memdiag.errors import UsageError, XrayError
from memdiag.reports.growth.headline import growth_headline

ENDLESS = 10**9
Program = Callable[..., list[str]]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Return a function that returns a command whose `work` is done again and again."""
    path = tmp_path / "m.onnx"
    text = '<ir_version: 8, opset_import: ["": 17]> m (float[n] x) => (float[n] y) { y = Exp(x) }'
    onnx.save(onnx.parser.parse_model(text), path)

    def make(
        work: str = "run()",
        runs: int = ENDLESS,
        width: int = 4,
        pause_s: float = 0.002,
        end: str = "repeat()",
    ) -> list[str]:
        code = f"""
import ctypes, sys, threading, time, numpy, onnxruntime
session = onnxruntime.InferenceSession({str(path)!r}, providers=["CPUExecutionProvider"])
random, libc = numpy.random.default_rng(0), ctypes.CDLL(None)
kept, other = [], []
def run():
    return session.run(None, {{"x": random.standard_normal({width}, numpy.float32)}})[0]
def repeat():
    for _ in range({runs}):
        {work}
        time.sleep({pause_s})
{end}
"""
        return [sys.executable, "-c", code]

    return make


def test_a_server_is_ended_after_the_runs(program: Program) -> None:
    end = "try: repeat()\nexcept KeyboardInterrupt: sys.exit(3)"
    growth, exit_code = leak_program(program(end=end), runs=40, duration_s=60.0)
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
        ({"duration_s": 0.0}, "duration_s must be greater than 0"),
    ],
)
def test_limits_out_of_bounds_are_refused(limits: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        leak_program(["server"], **limits)


@pytest.mark.measures
def test_copies_of_outputs_are_named(program: Program) -> None:
    command = program("kept.append(run().copy())", runs=1500, width=1024)
    growth, _ = leak_program(command)
    judged = growth.verdict, growth.owner, growth.kept_values
    assert judged == ("kept", "heap", "copies of output 'y'")
    assert growth.slope is not None
    assert 4096 <= growth.slope.bytes_per_unit < 4400


@pytest.mark.measures
@pytest.mark.parametrize(
    ("size", "verdicts"), [(20_480, {"leak"}), (0, {"flat", "plateau", "undecided"})]
)
def test_the_memory_of_several_threads_is_read_while_none_runs(
    program: Program, size: int, verdicts: set[str]
) -> None:
    end = """
threads = [threading.Thread(target=repeat) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    work = f"run(); libc.malloc(ctypes.c_size_t({size}))" if size else "run()"
    growth, _ = leak_program(program(work, runs=300, pause_s=0.006, end=end))
    assert growth.verdict in verdicts
    assert growth.runs == 1200
    assert all(moment.heap_bytes is not None for moment in growth.moments)
    if size:
        assert growth.owner == "heap"
        assert growth.slope is not None
        assert size <= growth.slope.low <= growth.slope.high <= 1.05 * size


def test_a_program_that_failed_is_not_judged(program: Program) -> None:
    command = program(runs=30, pause_s=0.0, end="repeat(); sys.exit(3)")
    growth, exit_code = leak_program(command, duration_s=60.0)
    assert exit_code == 3
    assert growth.verdict == "undecided"
    ended = r"the program ended with exit code 3 after [\d.]+ m?s, and nothing could be judged"
    assert re.fullmatch(ended, growth.sentence)
    assert (growth.runs, growth.is_run_count_exact) == (30, True)
    assert [moment.run for moment in growth.moments] == [1, 30]  # the last one at its end
    assert "exit code 3" in growth_headline(growth).first


def test_a_program_that_failed_before_its_first_session_is_an_error() -> None:
    with pytest.raises(XrayError, match=r"ended with exit code 4 after .* Correct its error\."):
        leak_program([sys.executable, "-c", "raise SystemExit(4)"])


@pytest.mark.parametrize("has_parent", [True, False])
def test_a_process_that_ends_early_leaves_its_record(program: Program, has_parent: bool) -> None:
    shell = ["sh", "-c", '"$@" & wait', "sh"] if has_parent else []
    with subprocess.Popen([*shell, *program(runs=600)]) as process:
        growth = leak_process(process.pid, duration_s=60.0)
    assert re.fullmatch(r"the process ended after [\d.]+ m?s of 60 s", growth.message)
    assert growth.moments
    # The process that was judged is named.
    named = rf"process {process.pid}, process \d+" if has_parent else f"process {process.pid}"
    assert re.fullmatch(named, growth.subject)


@pytest.mark.parametrize("has_onnxruntime", [True, False])
def test_a_process_that_began_long_ago_without_onnxruntime_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch, *, has_onnxruntime: bool
) -> None:
    monkeypatch.setattr("memdiag.api.leak_program.STARTUP_S", 0.0)
    module = "onnxruntime" if has_onnxruntime else "sys"
    code = f"import {module}, time; print(flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
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


@pytest.mark.measures
@pytest.mark.parametrize(("other_bytes", "kept"), [(0, "output 'y'"), (4096, "")])
def test_arrays_of_a_few_numbers_are_named_unless_most_is_other_memory(
    program: Program, other_bytes: int, kept: str
) -> None:
    work = f"kept.append(run()[:1]); other.append(bytearray({other_bytes}))"
    growth, _ = leak_program(program(work, runs=1500, pause_s=0.001))
    assert (growth.verdict, growth.kept_values) == ("kept", kept)
