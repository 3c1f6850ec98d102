from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper

import memdiag
from memdiag.model.model_file import open_model
from memdiag.records.finding import Finding
from memdiag.rewrites.catalog import separate_packed_weight
from memdiag.rewrites.computed_tensor import computed_tensor
from memdiag.rewrites.model_editor import ModelEditor, TargetStorage
from memdiag.rewrites.saving import write_rewritten_model
from tests.model_text import random
from tests.rewrites.rewriting import Feeds, finding, operators, refusal, runs_on, saved
from tests.rewrites.tied_models import (
    COLUMNS,
    ROWS,
    SHARED,
    STORED,
    model,
    rewritten,
    stored_twice,
    tied,
    tied_feeds,
    with_list,
)

MB = 1_000_000
TWIN = {"Gather": "w", "Gemm": "w_packed"}


def separated(original: ModelProto, folder: Path, *feeds: Feeds, of: Finding = SHARED) -> Path:
    """Return the rewritten model, which computes the same: its data file holds no weight twice."""
    path = rewritten(separate_packed_weight, original, folder, *feeds, of=of)
    places = [
        tuple((entry.key, entry.value) for entry in one.external_data)
        for one in onnx.load(path, load_external_data=False).graph.initializer
    ]
    assert len(places) == len(set(places)) + 1
    return path


def readers(path: Path) -> dict[str, str]:
    """Return the initializer that each of the main graph's nodes reads, by operator."""
    graph = onnx.load(path).graph
    names = {one.name for one in graph.initializer}
    return {
        node.op_type: next(name for name in node.input if name in names)
        for node in graph.node
        if names & {*node.input}
    }


@pytest.mark.parametrize("sizes", [("n",), ("b", "s")])
def test_the_product_reads_a_twin_as_it_is(tmp_path: Path, sizes: tuple[str, ...]) -> None:
    runs = [tied_feeds(*(rows for _ in sizes)) for rows in (0, 1, 5)]
    path = separated(tied(sizes), tmp_path, *runs)
    assert readers(path) == TWIN
    assert "Transpose" not in operators(path)


SEVERAL = "t = Transpose(w) m = MatMul(x, t) p = MatMul(m, w) y = Gemm <transB = 1> (p, w)"


@pytest.mark.parametrize(
    ("nodes", "others"),
    [
        ("m = MatMul(x, t) y = Add(m, m) t = Transpose(w)", {}),
        ("i = Identity(w) y = Gemm <transB = 1> (x, i)", {"Identity": "w"}),
        (SEVERAL, {"MatMul": "w_packed"}),
        ("s = Shape(w) y = Gemm <transB = 1> (x, w)", {"Shape": "w"}),
    ],
    ids=["transposed", "through Identity", "several", "its shape"],
)
def test_all_that_packs_the_weight_reads_the_twin(
    tmp_path: Path, nodes: str, others: dict[str, str]
) -> None:
    path = separated(tied(nodes=nodes), tmp_path, tied_feeds(3))
    assert readers(path) == TWIN | others


def test_of_a_stored_pair_one_is_dropped(tmp_path: Path) -> None:
    path = separated(stored_twice(), tmp_path, tied_feeds(3), of=STORED)
    assert readers(path) == TWIN


