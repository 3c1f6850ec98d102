import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks.environments import ProvisionError
from benchmarks.runtimes import runtime
from memdiag.records.finding import Finding
from memdiag.units import MIB
from tests.rules.examining import findings

# Print how far two runs with ones, with two threads, raise the address space, in KiB.
MEASURE = """
import re, sys
import numpy, onnxruntime
def peak():
    with open("/proc/self/status") as file:
        return int(re.search(r"VmPeak:\\s+(\\d+)", file.read())[1])
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 2
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
x = numpy.ones(session.get_inputs()[0].shape, "f4")
before = peak()
for _ in range(2):
    session.run(None, {"x": x})
print(peak() - before)
"""


def conv(
    x: Sequence[int | str],
    weight: Sequence[int],
    attributes: Mapping[str, object] | None = None,
    *,
    kind: str = "float32",
) -> onnx.ModelProto:
    """Return a model of one Conv of an input of shape `x` with a weight of shape `weight`."""
    element = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    graph = helper.make_graph(
        [
            helper.make_node(
                "Conv", ["x", "w"], ["y"], name="conv", **dict[str, Any](attributes or {})
            )
        ],
        "g",
        [helper.make_tensor_value_info("x", element, x)],
        [helper.make_tensor_value_info("y", element, [None] * len(x))],
        [numpy_helper.from_array(np.ones(weight, kind), "w")],
    )
    assert element in (TensorProto.FLOAT, TensorProto.FLOAT16)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def found(model: onnx.ModelProto, folder: Path, release: str = "1.24.4") -> list[Finding]:
    return findings("conv-scratch", model, folder, runtime=release)


BATCH_3D: tuple[list[int], list[int]] = ([2, 16, 32, 64, 64], [16, 16, 3, 3, 3])
PADS_3D: dict[str, object] = {"pads": [1] * 6}


@pytest.mark.parametrize("release", ["1.24.4", "1.26.0"])
def test_a_batch_in_three_dimensions_is_reported_with_its_buffer(
    release: str, tmp_path: Path
) -> None:
    (finding,) = found(conv(*BATCH_3D, PADS_3D), tmp_path, release)
    assert finding.rule == "MD802"
    # 32 × 64 × 64 pixels, 16 channels, 27 elements of the kernel, 4 bytes.
    assert finding.message == (
        "conv reserves 216 MiB for each thread of the session, up to 2 times, in each run under"
        f" onnxruntime {release}"
    )
    assert (finding.nodes, finding.bytes, finding.peak_bytes) == (("conv",), 0, 0)


@pytest.mark.parametrize("release", ["1.27.0", "1.32.0"])
def test_releases_without_the_defect_are_not_reported(release: str, tmp_path: Path) -> None:
    assert found(conv(*BATCH_3D, PADS_3D), tmp_path, release) == []


@pytest.mark.parametrize(
    ("x", "weight", "attributes", "is_reported"),
    [
        # Groups in one and in three dimensions; in two, channels that make no block.
        ([1, 768, 1500], [768, 48, 128], {"group": 16, "pads": [64, 64]}, True),
        ([1, 32, 32, 64, 64], [32, 8, 3, 3, 3], {"group": 4, **PADS_3D}, True),
        ([1, 40, 512, 512], [40, 10, 3, 3], {"group": 4, "pads": [1] * 4}, True),
        # Neither a batch nor groups.
        ([1, 16, 64, 64, 64], [16, 16, 3, 3, 3], PADS_3D, False),
        # Less than 256 MiB with 8 threads.
        ([1, 40, 256, 256], [40, 10, 3, 3], {"group": 4, "pads": [1] * 4}, False),
        ([4, 30, 512, 512], [30, 30, 3, 3], {"pads": [1] * 4}, True),
        # In blocks: few channels, a multiple of 4, depthwise, and groups of 8 channels.
        ([8, 15, 512, 512], [30, 15, 3, 3], {"pads": [1] * 4}, False),
        ([4, 36, 512, 512], [30, 36, 3, 3], {"pads": [1] * 4}, False),
        ([4, 40, 1024, 1024], [40, 1, 3, 3], {"group": 40, "pads": [1] * 4}, False),
        ([4, 32, 512, 512], [32, 8, 3, 3], {"group": 4, "pads": [1] * 4}, False),
        # A kernel of one element, of which the input needs no unfolding; with strides it does.
        ([2, 64, 64, 128, 128], [64, 64, 1, 1, 1], {}, False),
        ([2, 64, 64, 256, 256], [64, 64, 1, 1, 1], {"strides": [1, 1, 2]}, True),
        # A batch of unknown size.
        (["batch", *BATCH_3D[0][1:]], BATCH_3D[1], PADS_3D, False),
        # More filters than pixels: one buffer for all threads.
        ([8, 40_000, 4, 4, 4], [9, 40_000, 3, 3, 3], {"strides": [2] * 3, **PADS_3D}, False),
    ],
)
def test_only_convolutions_that_unfold_for_each_thread_are_reported(
    x: list[int | str],
    weight: list[int],
    attributes: dict[str, object],
    is_reported: bool,
    tmp_path: Path,
) -> None:
    assert bool(found(conv(x, weight, attributes), tmp_path)) == is_reported


def test_float16_is_not_reported(tmp_path: Path) -> None:
    assert found(conv(*BATCH_3D, PADS_3D, kind="float16"), tmp_path) == []


def test_a_given_batch_is_counted(tmp_path: Path) -> None:
    model = conv(["batch", *BATCH_3D[0][1:]], BATCH_3D[1], PADS_3D)
    (finding,) = findings("conv-scratch", model, tmp_path, runtime="1.25.1", sizes={"batch": 6})
    assert "216 MiB for each thread of the session, up to 6 times" in finding.message


@pytest.mark.slow
@pytest.mark.parametrize(("version", "is_affected"), [("1.24.4", True), ("1.32.0", False)])
def test_real_releases_reserve_it_for_each_of_two_threads(
    version: str, is_affected: bool, tmp_path: Path
) -> None:
    path = tmp_path / "conv.onnx"
    onnx.save(conv(*BATCH_3D, PADS_3D), path)
    try:
        python = runtime(version)
    except ProvisionError as error:
        pytest.skip(str(error))
    command = [str(python), "-c", MEASURE, str(path)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert (int(printed) * 1024 >= 2 * 216 * MIB) == is_affected
    assert len(found(onnx.load(path), tmp_path, version)) == is_affected
