from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper, parser

from memdiag.model.model_file import open_model
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.runtime import Runtime
from memdiag.ort.session_constants import LoadedWeight, merge_equal

ROWS, COLUMNS = 128, 256
SIZE = ROWS * COLUMNS * 4
VALUES = np.random.default_rng(0).standard_normal((ROWS, COLUMNS), np.float32)


def model(body: str, *names: str, **more: NDArray[np.float32]) -> ModelProto:
    proto = parser.parse_model(
        f'<ir_version: 10, opset_import: ["":17]> g (bool c, int64[n] ids, float[n,{COLUMNS}] x, '
        f"float[n,{ROWS}] v) => (float[p,q] y, float[r,s] z) {{ {body} }}"
    )
    weights = dict.fromkeys(names, VALUES) | more
    proto.graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in weights.items()
    )
    return proto


def saved(
    proto: ModelProto,
    folder: Path,
    version: str,
    *names: str,
    external: bool = False,
    merged: bool = False,
) -> float:
    """Return what one weight, read as it is or by all, would save of the peak, in weights."""
    path = folder / "model.onnx"
    copy = ModelProto.FromString(proto.SerializeToString())
    onnx.save(copy, path, save_as_external_data=external, location="data", size_threshold=0)
    with open_model(path) as opened:
        session = AnalysisContext(opened, Runtime.parse(version)).session
        weights = [weight for weight in opened.weights if weight.name in names]
        loaded = [session.weight(weight).with_content_key(weights[0]) for weight in weights]
        replacement = merge_equal(loaded) if merged else LoadedWeight.unpacked(weights[0])
        return session.peak_reduction(loaded, [replacement]) / SIZE


KEPT = model("y = Gather(W, ids) z = MatMul(v, W)", "W")
TWO_WAYS = model("y = MatMul(v, W) z = Gemm<transB=1>(x, W)", "W")
TURNED = model("y = Gather(W, ids) t = Transpose<perm=[1,0]>(W) z = MatMul(x, t)", "W")
ONE_WEIGHT = [
    # An embedded weight is there twice while it is loaded, as much as with its packed copy.
    (KEPT, "1.22.1", 0, 1),
    (KEPT, "1.31.1", 0, 1),
    # A mapped one is in memory while it is packed.
    (TWO_WAYS, "1.22.1", 1, 2),
    (TWO_WAYS, "1.31.1", 1, 2),
    # To fold it takes a copy of it and the result, up to 1.23 three times.
    (TURNED, "1.23.2", 3, 3),
    (TURNED, "1.31.1", 1, 1),
]


@pytest.mark.parametrize(("proto", "version", "embedded", "external"), ONE_WEIGHT)
def test_one_weight_against_itself_alone(
    tmp_path: Path, proto: ModelProto, version: str, embedded: float, external: float
) -> None:
    assert saved(proto, tmp_path, version, "W") == embedded
    assert saved(proto, tmp_path, version, "W", external=True) == external


PACKED = model("y = MatMul(v, W) m = MatMul(v, V) z = Neg(m)", "W", "V")
FOLDED = model(
    "s = Transpose(W) t = Transpose(V) y = MatMul(x, s) m = MatMul(x, t) z = Neg(m)", "W", "V"
)


@pytest.mark.parametrize(
    ("proto", "version", "embedded", "external"),
    [
        (PACKED, "1.22.1", 1, 0),
        (PACKED, "1.31.1", 0, 0),
        (FOLDED, "1.23.2", 2, 1),
        (FOLDED, "1.31.1", 2, 0),
    ],
)
def test_equal_weights_against_one_for_all(
    tmp_path: Path, proto: ModelProto, version: str, embedded: float, external: float
) -> None:
    names = ("W", "V")
    assert saved(proto, tmp_path, version, *names, merged=True) == embedded
    assert saved(proto, tmp_path, version, *names, merged=True, external=True) == external


def test_another_weight_is_loaded_and_packed_as_well(tmp_path: Path) -> None:
    other = np.random.default_rng(1).standard_normal((ROWS, 4 * COLUMNS), np.float32)
    body = "y = Gather(W, ids) m = MatMul(v, W) k = {} z = Concat<axis=1>(k, m)"
    # While the other one is loaded there is more in memory than when this one is packed, but what
    # is packed of this one is still there when the other one is packed.
    read = model(body.format("Gather(O, ids)"), "W", O=other)
    packed = model(body.format("MatMul(v, O)"), "W", O=other)
    assert saved(read, tmp_path, "1.31.1", "W") == 0
    assert saved(packed, tmp_path, "1.31.1", "W") == 1


@pytest.mark.parametrize(("version", "expected"), [("1.24.4", 1), ("1.31.1", 1)])
def test_a_weight_of_a_subgraph_against_one_of_the_main_graph(
    tmp_path: Path, version: str, expected: float
) -> None:
    proto = model(
        "z = Neg(x) y = If(c) <then_branch = a () => (float[p,q] k) { k = MatMul(v, W) }, "
        "else_branch = b () => (float[p,q] l) { l = Neg(v) }>"
    )
    node = next(node for node in proto.graph.node if node.op_type == "If")
    body = next(one.g for one in node.attribute if one.name == "then_branch")
    body.initializer.append(numpy_helper.from_array(VALUES, "W"))
    assert saved(proto, tmp_path, version, "W", merged=True) == expected


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        # Transpose of an embedded weight: it is copied, and up to 1.23 the result is there thrice.
        ("1.31.1", {"parsed": 1, "converted": 2, "folded": 3, "packed": 3, "steady": 2}),
        ("1.23.2", {"parsed": 1, "converted": 2, "folded": 5, "packed": 3, "steady": 2}),
        # The transposed copy stays in the arena after it was packed.
        ("1.22.1", {"parsed": 1, "converted": 2, "folded": 5, "packed": 3, "steady": 3}),
    ],
)
def test_all_weights_of_a_model_moment_by_step(
    tmp_path: Path, version: str, expected: dict[str, float]
) -> None:
    onnx.save(TURNED, tmp_path / "model.onnx")
    with open_model(tmp_path / "model.onnx") as opened:
        session = AnalysisContext(opened, Runtime.parse(version)).session
        memory = session.memory([session.weight(weight) for weight in opened.weights])
        assert {name: size / SIZE for name, size in memory.by_step().items()} == expected
        assert memory.peak() == max(memory.by_step().values())
        assert memory.steady() == memory.by_step()["steady"]


def test_weights_at_one_place_of_a_file_are_mapped_once(tmp_path: Path) -> None:
    proto = model("y = Gather(W, ids) z = Gather(V, ids)", "W", "V")
    onnx.save(
        proto, tmp_path / "m.onnx", save_as_external_data=True, location="d", size_threshold=0
    )
    with open_model(tmp_path / "m.onnx") as opened:
        session = AnalysisContext(opened, Runtime(1, 31)).session
        apart = [session.weight(weight) for weight in opened.weights]
        first = apart[0]
        assert session.memory(apart).by_step()["converted"] == 0
        assert session.memory(apart).steady() == 2 * SIZE
        assert session.memory([first, first]).steady() == SIZE
