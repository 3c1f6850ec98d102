"""The arena's regions, chunks and planned block, beside the runtime's own log."""

import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from memdiag.model.model_file import open_model
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.arena import (
    FIRST_REGION_BYTES,
    HANDLE_BYTES,
    ArenaRequest,
    SimulatedArena,
    planned_block,
)
from memdiag.ort.runtime import Runtime
from memdiag.units import KIB, MIB

TABLE = HANDLE_BYTES / 256  # of a region, for each of its bytes


def served(*sizes: int) -> SimulatedArena:
    """Return an arena from which values of these sizes are taken, and none is freed."""
    arena = SimulatedArena()
    for key, size in enumerate(sizes):
        arena.take(key, size)
    return arena


@pytest.mark.parametrize(
    ("sizes", "held"),
    [
        ((1,), 1),
        ((MIB,), 1),
        ((MIB + 1,), 2),
        ((MIB, MIB), 1 + 2),
        ((MIB, MIB, 3 * MIB), 1 + 2 + 4),
        ((50 * MIB,), 64),
        # A larger request sets the size of the next region as well; the one after it doubles.
        ((50 * MIB, 20 * MIB, 65 * MIB), 64 + 64 + 128),
    ],
)
def test_regions_double(sizes: tuple[int, ...], held: int) -> None:
    assert served(*sizes).held_bytes == held * MIB


def test_only_what_is_written_is_resident() -> None:
    arena = served(50 * MIB)
    assert arena.resident_bytes == 50 * MIB + 64 * MIB * TABLE
    arena.free(0)
    assert arena.resident_bytes == 50 * MIB + 64 * MIB * TABLE
    arena.take(1, 60 * MIB)
    assert arena.resident_bytes == 60 * MIB + 64 * MIB * TABLE


def test_a_chunk_is_split_only_if_it_is_twice_as_large() -> None:
    # The rest of 14 MiB is no chunk of its own, so a second region is needed.
    assert served(50 * MIB, 14 * MIB).held_bytes == 128 * MIB
    assert served(32 * MIB, 32 * MIB).held_bytes == 32 * MIB + 32 * MIB
    assert served(2 * MIB, 1 * MIB, 1 * MIB).held_bytes == 2 * MIB + 2 * MIB


def test_freed_neighbours_become_one_chunk() -> None:
    arena = served(FIRST_REGION_BYTES // 4, FIRST_REGION_BYTES // 4, FIRST_REGION_BYTES // 2)
    assert arena.held_bytes == FIRST_REGION_BYTES
    for key in (0, 2, 1):
        arena.free(key)
    arena.take(3, FIRST_REGION_BYTES)
    assert arena.held_bytes == FIRST_REGION_BYTES


def test_the_smallest_chunk_that_fits_is_taken() -> None:
    arena = served(MIB, 2 * MIB)
    arena.free(0)
    arena.free(1)
    arena.take(2, 900 * KIB)  # in the first region
    arena.take(3, 2 * MIB)  # in the second one
    assert arena.held_bytes == 3 * MIB


@pytest.mark.parametrize(
    ("requests", "block"),
    [
        ([], 0),
        ([(1, 100)], 128),
        ([(1, 64), (2, 64), (1, 0), (3, 64)], 128),
        # The hole of the first value is too small for the third.
        ([(1, 64), (2, 64), (1, 0), (3, 128)], 256),
        # The smallest hole that is large enough, not the first.
        ([(1, 256), (2, 64), (3, 64), (4, 64), (1, 0), (3, 0), (5, 64), (6, 256)], 448),
    ],
)
def test_values_have_places_in_one_block(requests: list[tuple[int, int]], block: int) -> None:
    assert planned_block(ArenaRequest(key, nbytes) for key, nbytes in requests) == block


def test_values_that_are_not_planned_have_no_place() -> None:
    assert planned_block([ArenaRequest(1, 64), ArenaRequest(2, 512, is_planned=False)]) == 64


CHAIN = """a = Erf (x) b = Sin (a) c = Concat <axis = 1> (a, b) d = Cos (c) e = Tan (d)
    y = ReduceSum <keepdims = 1> (e, axes)"""
LOOP = "yMORE = Loop (times, yes, x) <body = b (int64 i, bool c, float[k, 4096] a) => "
GROWING = """(bool d, float[l, 4096] eMORE) { d = Identity (c) s = Sin (a)
    t = ReduceSum <keepdims = 1> (s, rows) e = Concat <axis = 0> (a, t) }>"""
GRAPHS = {
    "a chain": CHAIN,
    # In a later run an iteration has a block for s and t. Its result stays for the next one.
    "a list that grows": (LOOP + GROWING).replace("MORE", ""),
    "a list that grows, and its rows": LOOP.replace("MORE", ", z")
    + GROWING.replace("MORE", ", float[1, 4096] t"),
    "equal iterations": LOOP.replace("MORE", ", z")
    + """(bool d, float[k, 4096] e, float[k, 4096] f) {
    d = Identity (c) g = Erf (a) h = Cos (g) e = Add (g, h) f = Tan (e) }>""",
}
SCRIPT = """
import sys
import numpy
import onnxruntime
onnxruntime.set_default_logger_severity(0)
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
for _ in range(2):
    session.run(None, {"x": numpy.ones((int(sys.argv[2]), 4096), numpy.float32)})
"""


@pytest.mark.parametrize("rows", [10, 60, 250, 700])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_runtime_takes_the_same_regions(tmp_path: Path, name: str, rows: int) -> None:
    path = tmp_path / "model.onnx"
    outputs = "float y, float z" if "y, z" in GRAPHS[name] else "float y"
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 17]> g (float[n, 4096] x) => ({outputs})
        <int64[1] axes = {{1}}, int64[1] rows = {{0}}, int64 times = {{20}}, bool yes = {{1}}>
        {{ {GRAPHS[name]} }}"""
    )
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    onnx.save(model, path)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path), str(rows)],
        capture_output=True,
        text=True,
        check=True,
        env={"ORT_DISABLE_TELEMETRY": "1"},
    )
    extended = re.findall(r"Extended allocation by (\d+) bytes", done.stderr)
    with open_model(path) as opened:
        sizes = {"n": rows}
        runtime = Runtime.installed()
        ctx = AnalysisContext(opened, runtime, sizes=sizes, reads_weights=False)
        run = ctx.run(sizes)
    arena = SimulatedArena()
    arena.serve(run.requests)
    arena.serve_again(run.later.requests, 1)
    assert arena.held_bytes == sum(map(int, extended))


@pytest.mark.parametrize(
    ("planned", "later_runs", "written"), [(900, 1, 901), (900, 2, 1800), (890, 2, 891)]
)
def test_the_third_run_may_write_another_region(
    planned: int, later_runs: int, written: int
) -> None:
    # The block takes the region of 1 GiB whole where less than 128 MiB of it would be left: the
    # output then needs a region of its own, in which the third run places the block.
    value, output = ArenaRequest(1, planned * MIB), ArenaRequest(2, MIB, is_planned=False)
    requests = [value, value._replace(nbytes=0), output, output._replace(nbytes=0)]
    arena = SimulatedArena()
    arena.serve(requests)
    arena.serve_again(requests, later_runs)
    assert arena.resident_bytes - TABLE * arena.held_bytes == written * MIB
