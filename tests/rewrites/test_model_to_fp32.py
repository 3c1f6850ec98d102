from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

from memdiag.rewrites.catalog import model_to_fp32
from tests.rewrites.rewriting import (
    finding,
    largest_difference,
    random,
    refusal,
    rewrite,
    runs_on,
    taken,
    text_model,
)

MIB = 1 << 20
VALUES = finding()


def half(*shape: int, seed: int = 0) -> NDArray[np.float16]:
    return np.asarray(random(shape, seed, np.float16))


def halves(path: Path) -> set[str]:
    """Return the fp16 initializers of a model, also in its subgraphs."""
    found: set[str] = set()
    pending = [onnx.load(path).graph]
    while pending:
        graph = pending.pop()
        found |= {one.name for one in graph.initializer if one.data_type == TensorProto.FLOAT16}
        pending += [each.g for node in graph.node for each in node.attribute if each.HasField("g")]
    return found


def operators(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


BODIES = {
    "a chain": "h = MatMul(x, w) r = Relu(h) y = MatMul(r, w)",
    "operators that are replaced": "h = PRelu(x, b) y = Softmax(h)",
    "operators with a kernel": "t = Transpose(x) r = Round(t) y = MatMul(r, w)",
    "an input that is read twice": "h = Add(x, x) y = MatMul(h, x)",
    "an output that is read": "y = MatMul(x, w) z = Relu(y) q = Exp(z)",
    "an output that is an input": "q = Identity(x) y = Relu(x)",
    "a branch": "h = Relu(x) y = If(c) <then_branch = t () => (float16[6, 6] ty)"
    " { ty = MatMul(h, w) }, else_branch = e () => (float16[6, 6] ey) { ey = Sub(w, x) }>",
    "a loop": "k = Constant<value_int = 3>() y = Loop(k, , x) <body = l (int64 j, bool g,"
    " float16[6, 6] p) => (bool g2, float16[6, 6] s) { g2 = Identity(g) s = MatMul(p, w) }>",
    "casts of the model": "f = Cast<to = 1>(x) e = Exp(f) h = Cast<to = 10>(e) y = MatMul(h, w)",
    "a cast of integers": "f = Cast<to = 7>(x) e = Cast<to = 10>(f) y = Add(e, x)",
    "a cast to the output": "f = Cast<to = 1>(x) e = Exp(f) y = Cast<to = 10>(e) z = MatMul(y, w)",
    "types in attributes": "s = Shape(x) o = ConstantOfShape(s) e = EyeLike<dtype = 10>(x)"
    " a = Add(o, e) y = Add(a, x)",
    "a Constant": "k = Constant() y = MatMul(x, k)",
}


@pytest.mark.parametrize("name", BODIES)
def test_only_the_interface_stays_half(tmp_path: Path, name: str) -> None:
    outputs = "float16[6, 6] y" + (", float16[6, 6] q" if "q = " in BODIES[name] else "")
    model = text_model(
        f"g (float16[6, 6] x, bool c) => ({outputs})"
        f" <float16[6, 6] w, float16[6] b> {{ {BODIES[name]} }}",
        w=half(6, 6) * np.float16(0.3),
        b=half(6, seed=2),
        k=half(6, 6, seed=3),
    )
    for node in model.graph.node:
        if node.op_type == "ConstantOfShape":
            held = helper.make_tensor("", TensorProto.FLOAT16, [1], [0.5])
            node.attribute.append(helper.make_attribute("value", held))
    fixed = rewrite(model_to_fp32, model, VALUES, tmp_path)
    assert not halves(fixed)
    casts = [node for node in onnx.load(fixed).graph.node if node.op_type == "Cast"]
    interface = {"x", "y", "q"}
    assert all({*cast.input, *cast.output} & interface for cast in casts) or "integers" in name
    for c in (True, False):
        feeds = {"x": half(6, 6, seed=1), "c": np.array(c)}
        # Values in between are not rounded to half precision any more.
        assert largest_difference(tmp_path / "original.onnx", fixed, feeds, tmp_path) < 4e-3


@pytest.mark.parametrize("tied", [False, True])
def test_rows_of_a_weight_stay_half(tmp_path: Path, tied: bool) -> None:
    body = "r = Gather(e, i) h = PRelu(r, b) "
    body += "t = Transpose(e) y = MatMul(h, t)" if tied else "y = MatMul(h, w)"
    model = text_model(
        f"g (int64[n] i) => (float16[n, m] y) <float16[9, 6] e, float16[6] b, float16[6, 4] w>"
        f" {{ {body} }}",
        e=half(9, 6),
        b=half(6, seed=2),
        w=half(6, 4, seed=3),
    )
    fixed = rewrite(model_to_fp32, model, VALUES, tmp_path)
    assert halves(fixed) == {"e"}
    assert operators(fixed)["Cast"] == 2
    feeds = {"i": np.array([0, 8, 3])}
    assert largest_difference(tmp_path / "original.onnx", fixed, feeds, tmp_path) < 4e-3


def test_rows_that_are_the_output_stay_half(tmp_path: Path) -> None:
    model = text_model(
        "g (int64[n] i, float16[n, 6] x) => (float16[n, 6] y, float16[n, 6] z)"
        " <float16[9, 6] e> { y = Gather(e, i) z = Add(x, y) }",
        e=half(9, 6),
    )
    fixed = rewrite(model_to_fp32, model, VALUES, tmp_path)
    assert halves(fixed) == {"e"}
    feeds = {"i": np.array([0, 8]), "x": half(2, 6, seed=1)}
    assert largest_difference(tmp_path / "original.onnx", fixed, feeds, tmp_path) < 4e-3


def test_what_callers_may_set_stays_half(tmp_path: Path) -> None:
    model = text_model(
        "g (float16[6, 6] x, float16[6, 6] w) => (float16[6, 6] y) { y = MatMul(x, w) }",
    )
    model.graph.initializer.append(numpy_helper.from_array(half(6, 6), "w"))
    fixed = rewrite(model_to_fp32, model, VALUES, tmp_path)
    assert halves(fixed) == {"w"}


def test_initializers_of_old_models_are_no_inputs_that_callers_set(tmp_path: Path) -> None:
    model = text_model("g (float16[6, 6] x) => (float16[6, 6] y) { y = MatMul(x, w) }", 3)
    model.graph.initializer.append(numpy_helper.from_array(half(6, 6), "w"))
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT16, [6, 6]))
    assert not halves(rewrite(model_to_fp32, model, VALUES, tmp_path))


