from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from onnx import ModelProto

from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.loading import LoadingTimeline, SessionLoading
from memdiag.ort.runtime import Runtime
from memdiag.ort.session_constants import LoadedWeight, merge_equal
from memdiag.records.phases import PhaseName
from tests.builders import build, noise, saved
from tests.ort.executing import analysed

ROWS, COLUMNS = 128, 256
SIZE = ROWS * COLUMNS * 4
VALUES = noise(ROWS, COLUMNS)
OLD, NEW = Runtime(1, 24, 4), Runtime(1, 31, 1)


def model(body: str, *names: str, **more: Any) -> ModelProto:
    """Return a model of these nodes; all weights of `names` are equal."""
    graph = (
        f"(bool c, int64[n] ids, float[n,{COLUMNS}] x, float[n,{ROWS}] v) "
        f"=> (float[p,q] y, float[r,s] z) {{ {body} }}"
    )
    return build(graph, ir=10, weights=dict.fromkeys(names, VALUES) | more)


def reduction(
    proto: ModelProto,
    folder: Path,
    runtime: Runtime,
    *names: str,
    external: bool = False,
    merged: bool = False,
) -> float:
    """Return what one weight, read as it is or by all, would save of the peak, in weights."""
    with analysed(saved(proto, folder, external=external), {}, runtime, reads_weights=True) as ctx:
        weights = [weight for weight in ctx.model_file.weights if weight.name in names]
        loaded = [ctx.session.weight(weight).with_content_key(weights[0]) for weight in weights]
        replacement = merge_equal(loaded) if merged else LoadedWeight.unpacked(weights[0])
        return ctx.peak_reduction(loaded, [replacement]) / SIZE


KEPT = model("y = Gather(W, ids) z = MatMul(v, W)", "W")
TWO_WAYS = model("y = MatMul(v, W) z = Gemm<transB=1>(x, W)", "W")
TURNED = model("y = Gather(W, ids) t = Transpose<perm=[1,0]>(W) z = MatMul(x, t)", "W")
PACKED = model("y = MatMul(v, W) m = MatMul(v, V) z = Neg(m)", "W", "V")
FOLDED = model(
    "s = Transpose(W) t = Transpose(V) y = MatMul(x, s) m = MatMul(x, t) z = Neg(m)", "W", "V"
)


@pytest.mark.parametrize("runtime", [OLD, NEW], ids=str)
@pytest.mark.parametrize(
    ("proto", "embedded", "external"),
    [
        # An embedded weight is there twice while it is loaded, as much as with its packed copy.
        (KEPT, 0, 1),
        # A mapped one is in memory while it is packed.
        (TWO_WAYS, 1, 2),
        # To fold it takes a copy of it and the result.
        (TURNED, 1, 1),
    ],
    ids=["read as well", "packed two ways", "transposed"],
)
def test_one_weight_against_itself_alone(
    tmp_path: Path, proto: ModelProto, runtime: Runtime, embedded: float, external: float
) -> None:
    assert reduction(proto, tmp_path, runtime, "W") == embedded
    assert reduction(proto, tmp_path, runtime, "W", external=True) == external


@pytest.mark.parametrize(("proto", "embedded"), [(PACKED, 0), (FOLDED, 2)])
def test_equal_weights_against_one_for_all(
    tmp_path: Path, proto: ModelProto, embedded: float
) -> None:
    assert reduction(proto, tmp_path, NEW, "W", "V", merged=True) == embedded
    assert reduction(proto, tmp_path, NEW, "W", "V", merged=True, external=True) == 0


# While the other one is loaded there is more in memory than when this one is packed, but what is
# packed of this one is still there when the other one is packed.
@pytest.mark.parametrize(("node", "expected"), [("Gather(O, ids)", 0), ("MatMul(v, O)", 1)])
def test_another_weight_is_loaded_and_packed_as_well(
    tmp_path: Path, node: str, expected: int
) -> None:
    body = f"y = Gather(W, ids) m = MatMul(v, W) k = {node} z = Concat<axis=1>(k, m)"
    proto = model(body, "W", O=noise(ROWS, 4 * COLUMNS, seed=1))
    assert reduction(proto, tmp_path, NEW, "W") == expected


def owning(proto: ModelProto) -> ModelProto:
    """Return the model with its weights in the first branch instead."""
    node = next(node for node in proto.graph.node if node.op_type == "If")
    node.attribute[0].g.initializer.extend(proto.graph.initializer)
    del proto.graph.initializer[:]
    return proto


def branches(first: str, second: str, *names: str) -> ModelProto:
    """Return an If whose branches compute k and l of v."""
    return model(
        f"z = Neg(x) y = If(c) <then_branch = a () => (float[p,q] k) {{ {first} }}, "
        f"else_branch = b () => (float[p,q] l) {{ {second} }}>",
        *names,
    )


@pytest.mark.parametrize("runtime", [OLD, NEW], ids=str)
def test_a_weight_of_a_subgraph_against_one_of_the_main_graph(
    tmp_path: Path, runtime: Runtime
) -> None:
    proto = owning(branches("k = MatMul(v, W)", "l = Neg(v)", "W"))
    assert reduction(proto, tmp_path, runtime, "W", merged=True) == 1


def timeline(ctx: AnalysisContext, weights: Sequence[LoadedWeight] | None) -> LoadingTimeline:
    return SessionLoading(ctx.model_file, ctx.graphs, ctx.session, weights=weights).run()


def all_weights(ctx: AnalysisContext) -> list[LoadedWeight]:
    return [ctx.session.weight(weight) for weight in ctx.model_file.weights]


