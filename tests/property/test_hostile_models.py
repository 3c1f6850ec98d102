"""Whatever a file says, opening and examining it ends soon: with findings or with an error of ours.

Every rule is run in this process on models that were damaged, or built to be as bad as the format
lets them be.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, helper

from memdiag.detectors import detectors
from memdiag.detectors.examined import Examined
from memdiag.errors import MemdiagError
from memdiag.graph.reader import open_model
from memdiag.prediction.runtime import Runtime

resource = pytest.importorskip("resource")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")

SECONDS = 10.0
"""What one model may take; all of them here are small, so that most take milliseconds."""

MIB = 1024 * 1024
MOST_MEMORY = 500 * MIB
"""What examining one of them may add, most of it address space that is never used."""

RUNTIMES = [Runtime(1, 22, 1), Runtime(1, 24, 4), Runtime(1, 31, 1)]

FEW = settings(
    max_examples=40,
    deadline=SECONDS * 1000,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
MANY = settings(FEW, max_examples=3000)


@contextmanager
def limited() -> Iterator[None]:
    """Refuse this process more than `MOST_MEMORY` beyond what it has, so that no test takes all."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MOST_MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def examine(path: Path, runtime: Runtime = RUNTIMES[-1]) -> str:
    """Examine the model at `path` with all rules; return the error's text, if there is one."""
    started = time.monotonic()
    message = ""
    try:
        with limited(), open_model(path) as model:
            examined = Examined(model, runtime, sizes={"N": 4})
            for detector in detectors():
                for finding in detector.detect(examined):
                    assert finding.rule == detector.rule.code
                    assert finding.bytes >= 0
                    assert finding.peak_bytes >= 0
    except MemdiagError as error:
        message = str(error)
        assert message
    assert time.monotonic() - started < SECONDS
    return message


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "w.bin").write_bytes(np.arange(4096, dtype=np.float32).tobytes())
    return folder


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


RICH = rich()
BYTES: bytes = RICH.SerializeToString()


def test_the_undamaged_model_is_examined(folder: Path) -> None:
    path = folder / "whole.onnx"
    path.write_bytes(BYTES)
    onnx.checker.check_model(path)
    for runtime in RUNTIMES:
        assert examine(path, runtime) == ""


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Return the rich model's bytes with a few of them cut off, changed, doubled or taken out."""
    data = bytearray(BYTES)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(len(data) - 1, 0)))
        kind = draw(st.sampled_from(["cut", "flip", "length", "insert", "remove", "repeat"]))
        if kind == "cut":
            del data[place:]
        elif kind == "flip":
            data[place : place + 1] = bytes([draw(st.integers(0, 255))])
        elif kind == "length":
            data[place : place + 1] = b"\xff" * draw(st.integers(1, 9)) + b"\x7f"
        elif kind == "insert":
            data[place:place] = draw(st.binary(max_size=12))
        elif kind == "remove":
            del data[place : place + draw(st.integers(1, 50))]
        else:
            data[place:place] = data[place : place + draw(st.integers(1, 300))]
    return bytes(data)


def names(graph: GraphProto) -> list[str]:
    """Return the names of values in `graph` and its subgraphs."""
    found = [tensor.name for tensor in graph.initializer] + [one.name for one in graph.input]
    for node in graph.node:
        found += [*node.input, *node.output]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found += names(attribute.g)
    return found


NAMES = sorted(set(names(RICH.graph)))
OPERATORS = sorted(
    {
        *(node.op_type for node in RICH.graph.node),
        *("Reshape", "Expand", "Range", "Split", "Concat", "Loop", "Scan", "SequenceAt", "Einsum"),
        *("MatMulNBits", "LSTM", "QLinearConv", "Squeeze", "Slice", "Pad", "Identity", "NoSuch"),
    }
)
NUMBERS = [-(2**63), -1, 0, 1, 3, 31, 2**31, 2**40, 2**62, 2**63 - 1]


def graphs_of(graph: GraphProto) -> list[GraphProto]:
    inner = [one.g for node in graph.node for one in node.attribute if one.HasField("g")]
    return [graph, *(found for one in inner for found in graphs_of(one))]


