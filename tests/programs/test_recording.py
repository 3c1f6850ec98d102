"""`memdiag.recording` in a program of its own process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import memdiag
from memdiag.errors import UsageError
from memdiag.records.codec import load
from memdiag.records.run import ProgramRun
from tests.waiting import wait_until

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


def done(program: str, *words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *map(str, words)]
    environment = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)


def test_a_block_of_a_program_is_recorded(tmp_path: Path, linear_model: Path) -> None:
    ended = done(PROGRAM, linear_model, TMPDIR=str(tmp_path))
    assert ended.stdout == "4\n", ended.stderr
    assert list(tmp_path.iterdir()) == []


REPORTS = """
import json, os, sys, time
from pathlib import Path
import memdiag

def reports(path):
    return {file.name for file in path.iterdir()} - {"run.json"}

def is_nice():
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [os.getpriority(os.PRIO_PROCESS, int(child)) > os.nice(0) for child in children]

def failure(folder, waits):
    try:
        with memdiag.recording(folder, xray=False) as recording:
            pass
        if waits:
            recording.wait()
    except memdiag.MemdiagError as error:
        known = recording.run.processes[0].command[-1] == sys.argv[1]
        return type(error).__name__, "it is a folder" in str(error), known

first, second, unwritable, file = (Path(sys.argv[1], name) for name in "abcd")
with memdiag.recording(first, xray=False) as recording:
    print(is_nice())
large = {"jinja2", "matplotlib", "msgspec", "numpy", "onnx", "psutil", "subprocess"}
print(*sorted(large & set(sys.modules)))
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
print(repr(recording).partition(" ")[0], recording._repr_html_()[:17])
(unwritable / "report.md").mkdir(parents=True)
print(failure(unwritable, True), failure(unwritable, False))
file.touch()
print(failure(file, False))
with memdiag.recording(second, xray=False) as recording:
    pass
print(recording.folder.name)
"""


@pytest.mark.skipif(os.nice(0) == 19, reason="another process cannot be nicer")
def test_the_program_goes_on_while_another_process_writes_reports(tmp_path: Path) -> None:
    ended = done(REPORTS, tmp_path)
    written = ["report.html", "report.md", "timeline.png", "trace.json"]
    assert ended.stdout.splitlines() == [
        "[False]",
        "subprocess",  # nothing that takes memory
        "[True]",
        "[]",
        "1",
        "0",
        str(written),
        "<Recording <div><b>Recording",
        "('ReportError', True, True) None",
        "('ReportError', False, True)",
        "b",
    ], ended.stderr
    # An error for which nobody has waited is a warning, and the end of the program waits.
    assert ended.stderr.count("RuntimeWarning") == 1, ended.stderr
    assert {path.name for path in (tmp_path / "b").iterdir()} == {*written, "run.json"}


def test_the_record_of_a_killed_program_is_saved(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys, memdiag\n"
        "with memdiag.recording(sys.argv[1]):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    (tmp_path / "temporary").mkdir()
    done(program, tmp_path / "out", TMPDIR=str(tmp_path / "temporary"))
    record = tmp_path / "out" / "run.json"
    wait_until(record.exists)
    assert load(record, ProgramRun).command[-1] == str(tmp_path / "out")
    wait_until(lambda: not list((tmp_path / "temporary").iterdir()))


def test_a_recorder_that_was_killed_is_one_sentence() -> None:
    program = (
        "import os, signal, memdiag\n"
        "try:\n"
        "    with memdiag.recording() as recording:\n"
        "        os.kill(recording._process.pid, signal.SIGKILL)\n"
        "except memdiag.MemdiagError as error: print(error)"
    )
    assert done(program).stdout == "the recording has failed: its process has ended.\n"


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
    ended = done(FORKING, linear_model)
    assert ended.stdout == "1\n", ended.stderr


def test_a_recording_that_has_not_begun_cannot_be_stopped() -> None:
    with pytest.raises(UsageError, match="has not begun"):
        memdiag.recording().stop()
