from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper, parser

from memdiag.model.model_file import open_model
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.loading import LoadingTimeline, SessionLoading
from memdiag.ort.runtime import Runtime
from memdiag.ort.session_constants import LoadedWeight, merge_equal
from memdiag.records.phases import PhaseName

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
        ctx = AnalysisContext(opened, Runtime.parse(version))
        session = ctx.session
        weights = [weight for weight in opened.weights if weight.name in names]
        loaded = [session.weight(weight).with_content_key(weights[0]) for weight in weights]
        replacement = merge_equal(loaded) if merged else LoadedWeight.unpacked(weights[0])
        return ctx.peak_reduction(loaded, [replacement]) / SIZE


KEPT = model("y = Gather(W, ids) z = MatMul(v, W)", "W")
TWO_WAYS = model("y = MatMul(v, W) z = Gemm<transB=1>(x, W)", "W")
TURNED = model("y = Gather(W, ids) t = Transpose<perm=[1,0]>(W) z = MatMul(x, t)", "W")
ONE_WEIGHT = [
    # An embedded weight is there twice while it is loaded, as much as with its packed copy.
    (KEPT, 0, 1),
    # A mapped one is in memory while it is packed.
    (TWO_WAYS, 1, 2),
    # To fold it takes a copy of it and the result.
    (TURNED, 1, 1),
]


@pytest.mark.parametrize("version", ["1.24.4", "1.31.1"])
@pytest.mark.parametrize(("proto", "embedded", "external"), ONE_WEIGHT)
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
    ("proto", "embedded", "external"),
    [(PACKED, 0, 0), (FOLDED, 2, 0)],
)
def test_equal_weights_against_one_for_all(
    tmp_path: Path, proto: ModelProto, embedded: float, external: float
) -> None:
    names = ("W", "V")
    assert saved(proto, tmp_path, "1.31.1", *names, merged=True) == embedded
    assert saved(proto, tmp_path, "1.31.1", *names, merged=True, external=True) == external


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


def timeline(ctx: AnalysisContext, weights: Sequence[LoadedWeight] | None) -> LoadingTimeline:
    return SessionLoading(ctx.model_file, ctx.graphs, ctx.session, weights=weights).run()


@pytest.mark.parametrize("version", ["1.24.4", "1.31.1"])
def test_all_weights_of_a_model_phase_by_phase(tmp_path: Path, version: str) -> None:
    # Transpose of an embedded weight, which is copied for that.
    expected: dict[PhaseName, float] = {
        "parse": 1,
        "optimize": 2,
        "constant_fold": 3,
        "prepack": 3,
        "steady": 2,
    }
    onnx.save(TURNED, tmp_path / "model.onnx")
    with open_model(tmp_path / "model.onnx") as opened:
        ctx = AnalysisContext(opened, Runtime.parse(version))
        memory = timeline(ctx, [ctx.session.weight(weight) for weight in opened.weights])
        assert {phase: memory.peak(phase).nbytes / SIZE for phase in expected} == expected
        assert memory.peak_bytes() == max(expected.values()) * SIZE
        assert sum(memory.end("steady").values()) == expected["steady"] * SIZE


def branch(body: str, *names: str) -> ModelProto:
    """Return an If whose branches compute `body` of v, the second one with A and B for C and D."""
    other = body.replace("A", "C").replace("B", "D").replace("k", "l")
    return model(
        f"z = Neg(x) y = If(c) <then_branch = a () => (float[p,q] k) {{ {body} }}, "
        f"else_branch = b () => (float[p,q] l) {{ {other} }}>",
        *names,
    )


def owning(proto: ModelProto) -> ModelProto:
    """Return the model with its weights in the first branch instead."""
    node = next(node for node in proto.graph.node if node.op_type == "If")
    body = next(one.g for one in node.attribute if one.name == "then_branch")
    body.initializer.extend(proto.graph.initializer)
    del proto.graph.initializer[:]
    return proto


OF_A_BRANCH = owning(branch("k = MatMul(v, A)", "A"))
READ_IN_BRANCHES = branch("i = MatMul(v, A) j = MatMul(v, B) k = Add(i, j)", *"ABCD")
READ_TWICE = model(
    "a = MatMul(v, A) b = MatMul(v, B) u = Neg(v) e = MatMul(u, A) d = MatMul(u, B) "
    "y = Sum(a, b, e, d) z = Neg(x)",
    A=VALUES,
    B=VALUES + 1,
)
READ_IN_MAIN = model(
    "a = MatMul(v, A) b = MatMul(v, B) e = MatMul(v, C) d = MatMul(v, D) "
    "y = Sum(a, b, e, d) z = Neg(x)",
    **{name: VALUES + index for index, name in enumerate("ABCD")},
)


