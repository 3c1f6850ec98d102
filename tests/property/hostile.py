"""Models built to be as bad as the format lets them be."""

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, TensorProto, helper


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


def rich() -> ModelProto:
    """Return a valid model with something for many rules: all kinds of places and patterns."""
    random = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> TensorProto:
        return onnx.numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name)

    table = weight("table", 64, 32)
    branches = [
        helper.make_graph(
            [
                helper.make_node("Transpose", ["table"], ["turned"], perm=[1, 0]),
                helper.make_node("MatMul", ["hidden", "turned"], ["logits"]),
                helper.make_node("Add", ["logits", "inner"], ["out"]),
            ],
            name,
            [],
            [value("out", "N", 64)],
            [weight("inner", 64)],
        )
        for name in ("then", "else")
    ]
    scaled = onnx.numpy_helper.from_array(random.integers(-8, 8, (32, 32)).astype(np.int8), "q")
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["embedded"], name="embed"),
        helper.make_node("DequantizeLinear", ["q", "scale"], ["dq"]),
        helper.make_node("MatMul", ["embedded", "dq"], ["first"]),
        helper.make_node("Cast", ["half"], ["single"], to=TensorProto.FLOAT),
        helper.make_node("Gemm", ["first", "single", "bias"], ["hidden"], transB=1),
        helper.make_node("Constant", [], ["grid"], value=weight("", 16, 16)),
        helper.make_node("ConstantOfShape", ["sizes"], ["zeros"]),
        helper.make_node("Tile", ["grid", "sizes"], ["tiled"]),
        helper.make_node(
            "If", ["flag"], ["chosen"], then_branch=branches[0], else_branch=branches[1]
        ),
        helper.make_node("Double", ["chosen"], ["doubled"], domain="local"),
        helper.make_node("Conv", ["picture", "filters"], ["conv"], name="conv"),
        helper.make_node("BatchNormalization", ["conv", *["norm"] * 4], ["normal"]),
    ]
    graph = helper.make_graph(
        nodes,
        "main",
        [
            value("ids", "N", kind=TensorProto.INT64),
            value("flag", kind=TensorProto.BOOL),
            value("picture", "N", 8, "H", "W"),
            value("bias", 32),
        ],
        [value("doubled", "N", 64), value("normal", "N", 16, "A", "B"), value("tiled", None, None)],
        [
            table,
            scaled,
            weight("scale"),
            onnx.numpy_helper.from_array(
                random.standard_normal((32, 32)).astype(np.float16), "half"
            ),
            weight("bias", 32),
            onnx.numpy_helper.from_array(np.array([2, 3]), "sizes"),
            weight("filters", 16, 8, 3, 3),
            weight("norm", 16),
            external("outside", [32, 32], offset=4096, length=4096),
            helper.make_tensor("typed", TensorProto.FLOAT, [400], [0.5] * 400),
        ],
    )
    body = [
        helper.make_node("Constant", [], ["two"], value=weight("", 64)),
        helper.make_node("Mul", ["a", "two"], ["b"]),
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    function = helper.make_function("local", "Double", ["a"], ["b"], body, opsets)
    return helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=10)


def nested(depth: int) -> ModelProto:
    """Return a model of If in If in If."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "inner", [], [value("y")]
    )
    for level in range(depth):
        node = helper.make_node(
            "If", ["c"], ["y"], f"if{level}", then_branch=graph, else_branch=graph
        )
        if level > 6:  # two of each would be two to the power of the depth
            del node.attribute[1]
        graph = helper.make_graph([node], "g", [], [value("y")])
    graph.input.extend([value("x", 4, 4), value("c", kind=TensorProto.BOOL)])
    graph.initializer.append(onnx.numpy_helper.from_array(np.ones((4, 4), np.float32), "w"))
    return helper.make_model(graph, ir_version=10)


def calling(count: int, calls: int, *, circle: bool) -> ModelProto:
    """Return a model of functions of which each calls the next one several times."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    functions = []
    for index in range(count):
        following = (index + 1) % count if circle else index + 1
        inner = f"F{following}" if circle or following < count else "Relu"
        domain = "f" if inner != "Relu" else ""
        nodes = [
            helper.make_node(inner, [f"v{step}"], [f"v{step + 1}"], domain=domain)
            for step in range(calls)
        ]
        functions.append(
            helper.make_function("f", f"F{index}", ["v0"], [f"v{calls}"], nodes, opsets)
        )
    graph = helper.make_graph(
        [helper.make_node("F0", ["x"], ["y"], domain="f")],
        "g",
        [value("x", "N")],
        [value("y", "N")],
    )
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)


