"""Models built to be as bad as the format lets them be."""

from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, TensorProto, helper
from onnx.numpy_helper import from_array
from onnx.parser import parse_model

HEADER = '<ir_version: 10, opset_import: ["" : 17, "local" : 1, "f" : 1]>'


def external(name: str, shape: list[int], **entries: object) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": "w.bin", **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def value(
    name: str, *shape: int | str | None, kind: int = TensorProto.FLOAT
) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(shape))


def model(text: str, **weights: np.ndarray[Any, Any]) -> ModelProto:
    """Return the model of a graph, and functions, as text; with further weights."""
    made = parse_model(f"{HEADER} {text}")
    made.graph.initializer.extend(from_array(array, name) for name, array in weights.items())
    return made


def ones(*shape: int) -> np.ndarray[Any, Any]:
    return np.ones(shape, np.float32)


def filled(*shape: int) -> str:
    """Return a tensor as text, which the parser stores as a list of floats."""
    return f"{{{', '.join(['0.5'] * prod(shape))}}}"


def rich() -> ModelProto:
    """Return a valid model with something for many rules: all kinds of places and patterns."""
    random = np.random.default_rng(0)

    def weight(*shape: int) -> np.ndarray[Any, Any]:
        return random.standard_normal(shape).astype(np.float32)

    branch = f"""branch () => (float[N, 64] out) <float[64] inner = {filled(64)}> {{
        turned = Transpose <perm = [1, 0]> (table)
        logits = MatMul(hidden, turned)
        out = Add(logits, inner) }}"""
    made = model(
        f"""main (int64[N] ids, bool flag, float[N, 8, H, W] picture, float[32] bias)
            => (float[N, 64] doubled, float[N, 16, A, B] normal, float[?, ?] tiled)
            <int64[2] sizes = {{2, 3}}, float[400] typed = {filled(400)}> {{
        embedded = Gather(table, ids)
        dq = DequantizeLinear(q, scale)
        first = MatMul(embedded, dq)
        single = Cast <to = 1> (half)
        hidden = Gemm <transB = 1> (first, single, bias)
        grid = Constant <value = float[16, 16] {filled(16, 16)}> ()
        zeros = ConstantOfShape(sizes)
        tiled = Tile(grid, sizes)
        chosen = If(flag) <then_branch = {branch}, else_branch = {branch}>
        doubled = local.Double(chosen)
        conv = Conv(picture, filters)
        normal = BatchNormalization(conv, norm, norm, norm, norm) }}
        <domain: "local", opset_import: ["" : 17]> Double (a) => (b) {{
        two = Constant <value = float[64] {filled(64)}> ()
        b = Mul(a, two) }}""",
        table=weight(64, 32),
        q=random.integers(-8, 8, (32, 32)).astype(np.int8),
        scale=np.array(random.standard_normal(), np.float32),
        half=weight(32, 32).astype(np.float16),
        bias=weight(32),
        filters=weight(16, 8, 3, 3),
        norm=weight(16),
    )
    made.graph.initializer.append(external("outside", [32, 32], offset=4096, length=4096))
    return made


def nested(depth: int) -> ModelProto:
    """Return a model of If in If in If."""
    body = "y = MatMul(x, w)"
    for level in range(depth):
        graph = f"g () => (float y) {{ {body} }}"
        # Two of each would be two to the power of the depth.
        branches = f"then_branch = {graph}" + f", else_branch = {graph}" * (level <= 6)
        body = f"y = If(c) <{branches}>"
    return model(f"g (float[4, 4] x, bool c) => (float y) {{ {body} }}", w=ones(4, 4))


def calling(count: int, calls: int, *, circle: bool) -> ModelProto:
    """Return a model of functions of which each calls the next one several times."""
    functions = []
    for index in range(count):
        following = (index + 1) % count if circle else index + 1
        operator = f"f.F{following}" if circle or following < count else "Relu"
        nodes = " ".join(f"v{step + 1} = {operator}(v{step})" for step in range(calls))
        functions.append(
            f'<domain: "f", opset_import: ["" : 17, "f" : 1]>'
            f" F{index} (v0) => (v{calls}) {{ {nodes} }}"
        )
    return model(f"g (float[N] x) => (float[N] y) {{ y = f.F0(x) }} {' '.join(functions)}")


def chained(*operators: str, length: int, first: str = "w") -> ModelProto:
    """Return a model of a weight that goes through one operator after another."""
    names = [first, *(f"t{step + 1}" for step in range(length))]
    nodes = " ".join(
        f"{names[step + 1]} = {operators[step % len(operators)]}({names[step]})"
        for step in range(length)
    )
    return model(f"g (float[8] x) => (float {names[-1]}) {{ {nodes} }}", w=ones(8, 8))


def exploding(operator: str, count: int) -> ModelProto:
    """Return a model whose values double with every node."""
    nodes = " ".join(
        f"t{step + 1} = {operator} <axis = 0> (t{step}, t{step})" for step in range(count)
    )
    return model(f"g (float[N] x) => (float[N] t{count}) {{ {nodes} }}", t0=ones(8))


def bomb(operator: str, *sizes: int) -> ModelProto:
    """Return a model with one node whose folded result has `sizes`."""
    inputs = "shape" if operator == "ConstantOfShape" else "one, shape"
    return model(
        f"g (float[N] x) => (float y) {{ big = {operator}({inputs}) y = Mul(big, x) }}",
        shape=np.array(sizes, np.int64),
        one=ones(*[1] * len(sizes)),
    )


def circular() -> ModelProto:
    """Return a model whose nodes read each other, and themselves, or nothing."""
    return model(
        """g (float[N, 4] x, float[N, 3, 8, 8] image) => (float y, float z) {
        f = Conv(image, filter)
        f = Mul(f, scale)
        nothing = Transpose()
        z = MatMul(x, nothing)
        a = Add(a, b)
        b = Transpose(c)
        c = Identity(b)
        d = Identity(d)
        y = MatMul(x, c) }""",
        filter=ones(4, 3, 1, 1),
        scale=ones(4, 1, 1),
    )


def doubled() -> ModelProto:
    """Return a model in which everything has the same name."""
    nodes = "w = MatMul(w, w) " * 50
    made = model(f"w (float[w] w, float[3] w) => (float w, float w) {{ {nodes} }}", w=ones(8, 8))
    made.graph.initializer.append(from_array(2 * ones(8, 8), "w"))
    for node in made.graph.node:
        node.name = "w"
    return made


def sparse(*shape: int, attribute: bool = False) -> ModelProto:
    """Return a model with a sparse tensor of one value, and of an absurd dense size."""
    tensor = onnx.SparseTensorProto(dims=shape)
    tensor.values.CopyFrom(helper.make_tensor("s", TensorProto.FLOAT, [1], [1.0]))
    tensor.indices.CopyFrom(helper.make_tensor("", TensorProto.INT64, [1], [0]))
    made = model("g (float[N, 4] x) => (float y) { y = MatMul(x, s) }")
    if attribute:
        node = helper.make_node("Constant", [], ["s"])
        kind = AttributeProto.SPARSE_TENSOR
        node.attribute.append(AttributeProto(name="sparse_value", type=kind, sparse_tensor=tensor))
        made.graph.node.insert(0, node)
    else:
        made.graph.sparse_initializer.append(tensor)
    return made


def wide(count: int) -> ModelProto:
    """Return a model of one weight that very many nodes read."""
    nodes = " ".join(f"y{index} = MatMul(x, w)" for index in range(count))
    return model(f"g (float[N, 8] x) => (float y0) {{ {nodes} }}", w=ones(8, 8))