@st.composite
def rewired(draw: st.DrawFn) -> ModelProto:
    """Return the rich model with names, shapes and attributes that make no sense."""
    model = ModelProto()
    model.CopyFrom(RICH)
    number, name = st.sampled_from(NUMBERS), st.sampled_from([*NAMES, "", "nowhere"])
    for _ in range(draw(st.integers(1, 5))):
        graph = draw(st.sampled_from(graphs_of(model.graph)))
        node = draw(st.sampled_from(list(graph.node) or [graph.node.add()]))
        tensor = draw(st.sampled_from(list(graph.initializer) or [graph.initializer.add()]))
        kind = draw(st.integers(0, 12))
        if kind == 0 and node.input:
            node.input[draw(st.integers(0, len(node.input) - 1))] = draw(name)
        elif kind == 1 and node.output:
            node.output[draw(st.integers(0, len(node.output) - 1))] = draw(name)
        elif kind == 2:
            node.op_type = draw(st.sampled_from(OPERATORS))
        elif kind == 3:
            del node.input[draw(st.integers(0, len(node.input))) :]
        elif kind == 4:
            node.input.extend([draw(name)] * draw(st.sampled_from([1, 3, 500])))
        elif kind == 5:
            del node.attribute[:]
        elif kind == 6:
            key = draw(
                st.sampled_from(["perm", "axis", "axes", "to", "transB", "value", "block_size"])
            )
            node.attribute.append(helper.make_attribute(key, draw(number)))
        elif kind == 7:
            key = draw(
                st.sampled_from(["perm", "axes", "shape", "pads", "group", "value_ints", "to"])
            )
            node.attribute.append(helper.make_attribute(key, [draw(number), draw(number)]))
        elif kind == 8:
            tensor.name = draw(name)
        elif kind == 9:
            # Shapes of values are claims that nobody checks; those of weights must fit their data.
            target = draw(st.sampled_from([*graph.input, *graph.output] or [graph.input.add()]))
            shape = [draw(number) for _ in range(draw(st.integers(0, 6)))]
            target.CopyFrom(value(draw(name), *shape, kind=draw(st.integers(0, 30))))
        elif kind == 10:
            size = draw(number)
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.array([size, size]), draw(name)))
        elif kind == 11:
            graph.node.append(node)
        else:
            model.opset_import[0].version = draw(st.sampled_from([-1, 0, 1, 6, 9, 25, 2**31]))
    return model


@FEW
@given(data=damaged(), runtime=st.sampled_from(RUNTIMES))
def test_damaged_bytes(folder: Path, data: bytes, runtime: Runtime) -> None:
    (folder / "damaged.onnx").write_bytes(data)
    examine(folder / "damaged.onnx", runtime)


@FEW
@given(model=rewired(), runtime=st.sampled_from(RUNTIMES))
def test_models_that_make_no_sense(folder: Path, model: ModelProto, runtime: Runtime) -> None:
    (folder / "rewired.onnx").write_bytes(model.SerializeToString())
    examine(folder / "rewired.onnx", runtime)


@FEW
@given(
    offset=st.one_of(st.integers(-10, 20_000), st.sampled_from(NUMBERS)),
    length=st.one_of(st.integers(-10, 20_000), st.sampled_from(NUMBERS)),
    other=st.integers(0, 16_384),
    location=st.sampled_from(["w.bin", "./w.bin", "nowhere", "../w.bin", "/etc/passwd", "", "\0"]),
    size=st.sampled_from([*NUMBERS, 16, 1024]),
)
def test_external_ranges_that_overlap_or_lie_anywhere(
    folder: Path, offset: int, length: int, other: int, location: str, size: int
) -> None:
    model = ModelProto()
    model.CopyFrom(RICH)
    model.graph.initializer.append(
        external("e", [size], location=location, offset=offset, length=length)
    )
    model.graph.initializer.append(external("o", [1024], offset=min(other, 12_288), length=4096))
    (folder / "external.onnx").write_bytes(model.SerializeToString())
    examine(folder / "external.onnx")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_great_many(folder: Path) -> None:
    @MANY
    @given(data=st.one_of(damaged(), rewired().map(ModelProto.SerializeToString)))
    def run(data: bytes) -> None:
        (folder / "many.onnx").write_bytes(data)
        examine(folder / "many.onnx")

    run()


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
    """Return a model whose nodes read each other, and themselves."""
    nodes = [
        helper.make_node("Add", ["a", "b"], ["a"]),
        helper.make_node("Transpose", ["c"], ["b"]),
        helper.make_node("Identity", ["b"], ["c"]),
        helper.make_node("Identity", ["d"], ["d"]),
        helper.make_node("MatMul", ["x", "c"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [value("x", "N", 4)], [value("y")])
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


HOSTILE: dict[str, Callable[[], ModelProto]] = {
    "subgraphs 30 deep": lambda: nested(30),
    "functions that call each other": lambda: calling(2, 2, circle=True),
    "a function that calls itself": lambda: calling(1, 3, circle=True),
    "two to the power of forty calls": lambda: calling(40, 2, circle=False),
    "functions 200 deep": lambda: calling(200, 1, circle=False),
    "ten thousand transposes": lambda: chained("Transpose", length=10_000),
    "ten thousand steps": lambda: chained("Identity", "Cast", "Reshape", length=10_000),
    "ten thousand activations": lambda: chained("Relu", length=10_000, first="x"),
    "a value that doubles 80 times": lambda: exploding("Concat", 80),
    "a folded exabyte": lambda: bomb("Expand", 2**30, 2**30),
    "a folded size of no end": lambda: bomb("ConstantOfShape", *[2**62] * 20),
    "negative sizes": lambda: bomb("Expand", -5, 2**40),
    "tiled to the end": lambda: bomb("Tile", 2**62, 2**62),
    "circles": circular,
    "one name for all": doubled,
    "a sparse exabyte": lambda: sparse(2**30, 2**30),
    "a sparse constant of 64 GiB": lambda: sparse(2**17, 2**17, attribute=True),
    "twenty thousand readers": lambda: wide(20_000),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_model_built_to_be_hostile(tmp_path: Path, name: str) -> None:
    path = tmp_path / "hostile.onnx"
    path.write_bytes(HOSTILE[name]().SerializeToString())
    examine(path)