def chained(*operators: str, length: int, first: str = "w") -> ModelProto:
    """Return a model of a weight that goes through one operator after another."""
    nodes = [
        helper.make_node(operators[step % len(operators)], [f"t{step}"], [f"t{step + 1}"])
        for step in range(length)
    ]
    graph = helper.make_graph(nodes, "g", [value("x", 8)], [value(f"t{length}")])
    graph.node[0].input[0] = first
    graph.initializer.append(onnx.numpy_helper.from_array(np.ones((8, 8), np.float32), "w"))
    return helper.make_model(graph, ir_version=10)


def exploding(operator: str, count: int) -> ModelProto:
    """Return a model whose values double with every node."""
    nodes = [
        helper.make_node(operator, [f"t{step}"] * 2, [f"t{step + 1}"], axis=0)
        for step in range(count)
    ]
    graph = helper.make_graph(nodes, "g", [value("x", "N")], [value(f"t{count}")])
    graph.initializer.append(onnx.numpy_helper.from_array(np.ones(8, np.float32), "t0"))
    return helper.make_model(graph, ir_version=10)


def bomb(operator: str, *sizes: int) -> ModelProto:
    """Return a model with one node whose folded result has `sizes`."""
    shape = onnx.numpy_helper.from_array(np.array(sizes, np.int64), "shape")
    one = onnx.numpy_helper.from_array(np.ones([1] * len(sizes), np.float32), "one")
    inputs = ["shape"] if operator == "ConstantOfShape" else ["one", "shape"]
    graph = helper.make_graph(
        [helper.make_node(operator, inputs, ["big"]), helper.make_node("Mul", ["big", "x"], ["y"])],
        "g",
        [value("x", "N")],
        [value("y")],
        [shape, one],
    )
    return helper.make_model(graph, ir_version=10)


def circular() -> ModelProto:
    """Return a model whose nodes read each other, and themselves, or nothing."""
    weights = [
        onnx.numpy_helper.from_array(np.ones((4, 3, 1, 1), np.float32), "filter"),
        onnx.numpy_helper.from_array(np.ones((4, 1, 1), np.float32), "scale"),
    ]
    nodes = [
        helper.make_node("Conv", ["image", "filter"], ["f"]),
        helper.make_node("Mul", ["f", "scale"], ["f"]),
        helper.make_node("Transpose", [], ["nothing"]),
        helper.make_node("MatMul", ["x", "nothing"], ["z"]),
        helper.make_node("Add", ["a", "b"], ["a"]),
        helper.make_node("Transpose", ["c"], ["b"]),
        helper.make_node("Identity", ["b"], ["c"]),
        helper.make_node("Identity", ["d"], ["d"]),
        helper.make_node("MatMul", ["x", "c"], ["y"]),
    ]
    inputs = [value("x", "N", 4), value("image", "N", 3, 8, 8)]
    graph = helper.make_graph(nodes, "g", inputs, [value("y"), value("z")], weights)
    return helper.make_model(graph, ir_version=10)


def doubled() -> ModelProto:
    """Return a model in which everything has the same name."""
    weights = [
        onnx.numpy_helper.from_array(np.full((8, 8), each, np.float32), "w") for each in (1, 2)
    ]
    nodes = [helper.make_node("MatMul", ["w", "w"], ["w"], name="w") for _ in range(50)]
    graph = helper.make_graph(
        nodes, "w", [value("w", "w"), value("w", 3)], [value("w")] * 2, weights
    )
    return helper.make_model(graph, ir_version=10)


def sparse(*shape: int, attribute: bool = False) -> ModelProto:
    """Return a model with a sparse tensor of one value, and of an absurd dense size."""
    tensor = onnx.SparseTensorProto(dims=shape)
    tensor.values.CopyFrom(helper.make_tensor("s", TensorProto.FLOAT, [1], [1.0]))
    tensor.indices.CopyFrom(helper.make_tensor("", TensorProto.INT64, [1], [0]))
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "s"], ["y"])], "g", [value("x", "N", 4)], [value("y")]
    )
    if attribute:
        node = helper.make_node("Constant", [], ["s"])
        node.attribute.append(
            AttributeProto(
                name="sparse_value", type=AttributeProto.SPARSE_TENSOR, sparse_tensor=tensor
            )
        )
        graph.node.insert(0, node)
    else:
        graph.sparse_initializer.append(tensor)
    return helper.make_model(graph, ir_version=10)


def wide(count: int) -> ModelProto:
    """Return a model of one weight that very many nodes read."""
    nodes = [helper.make_node("MatMul", ["x", "w"], [f"y{index}"]) for index in range(count)]
    graph = helper.make_graph(nodes, "g", [value("x", "N", 8)], [value("y0")])
    graph.initializer.append(onnx.numpy_helper.from_array(np.ones((8, 8), np.float32), "w"))
    return helper.make_model(graph, ir_version=10)
