"""Memory patterns of sessions, recognised in the memory of a child that runs other sizes."""

import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from benchmarks.environments import ProvisionError
from benchmarks.runtimes import runtime
from memdiag.growth.moment import read_moment
from memdiag.records.growth import Moment

SHAPES = 60

MODEL = """<ir_version: 8, opset_import: ["": 17]>
m (float[n, 16] x) => (float[n, 16] y) {
    a = Exp(x)
    b = Sin(a)
    c = Add(a, b)
    y = Mul(c, a)
}"""

PROGRAM = """
import ctypes, sys
import numpy, onnxruntime

_, path, mode, first, last = sys.argv
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
options = onnxruntime.SessionOptions()
options.enable_mem_pattern = mode != "off"
session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

def block(nbytes, *words):
    address = libc.malloc(nbytes)
    ctypes.memset(address, 0, nbytes)
    ctypes.memmove(address, (ctypes.c_size_t * len(words))(*words), 8 * len(words))
    return address

def lookalike():
    # As the entry of a pattern, but with a table whose capacity is none.
    devices, table = block(16), block(200)
    patterns = block(40, 6, 2, table + 8, table + 32)
    block(56, 7, devices, devices + 16, devices + 16, patterns, patterns + 40, patterns + 40)

def run(rows):
    session.run(None, {"x": numpy.ones((rows, 16), numpy.float32)})

run(1)
print(flush=True)
sys.stdin.readline()
for number in range(int(first), int(last)):
    run(1 + number)
    if mode == "lookalikes":
        lookalike()
print(flush=True)
sys.stdin.readline()
"""

RELEASES = [
    "newest",
    *(pytest.param(each, marks=pytest.mark.slow) for each in ("1.20.1", "1.22.1", "1.24.4")),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    return path


def settled(pid: int) -> Moment:
    """Return the memory of a child once it waits: two readings are equal."""
    for _ in range(50):
        first, second = (read_moment(pid, run=0, time_s=0.0).moment for _ in range(2))
        if second.heap_bytes is not None and first.heap_bytes == second.heap_bytes:
            return second
    raise AssertionError("the child does not wait")


def grown(python: str, model: Path, mode: str, shapes: range) -> tuple[int, int, int]:
    """Return how many patterns and bytes of patterns, and of other blocks, a child has more."""
    arguments = [python, "-c", PROGRAM, str(model), mode, str(shapes.start), str(shapes.stop)]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        moments = []
        for _ in range(2):
            child.stdout.readline()
            moments.append(settled(child.pid))
            child.stdin.write("\n")
            child.stdin.flush()
    before, after = ((m.patterns or 0, m.pattern_bytes or 0, m.heap_bytes or 0) for m in moments)
    patterns, nbytes, others = (late - early for early, late in zip(before, after, strict=True))
    return patterns, nbytes, others


@pytest.mark.parametrize("release", RELEASES)
def test_each_new_shape_has_a_pattern_that_is_no_block_in_use(model: Path, release: str) -> None:
    python = sys.executable
    if release != "newest":
        try:
            python = str(runtime(release))
        except ProvisionError as error:
            pytest.skip(str(error))
    patterns, nbytes, others = grown(python, model, "on", range(1, SHAPES + 1))
    assert patterns == SHAPES
    assert 150 * SHAPES <= nbytes <= 500 * SHAPES
    *_, without = grown(python, model, "off", range(1, SHAPES + 1))
    # Python's own blocks differ by some KiB.
    assert abs(others - without) < nbytes / 2


@pytest.mark.parametrize(("mode", "shapes"), [("on", range(0, 1)), ("off", range(1, SHAPES))])
def test_no_pattern_without_a_new_shape(model: Path, mode: str, shapes: range) -> None:
    assert grown(sys.executable, model, mode, shapes)[:2] == (0, 0)


def test_blocks_that_look_alike_are_counted_as_the_programs(model: Path) -> None:
    patterns, _, others = grown(sys.executable, model, "lookalikes", range(1, SHAPES + 1))
    assert patterns == SHAPES
    assert others >= 300 * SHAPES
