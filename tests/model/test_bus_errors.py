"""Model files that become shorter while they are mapped: an error, not the end of the process."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="files are mapped so on Linux only")

SIDE = 1024
NBYTES = 4 * SIDE * SIDE

READING = """
import os, sys
from pathlib import Path
import numpy as np
from memdiag.errors import MemdiagError
from memdiag.model.equal_weights import identical_weights
from memdiag.model.model_file import open_model
from memdiag.model.transposes import transposes

for action in ACTIONS:
    with open(sys.argv[2], "r+b") as data:
        whole = data.read()
    file = open_model(Path(sys.argv[1]))
    os.truncate(sys.argv[2], int(sys.argv[3]))
    try:
        eval(action)
        file.release()
        print("nothing noticed")
    except MemdiagError as error:
        print(error)
    Path(sys.argv[2]).write_bytes(whole)
"""
ACTIONS = [
    "identical_weights(file)",
    "list(transposes(file, file.weights))",
    "sum(int(np.frombuffer(file.raw_bytes(one), np.uint8).sum()) for one in file.weights)",
    "file.read_proto()",
    "bytes(file.file_bytes_view)",
]
OF_THE_MODELS_OWN_FILE = ACTIONS[-2:]


def write(folder: Path, *, external: bool) -> tuple[Path, Path]:
    """Write a model of four equal or transposed weights, and return it and where these lie."""
    values = np.random.default_rng(0).standard_normal((SIDE, SIDE), np.float32)
    arrays = [values, values, np.ascontiguousarray(values.T), values + 1]
    weights = [numpy_helper.from_array(array, f"w{n}") for n, array in enumerate(arrays)]
    shape = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, SIDE]) for name in "xy"]
    names = ["x", "a", "b", "c", "y"]
    nodes = [
        helper.make_node("MatMul", [names[n], f"w{n}"], [names[n + 1]]) for n in range(len(weights))
    ]
    graph = helper.make_graph(nodes, "g", shape[:1], shape[1:], weights)
    opsets = [helper.make_opsetid("", 17)]
    path = folder / "m.onnx"
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.save(model, path, save_as_external_data=external, location="m.data")
    return path, folder / "m.data" if external else path


@pytest.mark.parametrize(
    ("external", "left"),
    [(False, 0), (False, NBYTES // 2 + 5), (True, NBYTES // 2 + 5)],
    ids=["embedded, empty", "embedded", "external"],
)
def test_a_file_that_becomes_shorter_is_an_error(tmp_path: Path, left: int, external: bool) -> None:
    model, data = write(tmp_path, external=external)
    script = READING.replace("ACTIONS", repr(ACTIONS))
    done = subprocess.run(
        [sys.executable, "-c", script, model, data, str(left)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    for action, line in zip(ACTIONS, done.stdout.splitlines(), strict=True):
        if external and action in OF_THE_MODELS_OWN_FILE:
            assert line == "nothing noticed", action
        else:
            assert line.startswith(f"{model}: "), action
            assert "again" in line, action


def test_a_profile_is_kept_when_its_model_becomes_shorter(tmp_path: Path) -> None:
    model, _ = write(tmp_path, external=False)
    script = """
import os, sys
import memdiag

def shorten(progress):
    if progress.phase in ("first_run", "steady") and os.path.getsize(sys.argv[1]) > 100:
        os.truncate(sys.argv[1], 100)

profile = memdiag.profile(sys.argv[1], runs=10, on_progress=shorten)
print(profile.outcome.status, len(profile.phases) >= 7, profile.attribution is None)
print(*profile.notes, sep="\\n")
"""
    done = subprocess.run(
        [sys.executable, "-c", script, model], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert os.path.getsize(model) == 100
    first, *notes = done.stdout.splitlines()
    assert first == "completed True True"
    assert any(note.startswith("no X-ray: ") and "became shorter" in note for note in notes)
    assert sum("changed during the command" in note for note in notes) == 1


def test_other_bus_errors_end_the_process_as_ever(tmp_path: Path) -> None:
    model, _ = write(tmp_path, external=False)
    other = tmp_path / "other"
    other.write_bytes(bytes(8192))
    script = (
        "import mmap, os, sys; from pathlib import Path;"
        "from memdiag.model.model_file import open_model; open_model(Path(sys.argv[1]));"
        "file = open(sys.argv[2], 'rb');"
        "area = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ);"
        "os.truncate(sys.argv[2], 0); area[5000]"
    )
    done = subprocess.run([sys.executable, "-c", script, model, other], capture_output=True)
    assert done.returncode < 0
