"""Sessions, phases and arenas of recorded programs on several releases of onnxruntime."""

import sys
from pathlib import Path

import pytest

from benchmarks.environments import ProvisionError
from benchmarks.runtimes import runtime
from memdiag.api.run import run
from memdiag.units import MIB

NEWEST = "newest"
RELEASES = [
    NEWEST,
    *(pytest.param(release, marks=pytest.mark.slow) for release in ("1.20.1", "1.22.1", "1.24.4")),
]
ROWS = (1, 40_000, 0, 100, 20_000)
"""Rows of each session's runs; 0 for a session that never runs, whose arena has no region. The
intermediate of a run has as many rows of 512 floats."""

PROGRAM = f"""
import sys, threading, time
import numpy as np
import onnxruntime

sessions = {{}}


def create(number):
    sessions[number] = onnxruntime.InferenceSession(
        sys.argv[1], providers=["CPUExecutionProvider"]
    )


if sys.argv[2] == "concurrent":
    threads = [threading.Thread(target=create, args=(number,)) for number in range({len(ROWS)})]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
else:
    for number in range({len(ROWS)}):
        create(number)
for number in range(5):
    create("released")
del sessions["released"]
for number, rows in enumerate({ROWS}):
    if not rows:
        continue
    sessions[number].run(None, {{"x": np.ones((rows, 512), np.float32)}})
    sessions[number].run(None, {{"x": np.ones((rows, 512), np.float32)}})
"""


@pytest.mark.parametrize("order", ["one after the other", "concurrent"])
@pytest.mark.parametrize("release", RELEASES)
def test_each_arena_belongs_to_the_session_whose_runs_it_served(
    tmp_path: Path, chain_model: Path, release: str, order: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    recording = run([python_of(release), str(program), str(chain_model), order])
    assert recording.exit_code == 0
    alive = [session for session in recording.sessions if session.released_s is None]
    assert len(alive) == len(ROWS)
    for session in alive:
        if not session.run_count:
            continue
        (counted,) = session.shapes
        assert counted.shapes is not None
        assert counted.runs == 2
        rows, width = counted.shapes["x"]
        memory = session.memory
        assert memory is not None
        assert memory.arena_used_bytes is not None
        assert memory.arena_slack_bytes is not None
        # The arena doubles its regions, and the pattern of the second run has a block of its own.
        needed = rows * width * 4
        reserved = memory.arena_used_bytes + memory.arena_slack_bytes
        assert needed <= reserved <= 6 * needed + 16 * MIB, session.number
        assert [phase.name for phase in session.phases][-2:] == ["prepack", "first_run"]


def python_of(release: str) -> str:
    """Return the interpreter of an environment with onnxruntime `release`."""
    if release == NEWEST:
        return sys.executable
    try:
        return str(runtime(release))
    except ProvisionError as error:
        pytest.skip(str(error))
