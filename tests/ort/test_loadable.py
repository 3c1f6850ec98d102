"""The oldest release that loads a model, held against releases that are there."""

import json
import os
import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memdiag.model.model_file import open_model
from memdiag.ort.loadable import OldestRelease, oldest_runtime
from memdiag.ort.releases import (
    NEW_CONTRIB_OPERATORS,
    NEWEST_IR_VERSION,
    NEWEST_OPSETS,
    OLDEST_RELEASE,
)
from memdiag.ort.runtime import Runtime
from tests.builders import build, saved

RUNTIMES = [Path(one) for one in os.environ.get("MEMDIAG_RUNTIMES", "").split(":") if one]
_LOAD = """
import json, sys
import onnxruntime
import onnxruntime.capi.onnxruntime_pybind11_state as state
onnxruntime.set_default_logger_severity(4)
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
loaded = {}
for path in sys.argv[1:]:
    try:
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        loaded[path] = True
    except Exception:
        loaded[path] = False
names = [one.name for one in state.get_all_operator_schema() if one.domain == "com.microsoft"]
print(json.dumps([onnxruntime.__version__, loaded, names]))
"""


def write(folder: Path, name: str = "m", **declared: Any) -> Path:
    """Write a model of a node, of the declared versions: ir, opset and ml."""
    versions = {"ir": 8, **declared}
    node = versions.pop("node", "y = Relu(x)")
    domains = {"ai.onnx.ml": versions.pop("ml", 1), "com.microsoft": 1, "other": 9}
    model = build(f"(float[2] x) => (float[2] y) {{ {node} }}", domains=domains, **versions)
    return saved(model, folder, f"{name}.onnx")


def nbits(folder: Path, bits: int) -> Path:
    """Write a product by a weight of 16 columns and 32 rows of so many bits."""
    node = f"MatMulNBits <K = 32, N = 16, bits = {bits}, block_size = 32> (x, b, s)"
    model = build(
        f"(float[n, 32] x) => (float[n, 16] y) {{ y = com.microsoft.{node} }}",
        ir=8,
        domains={"com.microsoft": 1},
        weights={"b": np.ones((16, 1, 4 * bits), np.uint8), "s": np.ones(16, np.float32)},
    )
    return saved(model, folder, f"bits-{bits}.onnx")


def needed(path: Path) -> OldestRelease:
    with open_model(path) as model:
        return oldest_runtime(model)


@pytest.mark.parametrize(
    ("declared", "runtime", "why"),
    [
        ({}, OLDEST_RELEASE, ""),
        ({"ir": 10, "opset": 21}, OLDEST_RELEASE, ""),
        ({"ir": 11}, Runtime(1, 23), "version 11 of the IR"),
        ({"ir": 12}, Runtime(1, 24), "version 12 of the IR"),
        ({"ir": 99}, None, "version 99 of the IR"),
        ({"opset": 22}, Runtime(1, 21), "opset 22 of ai.onnx"),
        ({"opset": 26}, Runtime(1, 25), "opset 26 of ai.onnx"),
        ({"ir": 14}, Runtime(1, 32), "version 14 of the IR"),
        ({"opset": 28}, Runtime(1, 32), "opset 28 of ai.onnx"),
        ({"opset": 29}, None, "opset 29 of ai.onnx"),
        ({"ml": 6}, None, "opset 6 of ai.onnx.ml"),
        ({"ir": 11, "opset": 26}, Runtime(1, 25), "opset 26 of ai.onnx"),
        ({"node": "y = com.microsoft.FusedMatMul(x, x)"}, OLDEST_RELEASE, ""),
        ({"node": "y = com.microsoft.MatMulNBits <bits = 4> (x)"}, OLDEST_RELEASE, ""),
        ({"node": "y = com.microsoft.MatMulNBits <bits = 8> (x)"}, Runtime(1, 22), "of 8 bits"),
        ({"node": "y = com.microsoft.LinearAttention(x)"}, Runtime(1, 26), "LinearAttention"),
        ({"node": "y = other.LinearAttention(x)"}, OLDEST_RELEASE, ""),
    ],
)
def test_what_is_declared_needs_a_release(
    tmp_path: Path, declared: dict[str, Any], runtime: Runtime | None, why: str
) -> None:
    need = needed(write(tmp_path, **declared))
    assert need.runtime == runtime
    assert why in need.why
    assert bool(why) == bool(need.why)


def test_operators_in_branches_count(tmp_path: Path) -> None:
    branch = "g () => (float[2] {0}) {{ {0} = {1}(x) }}"
    node = (
        "c = Constant <value = bool {1}> () "
        f"y = If (c) <then_branch = {branch.format('t', 'com.microsoft.GatedAdd')},"
        f" else_branch = {branch.format('e', 'Relu')}>"
    )
    assert needed(write(tmp_path, node=node)).runtime == Runtime(1, 29)


@pytest.mark.slow
@pytest.mark.parametrize("python", RUNTIMES, ids=lambda path: path.parts[-3])
def test_releases_load_what_is_predicted_and_nothing_else(tmp_path: Path, python: Path) -> None:
    models = {
        write(tmp_path, f"{kind}-{version}", **{kind: version})
        for kind, versions in (("ir", range(8, 16)), ("opset", range(17, 30)), ("ml", range(1, 7)))
        for version in versions
    } | {nbits(tmp_path, bits) for bits in (4, 8)}
    done = subprocess.run(
        [str(python), "-c", _LOAD, *map(str, models)], capture_output=True, text=True, check=True
    )
    version, loaded, names = json.loads(done.stdout)
    runtime = Runtime.parse(version)
    for path in models:
        oldest = needed(path).runtime
        assert loaded[str(path)] == (oldest is not None and oldest <= runtime), path.name
    for since, operators in NEW_CONTRIB_OPERATORS.items():
        for name in operators:
            assert (name in names) == (since <= runtime), name


def test_the_tables_are_in_order() -> None:
    for newest in (NEWEST_IR_VERSION, *NEWEST_OPSETS.values()):
        rising = list(newest.items())
        for (one, old), (other, new) in product(rising, rising):
            assert (one < other) == (old < new)
        assert rising[0][0] == OLDEST_RELEASE
