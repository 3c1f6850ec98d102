"""The arena's regions, chunks and planned block, next to the runtime's own log."""

from pathlib import Path

import numpy as np
import pytest

from memdiag.ort.arena import (
    FIRST_REGION_BYTES,
    HANDLE_BYTES,
    ArenaRequest,
    ArenaStrategy,
    RegionSizes,
    SimulatedArena,
    planned_block,
)
from memdiag.units import GIB, KIB, MIB
from tests.builders import build, cases, saved
from tests.ort.executing import analysed, held_by_arena

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
        # A chunk is split only if it is twice as large: the rest of 14 MiB is none of its own.
        ((50 * MIB, 14 * MIB), 64 + 64),
        ((32 * MIB, 32 * MIB), 32 + 32),
        ((2 * MIB, 1 * MIB, 1 * MIB), 2 + 2),
    ],
)
def test_regions_double(sizes: tuple[int, ...], held: int) -> None:
    assert served(*sizes).held_bytes == held * MIB


@pytest.mark.parametrize(
    ("strategy", "sizes"),
    [
        ("kNextPowerOfTwo", (GIB // 2, GIB // 2, GIB, GIB)),
        ("kSameAsRequested", (300 * MIB + 256,) * 4),
    ],
)
def test_regions_double_up_to_1_gib_or_are_as_requested(
    strategy: ArenaStrategy, sizes: tuple[int, ...]
) -> None:
    arena = SimulatedArena(strategy)
    for key in range(4):
        arena.take(key, 300 * MIB + 1)
    regions = RegionSizes(strategy)
    assert tuple(regions.size_for(300 * MIB + 1) for _ in range(4)) == sizes
    assert tuple(arena.regions) == sizes[: len(arena.regions)]


def test_only_what_is_written_is_resident() -> None:
    arena = served(50 * MIB)
    assert arena.resident_bytes == 50 * MIB + 64 * MIB * TABLE
    arena.free(0)
    assert arena.resident_bytes == 50 * MIB + 64 * MIB * TABLE
    arena.take(1, 60 * MIB)
    assert arena.resident_bytes == 60 * MIB + 64 * MIB * TABLE


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


GRAPHS = cases(
    """
a chain
    a = Erf (x) b = Sin (a) c = Concat <axis = 1> (a, b) d = Cos (c) e = Tan (d)
    y = ReduceSum <keepdims = 1> (e, axes)
# In a later run an iteration has a block for s and t. Its result stays for the next one.
a list that grows | y = $LOOP (bool d, float[l, 4096] e) { $GROWING }>
a list that grows, and its rows
    y, z = $LOOP (bool d, float[l, 4096] e, float[1, 4096] t) { $GROWING }>
equal iterations
    y, z = $LOOP (bool d, float[k, 4096] e, float[k, 4096] f)
    { d = Identity (c) g = Erf (a) h = Cos (g) e = Add (g, h) f = Tan (e) }>
""",
    LOOP="Loop (times, yes, x) <body = b (int64 i, bool c, float[k, 4096] a) =>",
    GROWING="d = Identity (c) s = Sin (a) t = ReduceSum <keepdims = 1> (s, rows) "
    "e = Concat <axis = 0> (a, t)",
)
ROWS = (10, 60, 250, 700)


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[int, int]]]:
    """The path of each graph, and the bytes of the regions that two runs take by rows of x."""
    folder = tmp_path_factory.mktemp("graphs")
    weights = {"axes": [1], "rows": [0], "times": 8, "yes": np.bool_(True)}
    paths = {}
    for name, (_, body) in GRAPHS.items():
        outputs = "float y, float z" if "y, z" in body else "float y"
        model = build(f"(float[n, 4096] x) => ({outputs}) {{ {body} }}", weights=weights)
        for output in model.graph.output:
            output.type.tensor_type.ClearField("shape")
        paths[name] = saved(model, folder, f"{name}.onnx")
    jobs = [(path, (rows, 4096), 2) for path in paths.values() for rows in ROWS]
    regions = iter(held_by_arena(jobs))
    return {name: (path, {rows: next(regions) for rows in ROWS}) for name, path in paths.items()}


@pytest.mark.parametrize("name", GRAPHS)
def test_the_runtime_takes_the_same_regions(
    name: str, taken: dict[str, tuple[Path, dict[int, int]]]
) -> None:
    path, expected = taken[name]
    held = {}
    for rows in ROWS:
        with analysed(path, {"n": rows}) as ctx:
            run = ctx.run({"n": rows})
        arena = SimulatedArena()
        arena.serve(run.requests)
        arena.serve_again(run.later.requests, 1)
        held[rows] = arena.held_bytes
    assert held == expected


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
