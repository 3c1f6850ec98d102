"""The least values of weights, as bits, and what is known of them once they were compared."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from memdiag.graph.contents import same_content
from memdiag.graph.denormals import Denormals, denormals
from memdiag.graph.least_values import LeastValues, least_value
from memdiag.graph.reader import ModelFile, open_model
from memdiag.graph.stretches import Stretch, stretches

DENORMAL = np.float32(1e-40)
ROWS = 1600
SHAPE = (ROWS, 1024)  # 6.25 MiB: 1, then 2, then what is left are compared


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(st.floats(width=32), st.sampled_from([0.0, -0.0, 1e-45, -1e-45])), min_size=1
    )
)
def test_the_least_value_is_the_one_nearest_to_zero_but_zero(numbers: list[float]) -> None:
    values = np.array(numbers, np.float32)
    bits = values.view(np.uint32)
    sizes = (bits & 0x7FFFFFFF)[values != 0]
    assert least_value(bits) == (int(sizes.min()) if len(sizes) else None)


def opened(folder: Path, *arrays: np.ndarray, pad: int = 0) -> ModelFile:
    """A model of `arrays` as weights w0, w1, ..., whose bytes `pad` moves."""
    tensors = [numpy_helper.from_array(one, f"w{n}") for n, one in enumerate(arrays)]
    first = helper.make_tensor("p" * (pad + 1), TensorProto.INT8, [1], [1])
    path = folder / "m.onnx"
    onnx.save(helper.make_model(helper.make_graph([], "g", [], [], [first, *tensors])), path)
    return open_model(path)


def read_and_found(
    model: ModelFile, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, int], dict[str, Denormals]]:
    """What is still read of each weight after the comparison, in bytes, and its denormals."""
    left: dict[str, int] = {}
    weights = [weight for weight in model.weights if weight.name.startswith("w")]
    axes = [0] * len(weights)

    def watched(*args: object) -> list[Stretch]:
        found = list(stretches(*args))  # type: ignore[arg-type]
        for stretch in found:
            for piece, _ in stretch.pieces:
                name = weights[piece.place].name
                left[name] = left.get(name, 0) + piece.end - piece.begin
        return found

    monkeypatch.setattr("memdiag.graph.denormals.stretches", watched)
    seen = LeastValues()
    same_content(model, seen)
    found = denormals(model, weights, axes, seen)
    return left, {weight.name: one for weight, one in zip(weights, found, strict=True)}


def random(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(1, 2, SHAPE).astype(np.float32)


@pytest.mark.parametrize("pad", range(4))
def test_what_was_compared_is_not_read_again(
    pad: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values, middle = random(), random()
    values[3, 3] = 0.25
    middle[3, 3] = 0.25
    middle[ROWS // 4, 5] = -0.125
    alone = random(1)
    with opened(tmp_path, values, middle, values, alone, pad=pad) as model:
        left, found = read_and_found(model, monkeypatch)
    assert left["w0"] == left["w2"] == 0
    assert 0 < left["w1"] < values.nbytes  # nothing was equal to it any more
    assert left["w3"] == alone.nbytes
    assert [one.number for one in found.values()] == [0, 0, 0, 0]
    leasts = [one.smallest for one in found.values()]
    assert leasts == [0.25, 0.125, 0.25, alone.min()]


def test_denormals_are_counted_wherever_they_were_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = random()
    values[0, :7] = -DENORMAL
    values[ROWS - 1, :2] = DENORMAL
    others = values.copy()
    others[ROWS - 1, 0] = 0
    with opened(tmp_path, values, values, others) as model:
        left, found = read_and_found(model, monkeypatch)
    assert left == dict.fromkeys(("w0", "w1", "w2"), values.nbytes)
    assert [one.number for one in found.values()] == [9, 9, 8]
    assert found["w2"].channels[[0, 1, ROWS - 1]].tolist() == [7, 0, 1]


def test_zeros_have_no_least_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zeros, one = np.zeros(SHAPE, np.float32), np.zeros(SHAPE, np.float32)
    one[ROWS - 1, 7] = -3
    with opened(tmp_path, zeros, zeros, one) as model:
        left, found = read_and_found(model, monkeypatch)
    assert (left["w0"], left["w1"]) == (0, 0)
    assert [each.smallest for each in found.values()] == [np.inf, np.inf, 3]


def test_the_same_bytes_of_another_type_have_other_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Halves of these floats are denormals of bfloat16, and whole numbers have none at all.
    bits = np.full(SHAPE, 0x3F80_0001, np.uint32)
    integers = numpy_helper.from_array(bits.view(np.int32), "i")
    halves = helper.make_tensor(
        "h", TensorProto.BFLOAT16, [2 * bits.size], bits.tobytes(), raw=True
    )
    floats = numpy_helper.from_array(bits.view(np.float32), "f")
    path = tmp_path / "m.onnx"
    graph = helper.make_graph([], "g", [], [], [integers, halves, floats])
    onnx.save(helper.make_model(graph), path)
    seen = LeastValues()
    with open_model(path) as model:
        assert len(same_content(model, seen)) == 1
        counted = [one.number for one in denormals(model, model.weights[1:], [None] * 2, seen)]
    assert counted == [bits.size, 0]
