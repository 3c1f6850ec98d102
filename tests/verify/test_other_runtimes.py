"""Changed models on other runtimes: right ones pass, wrong ones do not, and what cannot be told."""

import os
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from memdiag.errors import UsageError
from memdiag.runner.job import Feed, Job
from memdiag.verify.model_evaluator import InputSet
from memdiag.verify.other_runtimes import OtherRuntimes, releases_of
from memdiag.verify.outputs import Bound

RUNTIMES = [Path(one) for one in os.environ.get("MEMDIAG_RUNTIMES", "").split(":") if one]
HERE = Path(sys.executable)


def write(path: Path, node: str = "y = MatMul(x, w)", scale: float = 1, ir: int = 9) -> Path:
    text = f"""<ir_version: {ir}, opset_import: ["" : 17]>
        g (float[n, 8] x) => (float[n, 8] y) {{ {node} }}"""
    proto = parser.parse_model(text)
    values = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32) * np.float32(scale)
    proto.graph.initializer.append(numpy_helper.from_array(values, "w"))
    onnx.save(proto, path)
    return path


@pytest.fixture
def trial(tmp_path: Path) -> InputSet:
    file = tmp_path / "x.npy"
    np.save(file, np.random.default_rng(1).standard_normal((3, 8)).astype(np.float32))
    return InputSet("3 rows", (Feed(name="x", files=(file,)),), timed=True)


def test_outputs_are_held_to_the_original_s_there(tmp_path: Path, trial: InputSet) -> None:
    original = Job(model=write(tmp_path / "original.onnx"))
    others = OtherRuntimes(releases_of([HERE]), original, [trial], tmp_path)
    assert len(others.versions) == 1
    assert others.notes == []
    same, wrong = write(tmp_path / "same.onnx"), write(tmp_path / "wrong.onnx", scale=1.5)
    assert others.problem(Job(model=same), Bound.exact()) is None
    problem = others.problem(Job(model=wrong), Bound.reordered(8))
    assert problem is not None
    assert problem.startswith(f"on onnxruntime {others.versions[0]} output y differs by")
    unknown = write(tmp_path / "unknown.onnx", "y = Nonsense(x, w)")
    problem = others.problem(Job(model=unknown), Bound.exact())
    assert problem is not None
    assert "it does not run" in problem


def test_where_the_original_does_not_run_nothing_is_compared(
    tmp_path: Path, trial: InputSet
) -> None:
    original = Job(model=write(tmp_path / "original.onnx", "y = Nonsense(x, w)"))
    others = OtherRuntimes(releases_of([HERE]), original, [trial], tmp_path)
    assert others.versions == ()
    assert "does not run the original" in others.notes[0]
    wrong = write(tmp_path / "wrong.onnx", scale=1.5)
    assert others.problem(Job(model=wrong), Bound.exact()) is None


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, "cannot be started as a Python interpreter"),
        ("#!/bin/sh\necho no module >&2\nexit 1\n", r"cannot be imported \(no module\)"),
    ],
)
def test_an_interpreter_without_a_runtime_is_an_error(
    tmp_path: Path, trial: InputSet, script: str | None, message: str
) -> None:
    python = tmp_path / "python"
    if script is not None:
        python.write_text(script)
        python.chmod(0o755)
    with pytest.raises(UsageError, match=message):
        releases_of([python])


@pytest.mark.slow
@pytest.mark.parametrize("python", RUNTIMES, ids=lambda path: path.parts[-3])
def test_real_runtimes_tell_what_is_too_new_for_them(
    tmp_path: Path, trial: InputSet, python: Path
) -> None:
    original = Job(model=write(tmp_path / "original.onnx"))
    others = OtherRuntimes(releases_of([python]), original, [trial], tmp_path)
    assert others.problem(original, Bound.exact()) is None
    newer = write(tmp_path / "newer.onnx", ir=14)
    problem = others.problem(Job(model=newer), Bound.exact())
    assert problem is not None
    assert f"on onnxruntime {others.versions[0]} it does not run" in problem
