"""Copies of weights in the arena: those in use are weights, those in free chunks are slack."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from memdiag.attribution.process_xray import read_device_arenas, take_xray
from memdiag.attribution.search_target import missing_bytes, search_target
from memdiag.model.model_file import open_model
from memdiag.records.attribution import Attribution
from tests.attribution.conftest import Start, starting
from tests.builders import build, noise, saved

NBYTES = 512 * 512 * 4

# The activation `a` is the weight itself, because nothing is added to it.
SESSION = """
import numpy as np
import onnxruntime as rt
options = rt.SessionOptions()
options.intra_op_num_threads = 1
options.enable_cpu_mem_arena = ARENA
session = rt.InferenceSession(MODEL, options, providers=["CPUExecutionProvider"])
x = rt.OrtValue.ortvalue_from_numpy(np.zeros(1, np.float32))
kept = session.run_with_ort_values(OUTPUTS, {"x": x})
libc.malloc_trim(0)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that adds its weight `w`, of 1 MB, to its input, and sums that up."""
    graph = """(float[1] x) => (float y, float[512, 512] a)
        { a = Add (w, x) y = ReduceSum <keepdims = 0> (a) }"""
    return saved(build(graph, weights={"w": noise(512, 512)}), tmp_path_factory.mktemp("model"))


def attributed(start: Start, model: Path, outputs: list[str], *, arena: bool = True) -> Attribution:
    pytest.importorskip("onnxruntime")
    names = {"MODEL": str(model), "OUTPUTS": outputs, "ARENA": arena}
    child = start("".join(f"{name} = {value!r}\n" for name, value in names.items()) + SESSION)
    with open_model(model) as file:
        target = search_target(file)
        found = take_xray(child.pid, [target])
        assert missing_bytes(target, found) == 0
    assert read_device_arenas(child.pid) == found.device_arenas == ()
    if any("glibc" in note for note in found.notes):
        pytest.skip("this Python's malloc is not glibc's")
    assert sum(owner.bytes for owner in found.owners) == found.resident_bytes
    return found


def owner(found: Attribution, kind: str, name: str) -> int:
    return sum(owner.bytes for owner in found.owners if (owner.kind, owner.name) == (kind, name))


@pytest.fixture(scope="module")
def both_in_use(model: Path) -> Iterator[Attribution]:
    """The X-ray of a session whose weight and activation `a` are both in use."""
    with starting() as start:
        yield attributed(start, model, ["y", "a"])


def states(found: Attribution) -> list[bool]:
    return sorted(copy.in_use is True for copy in found.copies if copy.weights == ("w",))


def test_a_copy_in_use_in_the_arena_is_a_weight(both_in_use: Attribution) -> None:
    found = both_in_use
    assert states(found) == [True, True]
    assert owner(found, "weights", "original") == 2 * NBYTES
    assert 0 < owner(found, "arena", "in use") < 65536  # the sum
    assert owner(found, "arena", "in use or slack") == 0


def test_a_copy_in_a_free_chunk_of_the_arena_is_slack(start: Start, model: Path) -> None:
    found = attributed(start, model, ["y"])
    assert states(found) == [False, True]
    assert {copy.in_use for copy in found.copies} == {True, False}
    assert owner(found, "weights", "original") == NBYTES
    assert owner(found, "arena", "slack") >= NBYTES
    assert owner(found, "arena", "in use or slack") == 0


def test_without_an_arena_nothing_is_its_own(start: Start, model: Path) -> None:
    found = attributed(start, model, ["y", "a"], arena=False)
    assert found.bytes_of("arena") == 0
    assert owner(found, "weights", "original") == 2 * NBYTES
