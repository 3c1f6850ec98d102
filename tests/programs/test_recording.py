"""`memdiag.recording` in a program of its own process."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import memdiag
from memdiag.errors import UsageError
from memdiag.records.codec import load
from memdiag.records.run import ProgramRun

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
(note,) = (each for each in run.notes if "created before" in each)
assert note.startswith(f"1 session of process {os.getpid()} was created before the recording"), note
with memdiag.recording(xray=False) as recording:
    again = create()
assert len(recording.run.sessions) == 1
assert recording.run.sessions[0].memory is None
assert "3 sessions of" in recording.run.notes[0], recording.run.notes
with memdiag.recording(xray=False) as recording:
    again.run(None, {"x": np.ones((2, 512), np.float32)})
print(recording.run.earlier_sessions, *recording.run.sessions)
"""

LARGE_MODULES = """
import sys
import memdiag

with memdiag.recording(sys.argv[1], xray=False) as recording:
    pass
found = {"jinja2", "matplotlib", "msgspec", "numpy", "onnx", "psutil", "subprocess"}
print(*sorted(found & set(sys.modules)))
print(repr(recording).partition(" ")[0], recording._repr_html_()[:17])
try:
    with memdiag.recording(__file__, xray=False) as recording:
        pass
except memdiag.MemdiagError as error:
    print(type(error).__name__, recording.run.processes[0].command[-1] == sys.argv[1])
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
    assert done.stdout == "4\n", done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]


def test_another_process_does_what_takes_memory(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(LARGE_MODULES)
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, str(program), str(out)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "subprocess\n<Recording <div><b>Recording\nReportError True\n", (
        done.stderr
    )
    assert {path.name for path in out.iterdir()} >= {"run.json", "report.html", "timeline.png"}


REPORTS = """
import json, os, sys, time
from pathlib import Path
import memdiag
import psutil

def reports(path):
    return {each.name for each in path.iterdir()} - {"run.json"}

def is_nice():
    processes = psutil.Process().children()
    return [each.nice() > psutil.Process().nice() for each in processes]

first, second, unwritable = (Path(sys.argv[1], name) for name in ("first", "second", "unwritable"))
with memdiag.recording(first, xray=False) as recording:
    print(is_nice())
while not any(is_nice()) and not reports(first):  # it may have written the record alone
    time.sleep(0.001)
print(is_nice())
json.loads((first / "run.json").read_bytes())
print(sorted(reports(first)))
with memdiag.recording(xray=False) as other:
    time.sleep(0.4)
print(len(other.run.processes))
child = os.fork()
if not child:  # whose end does not wait for a child of its parent
    sys.exit(0)
print(os.waitpid(child, 0)[1])
recording.wait()
print(sorted(reports(first)))
recording.wait()
unwritable.mkdir()
(unwritable / "report.md").mkdir()
for waits in (True, False):
    with memdiag.recording(unwritable, xray=False) as recording:
        pass
    if waits:
        try:
            recording.wait()
        except memdiag.MemdiagError as error:
            print(type(error).__name__, "it is a folder" in str(error))
with memdiag.recording(second, xray=False) as recording:
    pass
print(recording.folder.name)
"""


def test_the_program_goes_on_while_reports_are_written(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", REPORTS, str(tmp_path)], capture_output=True, text=True
    )
    written = ["report.html", "report.md", "timeline.png", "trace.json"]
    assert done.stdout == f"[False]\n[True]\n[]\n1\n0\n{written}\nReportError True\nsecond\n", (
        done.stderr
    )
    # An error for which nobody has waited is a warning, and the end of the program waits.
    assert done.stderr.count("RuntimeWarning") == 1, done.stderr
    assert {path.name for path in (tmp_path / "second").iterdir()} == {*written, "run.json"}


def test_the_record_of_a_killed_program_is_saved(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys, memdiag\n"
        "with memdiag.recording(sys.argv[1]):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    (tmp_path / "temporary").mkdir()
    subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "out")],
        env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
        check=False,
    )
    record = tmp_path / "out" / "run.json"
    end = time.monotonic() + 60
    while not record.exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert load(record, ProgramRun).command[-1] == str(tmp_path / "out")
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_recorder_that_was_killed_is_one_sentence() -> None:
    program = (
        "import os, signal, memdiag\n"
        "try:\n"
        "    with memdiag.recording() as recording:\n"
        "        os.kill(recording._process.pid, signal.SIGKILL)\n"
        "except memdiag.MemdiagError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "the recording has failed: its process has ended.\n"


FORKING = """
import os, sys, onnxruntime, memdiag
with memdiag.recording() as recording:
    child = os.fork()
    if child == 0:
        sys.exit(0)  # it leaves the block as well
    assert os.waitpid(child, 0)[1] == 0
    session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
print(len(recording.run.sessions))
"""


def test_a_fork_that_leaves_the_block_does_not_end_the_recording(linear_model: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING, str(linear_model)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "1\n"


def test_a_recording_that_has_not_begun_cannot_be_stopped() -> None:
    with pytest.raises(UsageError, match="has not begun"):
        memdiag.recording().stop()
