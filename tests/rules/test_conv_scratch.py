import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from benchmarks.environments import ProvisionError
from benchmarks.runtimes import runtime
from memdiag.records.finding import Finding
from memdiag.units import MIB
from tests.model_text import with_weights
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
Sizes = list[Any]


def conv(x: Sizes, weight: Sizes, attributes: str = "", kind: str = "float32") -> onnx.ModelProto:
    """Return a model of one Conv of an input of shape `x` with a weight of shape `weight`."""
    sizes = ", ".join(map(str, x))
    element = "float" if kind == "float32" else kind
    outputs = ", ".join("abcde"[: len(x)])
    node = f"[conv] y = Conv <{attributes}> (x, w)" if attributes else "[conv] y = Conv (x, w)"
    text = f"g ({element}[{sizes}] x) => ({element}[{outputs}] y) {{ {node} }}"
    return with_weights(text, 9, 17, w=np.ones(weight, kind))


def found(model: onnx.ModelProto, folder: Path, release: str = "1.24.4") -> list[Finding]:
    return findings("conv-scratch", model, folder, runtime=release)


X, WEIGHT = [2, 16, 32, 64, 64], [16, 16, 3, 3, 3]
PADS_1D, PADS_2D, PADS_3D = "pads = [64, 64]", "pads = [1, 1, 1, 1]", "pads = [1, 1, 1, 1, 1, 1]"
BATCH_3D = conv(X, WEIGHT, PADS_3D)


@pytest.mark.parametrize("release", ["1.24.4", "1.26.0"])
def test_a_batch_in_three_dimensions_is_reported_with_its_buffer(
    release: str, tmp_path: Path
) -> None:
    (finding,) = found(BATCH_3D, tmp_path, release)
    # 32 × 64 × 64 pixels, 16 channels, 27 elements of the kernel, 4 bytes.
    assert "conv reserves 216 MiB for each thread of the session, up to 2 times" in finding.message
    assert (finding.rule, finding.nodes) == ("MD802", ("conv",))
    assert (finding.bytes, finding.peak_bytes) == (0, 0)


@pytest.mark.parametrize("release", ["1.27.0", "1.32.0"])
def test_releases_without_the_defect_are_not_reported(release: str, tmp_path: Path) -> None:
    assert found(BATCH_3D, tmp_path, release) == []


@pytest.mark.parametrize(
    ("x", "weight", "attributes", "is_reported"),
    [
        # Groups in one and in three dimensions; in two, channels that make no block.
        ([1, 768, 1500], [768, 48, 128], f"group = 16, {PADS_1D}", True),
        ([1, 32, 32, 64, 64], [32, 8, 3, 3, 3], f"group = 4, {PADS_3D}", True),
        ([1, 40, 512, 512], [40, 10, 3, 3], f"group = 4, {PADS_2D}", True),
        # Neither a batch nor groups.
        ([1, 16, 64, 64, 64], [16, 16, 3, 3, 3], PADS_3D, False),
        # Less than 256 MiB with 8 threads.
        ([1, 40, 256, 256], [40, 10, 3, 3], f"group = 4, {PADS_2D}", False),
        ([4, 30, 512, 512], [30, 30, 3, 3], PADS_2D, True),
        # In blocks: few channels, a multiple of 4, depthwise, and groups of 8 channels.
        ([8, 15, 512, 512], [30, 15, 3, 3], PADS_2D, False),
        ([4, 36, 512, 512], [30, 36, 3, 3], PADS_2D, False),
        ([4, 40, 1024, 1024], [40, 1, 3, 3], f"group = 40, {PADS_2D}", False),
        ([4, 32, 512, 512], [32, 8, 3, 3], f"group = 4, {PADS_2D}", False),
        # A kernel of one element, of which the input needs no unfolding; with strides it does.
        ([2, 64, 64, 128, 128], [64, 64, 1, 1, 1], "", False),
        ([2, 64, 64, 256, 256], [64, 64, 1, 1, 1], "strides = [1, 1, 2]", True),
        # A batch of unknown size.
        (["batch", *X[1:]], WEIGHT, PADS_3D, False),
        # More filters than pixels: one buffer for all threads.
        ([8, 40_000, 4, 4, 4], [9, 40_000, 3, 3, 3], f"strides = [2, 2, 2], {PADS_3D}", False),
    ],
)
def test_only_convolutions_that_unfold_for_each_thread_are_reported(
    x: Sizes, weight: Sizes, attributes: str, is_reported: bool, tmp_path: Path
) -> None:
    assert bool(found(conv(x, weight, attributes), tmp_path)) == is_reported


def test_float16_is_not_reported(tmp_path: Path) -> None:
    assert found(conv(X, WEIGHT, PADS_3D, "float16"), tmp_path) == []


def test_a_given_batch_is_counted(tmp_path: Path) -> None:
    model = conv(["batch", *X[1:]], WEIGHT, PADS_3D)
    (finding,) = findings("conv-scratch", model, tmp_path, runtime="1.25.1", sizes={"batch": 6})
    assert "216 MiB for each thread of the session, up to 6 times" in finding.message


@pytest.mark.slow
@pytest.mark.parametrize(("version", "is_affected"), [("1.24.4", True), ("1.32.0", False)])
def test_real_releases_reserve_it_for_each_of_two_threads(
    version: str, is_affected: bool, tmp_path: Path
) -> None:
    path = tmp_path / "conv.onnx"
    onnx.save(BATCH_3D, path)
    try:
        python = runtime(version)
    except ProvisionError as error:
        pytest.skip(str(error))
    command = [str(python), "-c", MEASURE, str(path)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert (int(printed) * 1024 >= 2 * 216 * MIB) == is_affected
    assert len(found(BATCH_3D, tmp_path, version)) == is_affected