@pytest.mark.parametrize(
    ("proto", "version", "peaks", "ends"),
    [
        # The node of the If is copied, and so is its weight; one of both copies stays. Measured.
        (OF_A_BRANCH, "1.24.4", {"optimize": 3, "prepack": 3}, {"parse": 2, "prepack": 2}),
        (OF_A_BRANCH, "1.31.1", {"optimize": 3, "prepack": 3}, {"parse": 2, "prepack": 3}),
        # Weights of the main graph are freed one by one, in branches since 1.29 two by two.
        (READ_IN_BRANCHES, "1.24.4", {"optimize": 5, "prepack": 5}, {"prepack": 4}),
        (READ_IN_BRANCHES, "1.31.1", {"optimize": 5, "prepack": 6}, {"prepack": 4}),
        (READ_IN_MAIN, "1.31.1", {"optimize": 5, "prepack": 5}, {"prepack": 4}),
        # The second buffer of A is filled while A, B and the buffers of both are there.
        (READ_TWICE, "1.31.1", {"optimize": 3, "prepack": 5}, {"prepack": 2}),
    ],
)
def test_weights_of_branches_phase_by_phase(
    tmp_path: Path,
    proto: ModelProto,
    version: str,
    peaks: dict[PhaseName, float],
    ends: dict[PhaseName, float],
) -> None:
    onnx.save(proto, tmp_path / "model.onnx")
    with open_model(tmp_path / "model.onnx") as opened:
        ctx = AnalysisContext(opened, Runtime.parse(version))
        weights = [ctx.session.weight(weight) for weight in opened.weights]
        # The whole model has the rest of the file as well.
        for memory, more in ((timeline(ctx, weights), 0), (timeline(ctx, None), 0.3)):
            sizes = {phase: memory.peak(phase).nbytes / SIZE for phase in peaks}
            assert sizes == pytest.approx(peaks, abs=more)
            left = {phase: sum(memory.end(phase).values()) / SIZE for phase in ends}
            assert left == pytest.approx(ends, abs=more)


def test_bytes_are_there_three_times_while_they_are_parsed(tmp_path: Path) -> None:
    """As measured with 1.24.4 and 1.32.0: the program's, the bindings' and the parsed."""
    path = tmp_path / "model.onnx"
    onnx.save(KEPT, path)
    with open_model(path) as opened:
        ctx = AnalysisContext(opened, Runtime(1, 32))
        by_path, by_bytes = (
            SessionLoading(opened, ctx.graphs, ctx.session, from_bytes=given).run()
            for given in (False, True)
        )
    size = path.stat().st_size
    assert by_bytes.peak("parse").terms["model file"] == 3 * size
    assert by_path.peak("parse").terms["model file"] == size
    assert by_bytes.end("prepack")["model file"] == size


def test_mapped_weights_that_were_packed_stay_while_something_reads_them(tmp_path: Path) -> None:
    proto = model("y = Gather(W, ids) z = MatMul(v, V)", "W", V=VALUES + 1)
    kept = model("y = Gather(W, ids) z = MatMul(v, W)", "W")
    for each, packed in ((proto, 1), (kept, 2)):
        onnx.save(
            ModelProto.FromString(each.SerializeToString()),
            tmp_path / "m.onnx",
            save_as_external_data=True,
            location="d",
            size_threshold=0,
        )
        with open_model(tmp_path / "m.onnx") as opened:
            ctx = AnalysisContext(opened, Runtime(1, 31))
            memory = timeline(ctx, [ctx.session.weight(weight) for weight in opened.weights])
            assert memory.peak("prepack").nbytes == 2 * SIZE
            assert sum(memory.end("prepack").values()) == packed * SIZE
            assert sum(memory.end("steady").values()) == 2 * SIZE


def test_weights_at_one_place_of_a_file_are_mapped_once(tmp_path: Path) -> None:
    proto = model("y = Gather(W, ids) z = Gather(V, ids)", "W", "V")
    onnx.save(
        proto, tmp_path / "m.onnx", save_as_external_data=True, location="d", size_threshold=0
    )
    with open_model(tmp_path / "m.onnx") as opened:
        ctx = AnalysisContext(opened, Runtime(1, 31))
        apart = [ctx.session.weight(weight) for weight in opened.weights]
        first = apart[0]
        assert timeline(ctx, apart).peak("optimize").nbytes == 0
        assert timeline(ctx, apart).peak("steady").nbytes == 2 * SIZE
        assert timeline(ctx, [first, first]).peak("steady").nbytes == SIZE
