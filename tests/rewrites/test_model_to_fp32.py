from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

from memdiag.rewrites.catalog import model_to_fp32
from tests.model_text import random, tensor, text_model
from tests.rewrites.rewriting import (
    initializers,
    operators,
    refusal,
    rewrite,
    rewritten,
    runs_on,
    taken,
)

BOUND = 4e-3
"""Values in between are not rounded to half precision any more."""


def halves(path: Path) -> set[str]:
    return initializers(path, TensorProto.FLOAT16)


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
        w=random((6, 6), 0, np.float16) * np.float16(0.3),
        k=random((6, 6), 3, np.float16),
    )
    for node in model.graph.node:
        if node.op_type == "ConstantOfShape":
            value = helper.make_tensor("", TensorProto.FLOAT16, [1], [0.5])
            node.attribute.append(helper.make_attribute("value", value))
    fixed = rewritten(model_to_fp32, model, "", tmp_path, bound=BOUND)
    assert not halves(fixed)
    casts = [node for node in onnx.load(fixed).graph.node if node.op_type == "Cast"]
    interface = {"x", "y", "q"}
    assert all({*cast.input, *cast.output} & interface for cast in casts) or "integers" in name


@pytest.mark.parametrize(
    "body",
    ["h = PRelu(r, b) y = MatMul(h, w)", "h = PRelu(r, b) t = Transpose(e) y = MatMul(h, t)"],
    ids=["untied", "tied"],
)
def test_rows_of_a_weight_stay_half(tmp_path: Path, body: str) -> None:
    model = text_model(
        f"g (int64[n] i) => (float16[n, m] y) <float16[9, 6] e, float16[6] b, float16[6, 4] w>"
        f" {{ r = Gather(e, i) {body} }}"
    )
    fixed = rewritten(model_to_fp32, model, "", tmp_path, bound=BOUND)
    assert halves(fixed) == {"e"}
    assert operators(fixed).count("Cast") == 2


def test_rows_that_are_the_output_stay_half(tmp_path: Path) -> None:
    model = text_model(
        "g (int64[n] i, float16[n, 6] x) => (float16[n, 6] y, float16[n, 6] z)"
        " <float16[9, 6] e> { y = Gather(e, i) z = Add(x, y) }"
    )
    assert halves(rewritten(model_to_fp32, model, "", tmp_path, bound=BOUND)) == {"e"}


@pytest.mark.parametrize(("ir", "left"), [(10, {"w"}), (3, set())], ids=["new", "old"])
def test_what_callers_may_set_stays_half(tmp_path: Path, ir: int, left: set[str]) -> None:
    text = "g (float16[6, 6] x, float16[6, 6] w) => (float16[6, 6] y) { y = MatMul(x, w) }"
    model = text_model(text, ir)
    model.graph.initializer.append(tensor(random((6, 6), 0, np.float16), "w"))
    assert halves(rewrite(model_to_fp32, model, "", tmp_path)) == left


def simple(body: str, more: str = "") -> ModelProto:
    return text_model(f"g (float16[6, 6] x) => (float16[6, 6] y) {{ {body} }} {more}")


def sequence() -> ModelProto:
    model = simple("s = SequenceConstruct(x) i = Constant<value_int = 0>() y = SequenceAt(s, i)")
    element = helper.make_tensor_type_proto(TensorProto.FLOAT16, [6, 6])
    kind = helper.make_sequence_type_proto(element)
    model.graph.value_info.append(helper.make_value_info("s", kind))
    return model


def custom() -> ModelProto:
    model = simple("h = custom.op(x) y = Relu(h)")
    model.opset_import.add(domain="custom", version=1)
    return model


FUNCTION = '<domain: "local", opset_import: ["" : 17]> f (a) => (b) { b = Relu(a) }'
INTERFACE = "f = Cast<to = 1>(x) e = Exp(f) y = Cast<to = 10>(e)"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (simple("y = local.f(x)", FUNCTION), "functions depend on their calls"),
        (simple(INTERFACE), "only inputs, outputs"),
        (sequence(), "sequences"),
        (custom(), "op is a custom operator"),
    ],
    ids=["function", "interface only", "sequence", "custom operator"],
)
def test_what_is_left_alone(tmp_path: Path, model: ModelProto, message: str) -> None:
    assert message in refusal(model_to_fp32, model, "", tmp_path)


def test_weights_become_external_data(tmp_path: Path) -> None:
    model = text_model(
        "g (float16[n, 99] x) => (float16[n, 299] y) <float16[99, 299] w> { y = MatMul(x, w) }"
    )
    fixed = rewrite(model_to_fp32, model, "", tmp_path, storage=None)
    assert fixed.with_name(f"{fixed.name}.data").stat().st_size >= 99 * 299 * 4


@pytest.mark.slow
@pytest.mark.measures
def test_a_run_takes_less(tmp_path: Path) -> None:
    """A network of fp16 images with PRelu between convolutions: a part of a super resolution."""
    nodes = [
        f"c{n} = Conv<pads = [1, 1, 1, 1]>({f'p{n - 1}' if n else 'x'}, f{n}) p{n} = PRelu(c{n}, s)"
        for n in range(6)
    ]
    filters = ", ".join(f"float16[32, 32, 3, 3] f{n}" for n in range(6))
    model = text_model(
        "g (float16[1, 32, 256, 256] x) => (float16[1, 32, 256, 256] y)"
        f" <{filters}, float16[32, 1, 1] s> {{ {' '.join(nodes)} y = Tanh(p5) }}"
    )
    fixed = rewrite(model_to_fp32, model, "", tmp_path)
    before, after = taken(tmp_path / "original.onnx"), taken(fixed)
    assert after.steady_bytes < 0.7 * before.steady_bytes
    assert after.peak_bytes < 0.7 * before.peak_bytes
    assert runs_on("1.24.4", fixed)
