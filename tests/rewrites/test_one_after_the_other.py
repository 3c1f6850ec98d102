"""Rewrites that are applied to one editor, in any order, leave a model that computes the same."""

from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper

from memdiag.model.model_file import ModelFile, open_model
from memdiag.records.finding import Finding
from memdiag.rewrites import rewriters
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.rewrites.rewrite import Rewriter
from memdiag.rewrites.saving import write_rewritten_model
from memdiag.verify.outputs import Bound, output_difference
from tests.model_text import Array, random, tensor, text_model
from tests.rewrites.rewriting import Feeds, finding, saved

BOUND = Bound.reordered(512).relative
SAFE = {one.rewrite.name: one for one in rewriters() if one.rewrite.safe}
REFUSED = {"model-to-fp32", "reference-in-place"}
"""The model has no float16, and its weights lie where they happen to in the file."""

NEW_BODIES = ("product-by-rows", "inputs-without-initializers", "deduplicate")
"""The first adds an If, in whose branches the last has to find its way to the main graph."""

FEEDS: tuple[Feeds, ...] = tuple(
    {"x": random((rows, 32), 5), "ids": np.arange(rows) % 64, "c": np.array(flag)}
    for rows in (1, 3)
    for flag in (True, False)
)


def everything() -> ModelProto:
    """Return a model with a waste of each kind."""
    w, v = random((64, 32), 1), random((32, 64), 2)
    model = text_model(
        """g (float[n, 32] x, int64[n] ids, bool c)
            => (float[n, 64] y, float[n, 64] z, float[n, 64] u, float[n, 32] e, float[n, 32] q) {
            e = Gather(w, ids)
            t = Transpose(w)
            a = MatMul(x, t)
            ri = Identity(right)
            b1 = MatMul(x, ri)
            e2 = Gather(w2, ids)
            b2 = MatMul(e2, right2)
            b = Add(b1, b2)
            s = Add(a, b)
            k = Constant()
            d = MatMul(x, k)
            y = If (c) <
                then_branch = t1 () => (float[n, 64] p) {
                    m = MatMul(x, own)
                    p = If (c) <
                        then_branch = t2 () => (float[n, 64] pt) {
                            deep = Constant() pd = MatMul(x, deep) pt = Add(m, pd) },
                        else_branch = e2 () => (float[n, 64] pe) { pe = Add(m, s) }
                    >
                },
                else_branch = e1 () => (float[n, 64] r) {
                    l = Constant()
                    m2 = MatMul(x, l)
                    r = Add(m2, d)
                }
            >
            big = Expand(row, sizes)
            grown = Expand(row, sizes)
            full = Add(grown, k)
            f1 = MatMul(x, big)
            f2 = MatMul(x, full)
            f = Add(f1, f2)
            z = Add(f, same)
            half = Cast <to = 1> (h)
            g1 = MatMul(x, half)
            nothing = Relu(unread)
            u = Add(g1, typed)
            dq = DequantizeLinear <axis = 0, block_size = 32> (qw, qs)
            qa = MatMul(x, dq)
            qb = local.F(x)
            q = Add(qa, qb)
        }
        <domain: "local", opset_import: ["" : 21]>
        F (x) => (y) { fw = Constant() y = MatMul(x, fw) }""",
        k=v,
        l=v,
        deep=random((32, 64), 10),
    )
    model.opset_import[0].version = 21
    graph = model.graph
    for node in graph.node:
        node.name = node.output[0]
    conditional = next(node for node in graph.node if node.op_type == "If")
    branch = next(one.g for one in conditional.attribute if one.name == "then_branch")
    branch.initializer.append(tensor(v, "own"))
    weights = {
        "w": w,
        "right": np.ascontiguousarray(w.T),
        "w2": 2 * w,
        "right2": np.ascontiguousarray(2 * w.T),
        "row": random((1, 64), 3),
        "sizes": np.array([32, 64]),
        "same": random((64,), 4),
        "h": random((32, 64), 6).astype(np.float16),
        "unread": random((40, 40), 7),
        "qs": random((1, 32), 8),
    }
    graph.initializer.extend(tensor(values, name) for name, values in weights.items())
    numbers = np.arange(64).tolist()
    graph.initializer.append(helper.make_tensor("typed", TensorProto.FLOAT, [64], numbers))
    octets = np.random.default_rng(9).integers(0, 256, 512).astype(np.uint8).tobytes()
    graph.initializer.append(helper.make_tensor("qw", TensorProto.INT4, [32, 32], octets, raw=True))
    value = helper.make_attribute("value", tensor(random((32, 32), 11), ""))
    model.functions[0].node[0].attribute.append(value)
    graph.input.append(helper.make_tensor_value_info("same", TensorProto.FLOAT, [64]))
    return model


def about_all(file: ModelFile, rewriter: Rewriter) -> Finding:
    """Return a finding of all weights and of what grows, or of a pair if that is what is wanted."""
    if rewriter.rewrite.name == "merge-transposed":
        return msgspec.structs.replace(finding("w2", "right2"), name="stored-transpose")
    weights = [f"{one.graph}/{one.name}" if one.graph else one.name for one in file.weights]
    return finding(*weights, nodes=["big", "grown"])


def rewritten(names: list[str], folder: Path) -> tuple[Path, list[str]]:
    """Return the model after all these rewrites, one after the other, and those that did some."""
    done = []
    with open_model(saved(everything(), folder)) as file:
        editor = ModelEditor(file)
        for name in names:
            rewriter = SAFE[name]
            of = about_all(file, rewriter)
            possible = rewriter.check(editor, of) is None
            assert rewriter.apply(editor, of) is possible, name
            done += [name] if possible else []
        target = folder / "rewritten.onnx"
        write_rewritten_model(editor, target, editor.storage or "embedded")
    onnx.checker.check_model(target)
    return target, done


Outputs = list[dict[str, Array]]


def outputs(path: Path) -> Outputs:
    """Return the outputs with each of FEEDS."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    return [dict(zip(names, session.run(names, dict(feeds)), strict=True)) for feeds in FEEDS]


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Outputs:
    return outputs(saved(everything(), tmp_path_factory.mktemp("before")))


def assert_same(before: Outputs, target: Path) -> None:
    for one, other in zip(before, outputs(target), strict=True):
        for name in one:
            assert output_difference(name, one[name], other[name]).relative <= BOUND, name


@pytest.mark.parametrize("name", sorted(SAFE))
def test_alone(tmp_path: Path, before: Outputs, name: str) -> None:
    target, done = rewritten([name], tmp_path)
    assert done == ([] if name in REFUSED else [name])
    assert_same(before, target)


@given(order=st.permutations(sorted(SAFE)))
@example(order=[*NEW_BODIES, *sorted(SAFE.keys() - {*NEW_BODIES})])
def test_in_any_order(tmp_path: Path, before: Outputs, order: list[str]) -> None:
    target, done = rewritten(order, tmp_path)
    assert {"drop-unused", "raw-data"} <= set(done)
    assert_same(before, target)
