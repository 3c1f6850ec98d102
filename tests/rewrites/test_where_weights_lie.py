"""`externalize` and `reference-in-place` move weights, or leave them, and change no value."""

from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto

from memdiag.model.model_file import open_model
from memdiag.rewrites.catalog import externalize, reference_in_place
from memdiag.rewrites.model_editor import ModelEditor, TargetStorage
from memdiag.rewrites.saving import EXTERNAL_ALIGNMENT
from tests.model_text import random, text_model
from tests.rewrites.rewriting import assert_same_outputs, finding, refusal, rewrite, taken

OF = finding("w")
MIB = 1 << 20
FEEDS = {"x": random((3, 20)), "c": np.array(True)}
EVERYWHERE = """g (float[n, k] x, bool c) => (float[n, 30] y) <float[20, 30] w, float[30] small> {
    m = MatMul(x, w)
    z = If (c) <
        then_branch = t () => (float[n, 30] p) { u = Constant() p = Mul(m, u) },
        else_branch = e () => (float[n, 30] q) <float[30, 30] v> { q = MatMul(m, v) }
    >
    y = Add(z, small) }"""
PRODUCT = "g (float[n, k] x, bool c) => (float[n, 30] y) <float[20, 30] w> { y = MatMul(x, w) }"
ROWS = "g (int64[1] x) => (float[1, 1024] y) <float[4096, 1024] w> { y = Gather(w, x) }"


def aligned(model: ModelProto, folder: Path) -> Path:
    """Return the path of `model`, saved so that its weight lies at a multiple of 64 in the file."""
    path = folder / "aligned.onnx"
    for _ in range(64):
        model.producer_name += "p"
        onnx.save(model, path)
        with open_model(path) as file:
            if (file.weights[0].offset or 0) % 64 == 0:
                return path
    raise AssertionError("no length of the name brings the weight there")


def places(path: Path) -> dict[str, dict[str, str]]:
    """Return where external weights of the main graph lie, by name."""
    return {
        one.name: {entry.key: entry.value for entry in one.external_data}
        for one in onnx.load(path, load_external_data=False).graph.initializer
        if one.data_location == TensorProto.EXTERNAL
    }


def test_weights_move_to_aligned_places_beside_the_model(tmp_path: Path) -> None:
    model = text_model(EVERYWHERE, u=random((30,), 1))
    path = rewrite(externalize, model, OF, tmp_path, storage=None)
    assert places(path).keys() == {"w"}
    place = places(path)["w"]
    assert place["location"] == "rewritten.onnx.data"
    assert int(place["offset"]) % EXTERNAL_ALIGNMENT == 0
    assert (tmp_path / "rewritten.onnx.data").stat().st_size >= 30 * (20 + 30) * 4
    parted = FEEDS | {"c": np.array(False)}
    assert_same_outputs(tmp_path / "original.onnx", path, FEEDS, parted)


def test_weights_stay_where_they_lie(tmp_path: Path) -> None:
    original = aligned(text_model(PRODUCT), tmp_path)
    with open_model(original) as file:
        offset = file.weights[0].offset
    path = rewrite(reference_in_place, original, OF, tmp_path, storage=None)
    (place,) = places(path).values()
    assert place == {"location": "aligned.onnx", "offset": str(offset), "length": "2400"}
    assert path.stat().st_size < 600
    assert_same_outputs(original, path, FEEDS)


def test_weights_at_odd_places_are_refused(tmp_path: Path) -> None:
    path = aligned(text_model(PRODUCT), tmp_path)
    longer = onnx.load(path)
    longer.producer_name += "p" * 4
    assert "weights are not at multiples of" in refusal(reference_in_place, longer, OF, tmp_path)
    with open_model(path) as file:
        assert reference_in_place.check(ModelEditor(file), OF) is None


@pytest.mark.parametrize("module", [externalize, reference_in_place])
@pytest.mark.parametrize("storage", ["external", "in_place"])
def test_what_another_remedy_decided_is_kept(
    tmp_path: Path, module: ModuleType, storage: TargetStorage
) -> None:
    with open_model(aligned(text_model(PRODUCT), tmp_path)) as file:
        editor = ModelEditor(file)
        editor.storage = storage
        assert module.check(editor, OF) == "its weights are in another file already"
        assert module.apply(editor, OF) is False
        assert editor.storage == storage


@pytest.mark.slow
@pytest.mark.parametrize("module", [externalize, reference_in_place])
def test_a_session_maps_the_weights(tmp_path: Path, module: ModuleType) -> None:
    path = aligned(text_model(ROWS), tmp_path)
    fixed = rewrite(module, path, OF, tmp_path, storage=None)
    before, after = taken(path), taken(fixed)
    assert before.peak_bytes - after.peak_bytes > 24 * MIB
    # The 16 MiB of the weight, without what is mapped instead: the system's cache may map a file by
    # 2 MiB at a time, where the parser and the run read it.
    assert before.steady_bytes - after.steady_bytes > 9 * MIB