def simple(body: str, more: str = "") -> ModelProto:
    return text_model(f"g (float16[6, 6] x) => (float16[6, 6] y) {{ {body} }} {more}")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            simple(
                "y = local.f(x)",
                '<domain: "local", opset_import: ["" : 17]> f (a) => (b) { b = Relu(a) }',
            ),
            "functions depend on their calls",
        ),
        (simple("f = Cast<to = 1>(x) e = Exp(f) y = Cast<to = 10>(e)"), "only inputs, outputs"),
        (
            simple("s = SequenceConstruct(x) i = Constant<value_int = 0>() y = SequenceAt(s, i)"),
            "sequences",
        ),
    ],
    ids=["function", "interface only", "sequence"],
)
def test_what_is_left_alone(tmp_path: Path, model: ModelProto, message: str) -> None:
    if message == "sequences":
        kind = helper.make_sequence_type_proto(
            helper.make_tensor_type_proto(TensorProto.FLOAT16, [6, 6])
        )
        model.graph.value_info.append(helper.make_value_info("s", kind))
    assert message in refusal(model_to_fp32, model, VALUES, tmp_path)


def test_custom_operators_are_left_alone(tmp_path: Path) -> None:
    model = simple("h = custom.op(x) y = Relu(h)")
    model.opset_import.add(domain="custom", version=1)
    assert "op is a custom operator" in refusal(model_to_fp32, model, VALUES, tmp_path)


def network(folder: Path) -> Path:
    """A network of fp16 images with PRelu between convolutions (a part of a super resolution)."""
    names = [f"f{index}" for index in range(6)]
    nodes, last = [], "x"
    for index, name in enumerate(names):
        nodes.append(f"c{index} = Conv<pads = [1, 1, 1, 1]>({last}, {name})")
        nodes.append(f"p{index} = PRelu(c{index}, s)")
        last = f"p{index}"
    declared = ", ".join(f"float16[32, 32, 3, 3] {name}" for name in names)
    model = text_model(
        f"g (float16[1, 32, h, w] x) => (float16[1, 32, h, w] y)"
        f" <{declared}, float16[32, 1, 1] s> {{ {' '.join(nodes)} y = Tanh({last}) }}",
        **{name: half(32, 32, 3, 3, seed=index) for index, name in enumerate(names)},
        s=half(32, 1, 1, seed=9),
    )
    for value in (*model.graph.input, *model.graph.output):
        for axis in (2, 3):
            value.type.tensor_type.shape.dim[axis].dim_value = 256
    path = folder / "network.onnx"
    onnx.save(model, path)
    return path


def test_weights_become_external_data(tmp_path: Path) -> None:
    model = text_model(
        "g (float16[n, 99] x) => (float16[n, 299] y) <float16[99, 299] w> { y = MatMul(x, w) }",
        w=half(99, 299),
    )
    fixed = rewrite(model_to_fp32, model, VALUES, tmp_path, storage=None)
    assert fixed.with_name(f"{fixed.name}.data").stat().st_size >= 99 * 299 * 4


@pytest.mark.slow
@pytest.mark.measures
def test_a_run_takes_less(tmp_path: Path) -> None:
    path = network(tmp_path)
    fixed = rewrite(model_to_fp32, path, VALUES, tmp_path)
    before, after = taken(path), taken(fixed)
    assert after.steady_bytes < 0.7 * before.steady_bytes
    assert after.peak_bytes < 0.7 * before.peak_bytes


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.24.4", "1.31.1"])
def test_it_runs_on_other_releases(tmp_path: Path, version: str) -> None:
    fixed = rewrite(model_to_fp32, network(tmp_path), VALUES, tmp_path)
    assert runs_on(version, fixed)
