"""`memdiag.recording` in a program of its own process."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the tree is read from /proc")

PROGRAM = """
import os, subprocess, sys
import numpy as np
import onnxruntime
import memdiag

path = sys.argv[1]
create = lambda: onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
init = onnxruntime.InferenceSession.__init__
before = create()
with memdiag.recording() as recording:
    assert recording.run is None
    inside = create()
    inside.run(None, {"x": np.ones((2, 512), np.float32)})
    subprocess.run([sys.executable, "-c", "import onnxruntime, sys;"
        "onnxruntime.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])", path])
    try:
        with memdiag.recording():
            raise AssertionError
    except memdiag.MemdiagError as error:
        assert "recorded already" in str(error)
assert onnxruntime.InferenceSession.__init__ is init
inside.run(None, {"x": np.ones((2, 512), np.float32)})
after = create()
assert "MEMDIAG_RUN_ADDRESS" not in os.environ
run = recording.run
assert [session.run_count for session in run.sessions] == [1, 0], run.sessions
assert len({session.pid for session in run.sessions}) == 2
assert run.sessions[0].memory.weight_bytes
assert run.exit_code is None
(note,) = run.notes
assert note.startswith(f"1 session of process {os.getpid()} was created before the recording"), note
with memdiag.recording(xray=False) as recording:
    again = create()
assert len(recording.run.sessions) == 1
assert recording.run.sessions[0].memory is None
assert "3 sessions of" in recording.run.notes[0], recording.run.notes
print("done")
"""


def test_a_block_of_a_program_is_recorded(tmp_path: Path, linear_model: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    done = subprocess.run(
        [sys.executable, str(program), str(linear_model)],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        check=False,
    )
    assert done.stdout == "done\n", done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]