@pytest.mark.parametrize("runtime", [OLD, NEW], ids=str)
def test_all_weights_of_a_model_phase_by_phase(tmp_path: Path, runtime: Runtime) -> None:
    # Transpose of an embedded weight, which is copied for that.
    expected: dict[PhaseName, float]
    expected = {"parse": 1, "optimize": 2, "constant_fold": 3, "prepack": 3, "steady": 2}
    with analysed(saved(TURNED, tmp_path), {}, runtime, reads_weights=True) as ctx:
        memory = timeline(ctx, all_weights(ctx))
        assert {phase: memory.peak(phase).nbytes / SIZE for phase in expected} == expected
        assert memory.peak_bytes() == max(expected.values()) * SIZE
        assert sum(memory.end("steady").values()) == expected["steady"] * SIZE


OF_A_BRANCH = owning(branches("k = MatMul(v, A)", "l = MatMul(v, C)", "A"))
READ_IN_BRANCHES = branches(
    "i = MatMul(v, A) j = MatMul(v, B) k = Add(i, j)",
    "i = MatMul(v, C) j = MatMul(v, D) l = Add(i, j)",
    *"ABCD",
)
DIFFERENT = {name: VALUES + index for index, name in enumerate("ABCD")}
READ_TWICE = model(
    "a = MatMul(v, A) b = MatMul(v, B) u = Neg(v) e = MatMul(u, A) d = MatMul(u, B) "
    "y = Sum(a, b, e, d) z = Neg(x)",
    **DIFFERENT,
)
READ_IN_MAIN = model(
    "a = MatMul(v, A) b = MatMul(v, B) e = MatMul(v, C) d = MatMul(v, D) "
    "y = Sum(a, b, e, d) z = Neg(x)",
    **DIFFERENT,
)


@pytest.mark.parametrize(
    ("proto", "runtime", "peaks", "ends"),
    [
        # The node of the If is copied, and so is its weight; one of both copies stays. Measured.
        (OF_A_BRANCH, OLD, {"optimize": 3, "prepack": 3}, {"parse": 2, "prepack": 2}),
        (OF_A_BRANCH, NEW, {"optimize": 3, "prepack": 3}, {"parse": 2, "prepack": 3}),
        # Weights of the main graph are freed one by one, in branches since 1.29 two by two.
        (READ_IN_BRANCHES, OLD, {"optimize": 5, "prepack": 5}, {"prepack": 4}),
        (READ_IN_BRANCHES, NEW, {"optimize": 5, "prepack": 6}, {"prepack": 4}),
        (READ_IN_MAIN, NEW, {"optimize": 5, "prepack": 5}, {"prepack": 4}),
        # The second buffer of A is filled while A, B and the buffers of both are there.
        (READ_TWICE, NEW, {"optimize": 3, "prepack": 5}, {"prepack": 2}),
    ],
)
def test_weights_of_branches_phase_by_phase(
    tmp_path: Path,
    proto: ModelProto,
    runtime: Runtime,
    peaks: dict[PhaseName, float],
    ends: dict[PhaseName, float],
) -> None:
    with analysed(saved(proto, tmp_path), {}, runtime, reads_weights=True) as ctx:
        # The whole model has the rest of the file as well.
        for memory, more in ((timeline(ctx, all_weights(ctx)), 0), (timeline(ctx, None), 0.3)):
            sizes = {phase: memory.peak(phase).nbytes / SIZE for phase in peaks}
            assert sizes == pytest.approx(peaks, abs=more)
            left = {phase: sum(memory.end(phase).values()) / SIZE for phase in ends}
            assert left == pytest.approx(ends, abs=more)


def test_bytes_are_there_three_times_while_they_are_parsed(tmp_path: Path) -> None:
    """As measured with 1.24.4 and 1.32.0: the program's, the bindings' and the parsed."""
    path = saved(KEPT, tmp_path)
    with analysed(path, {}, Runtime(1, 32)) as ctx:
        by_path, by_bytes = (
            SessionLoading(ctx.model_file, ctx.graphs, ctx.session, from_bytes=from_bytes).run()
            for from_bytes in (False, True)
        )
    size = path.stat().st_size
    assert by_bytes.peak("parse").terms["model file"] == 3 * size
    assert by_path.peak("parse").terms["model file"] == size
    assert by_bytes.end("prepack")["model file"] == size


TWO_MAPPED = model("y = Gather(W, ids) z = MatMul(v, V)", "W", V=VALUES + 1)


@pytest.mark.parametrize(("proto", "packed"), [(TWO_MAPPED, 1), (KEPT, 2)])
def test_mapped_weights_that_were_packed_stay_while_something_reads_them(
    tmp_path: Path, proto: ModelProto, packed: int
) -> None:
    with analysed(saved(proto, tmp_path, external=True), {}, NEW) as ctx:
        memory = timeline(ctx, all_weights(ctx))
        assert memory.peak("prepack").nbytes == 2 * SIZE
        assert sum(memory.end("prepack").values()) == packed * SIZE
        assert sum(memory.end("steady").values()) == 2 * SIZE


def test_weights_at_one_place_of_a_file_are_mapped_once(tmp_path: Path) -> None:
    proto = model("y = Gather(W, ids) z = Gather(V, ids)", "W", "V")
    with analysed(saved(proto, tmp_path, external=True), {}, NEW) as ctx:
        apart = all_weights(ctx)
        assert timeline(ctx, apart).peak("optimize").nbytes == 0
        assert timeline(ctx, apart).peak("steady").nbytes == 2 * SIZE
        assert timeline(ctx, [apart[0], apart[0]]).peak("steady").nbytes == SIZE