@pytest.mark.parametrize(
    ("external", "decided", "storage"),
    [(False, None, "external"), (True, None, None), (False, "in_place", "in_place")],
    ids=["embedded", "external", "decided"],
)
def test_weights_become_external_data_unless_they_are_or_another_place_was_decided(
    tmp_path: Path, external: bool, decided: TargetStorage | None, storage: TargetStorage | None
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(tied(), path, save_as_external_data=external, size_threshold=0)
    with open_model(path) as file:
        editor = ModelEditor(file)
        editor.storage = decided
        assert separate_packed_weight.apply(editor, SHARED)
        assert editor.storage == storage


def test_a_weight_that_was_computed_is_written_once(tmp_path: Path) -> None:
    large = random((128, 256))
    original = model(
        "g (float[n, 256] x, int64[i] ids) => (float[n, 128] y, float[i, 256] e)"
        " { e = Gather(w, ids) y = Gemm <transB = 1> (x, w) }",
        w=large,
    )
    with open_model(saved(original, tmp_path)) as file:
        editor = ModelEditor(file)
        value = editor.value("w")
        assert value is not None
        assert value.const_value is not None
        kind = value.const_value.dtype
        value.const_value = computed_tensor(lambda: [large + 1], kind, large.shape, "w")
        assert separate_packed_weight.apply(editor, SHARED)
        made, data = write_rewritten_model(editor, tmp_path / "made.onnx", "external")
        assert data.stat().st_size == large.nbytes
    tensors = map(onnx.numpy_helper.to_array, onnx.load(made).graph.initializer)
    assert [one.tolist() for one in tensors] == [(large + 1).tolist()] * 2


def old() -> ModelProto:
    made = with_list("input")
    made.ir_version = 3
    return made


def output() -> ModelProto:
    made = tied(nodes="y = Gemm <transB = 1> (x, i) i = Identity(w)")
    made.graph.output.append(helper.make_tensor_value_info("i", 1, [ROWS, COLUMNS]))
    return made


PRODUCT_ALONE = "g (float[n, 16] x) => (float y) { t = Transpose(w) y = MatMul(x, t) }"
SMALL = model(
    "g (float[n, 2] x, int64[i] ids) => (float[n, 3] y, float[i, 2] e)"
    " { e = Gather(w, ids) y = Gemm <transB = 1> (x, w) }",
    w=random((3, 2)),
)
CAST = "t = Transpose(w) c = Cast <to = 1> (t) y = MatMul(x, c)"
ON_THE_LEFT = "p = MatMul(w, xt) xt = Transpose(x) y = Transpose(p)"


@pytest.mark.parametrize(
    ("original", "of", "reason"),
    [
        (tied(nodes="t = Transpose(w) y = MatMul(x, t) r = Relu(w)"), SHARED, "Relu reads all of"),
        (tied(nodes="t = Transpose(w) y = Relu(t)"), SHARED, "Transpose reads all of the weight"),
        (tied(nodes=ON_THE_LEFT), SHARED, "MatMul reads all"),
        (tied(nodes="y = Relu(x)"), SHARED, "no product packs the weight"),
        (model(PRODUCT_ALONE), SHARED, "only products read the weight"),
        (tied(nodes=CAST), SHARED, "Transpose reads"),
        (tied(dtype=np.float64), SHARED, "products pack only matrices of fp32"),
        (with_list("input"), SHARED, "the weight is listed as an input"),
        (old(), SHARED, "before version 4 of the IR"),
        (output(), SHARED, "Identity reads all of the weight"),
        (SMALL, SHARED, "could be external data"),
        (tied(), finding("gone"), "the weights were removed"),
        (tied(), STORED, "the two weights are not both stored as matrices of one type"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_near_misses_are_refused(
    tmp_path: Path, original: ModelProto, of: Finding, reason: str
) -> None:
    assert reason in refusal(separate_packed_weight, original, of, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("external", [False, True], ids=["embedded", "external"])
def test_one_copy_is_left(
    sample_model: Callable[..., Path], tmp_path: Path, external: bool
) -> None:
    size = 24
    with open_model(sample_model("tied_if", size, external)) as file:
        editor = ModelEditor(file)
        assert separate_packed_weight.apply(editor, finding("model.shared.weight"))
        fixed, _ = write_rewritten_model(editor, tmp_path / "fixed.onnx", "external")
    profile = memdiag.profile(
        fixed,
        runs=1,
        inputs={"use_embedding": np.array(False)},
        environment={"MALLOC_MMAP_THRESHOLD_": "131072"},
    )
    assert profile.attribution is not None
    resident = {copy.kind: copy.resident_bytes for copy in profile.attribution.copies}
    assert resident["packed"] == pytest.approx(size * MB, rel=0.01)
    assert resident.get("original", 0) < MB
    assert profile.steady_rss_bytes is not None
    assert profile.steady_rss_bytes - profile.baseline_rss_bytes < (size + 16) * MB
    assert runs_on("1.20.1", fixed)
