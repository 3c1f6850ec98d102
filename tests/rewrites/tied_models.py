"""Models that read one weight as it is and through Transpose, in many ways."""

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

from memdiag.records.finding import Finding
from memdiag.verify.outputs import Bound
from tests.rewrites.rewriting import (
    Array,
    Feeds,
    finding,
    largest_difference,
    random,
    rewrite,
)

ROWS, COLUMNS = 24, 16

SHARED = finding("w")
BOUND = Bound.reordered(COLUMNS).relative
STORED = msgspec.structs.replace(finding("w", "t"), name="stored-transpose")


def weight(seed: int = 0, dtype: Any = np.float32) -> Array:
    """Return the matrix, ROWS by COLUMNS, large enough to be referenced in the file."""
    return random((ROWS, COLUMNS), seed, dtype)


def model(text: str, *, opset: int = 17, ir: int = 8, **weights: Array) -> ModelProto:
    """Return the model of `text` with `weights` as initializers of its main graph."""
    imports = f'"" : {opset}, "local" : 1'
    proto = parser.parse_model(f"<ir_version: {ir}, opset_import: [{imports}]> {text}")
    for name, values in (weights or {"w": weight()}).items():
        proto.graph.initializer.append(numpy_helper.from_array(values, name))
    return proto


def tied(
    sizes: Sequence[int | str] | None = ("n",),
    *,
    nodes: str = "t = Transpose <perm = [1, 0]> (w) y = MatMul(x, t)",
    opset: int = 17,
    dtype: Any = np.float32,
) -> ModelProto:
    """Return Gather(w, ids) and x times the transposed w, the left sizes of x being `sizes`.

    They are not known where None: x comes out of a Reshape to a shape that is an input.
    """
    name = {"float32": "float", "float64": "double"}.get(np.dtype(dtype).name, np.dtype(dtype).name)
    left = ",".join(map(str, sizes or ()))
    given, before, after = f"{name}[{left and left + ','}{COLUMNS}] x", "", ""
    out = f"{name}[{left and left + ','}{ROWS}] y"
    if sizes is None:
        given, before = f"{name}[k] flat, int64[r] shape", "x = Reshape(flat, shape)"
        after = "axes = Shape(y) one = Constant <value = int64[1] {-1}> () all = Reshape(y, one)"
        out = f"int64[q] axes, {name}[o] all"
    return model(
        f"g ({given}, int64[i] ids) => ({out}, {name}[i, {COLUMNS}] e) {{ "
        f"{before} e = Gather(w, ids) {nodes} {after} }}",
        opset=opset,
        w=weight(dtype=dtype),
    )


def tied_feeds(*sizes: int, dtype: Any = np.float32, flat: bool = False) -> Feeds:
    """Return inputs for `tied`."""
    x = random((*sizes, COLUMNS), 1, dtype)
    ids = np.array([0, 5, ROWS - 1])
    if not flat:
        return {"x": x, "ids": ids}
    return {"flat": x.reshape(-1), "shape": np.array(x.shape), "ids": ids}


def in_branches() -> ModelProto:
    """Return an If: Gather in one branch, the product by the transposed weight in the other."""
    return model(
        f"""g (bool c, int64[n] ids, float[n, {COLUMNS}] x) => (float[n, m] y) {{
            y = If (c) <
                then_branch = a () => (float[n, m] e) {{ e = Gather(w, ids) }},
                else_branch = b () => (float[n, m] p) {{
                    t = Transpose <perm = [1, 0]> (w) p = MatMul(x, t) }}
            > }}"""
    )


def in_loop() -> ModelProto:
    """Return a Loop whose body multiplies by the transposed weight and gathers from it."""
    return model(
        f"""g (int64 m, float[n, {COLUMNS}] x) => (float[n, {COLUMNS}] y) {{
            go = Constant <value = bool {{1}}> ()
            y = Loop (m, go, x) <
                body = b (int64 i, bool before, float[n, {COLUMNS}] s)
                    => (bool after, float[n, {COLUMNS}] r) {{
                    after = Identity(before)
                    t = Transpose(w)
                    p = MatMul(s, t)
                    scale = Constant <value = float {{0.1}}> ()
                    q = Mul(p, scale)
                    r = MatMul(q, w)
                }}
            > }}"""
    )


def in_scan() -> ModelProto:
    """Return a Scan over the rows of x, vectors, each multiplied by the transposed weight."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["s"], ["s_out"]),
            helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
            helper.make_node("MatMul", ["row", "t"], ["p"], name="product"),
        ],
        "body",
        [
            helper.make_tensor_value_info("s", TensorProto.FLOAT, [1]),
            helper.make_tensor_value_info("row", TensorProto.FLOAT, [COLUMNS]),
        ],
        [
            helper.make_tensor_value_info("s_out", TensorProto.FLOAT, [1]),
            helper.make_tensor_value_info("p", TensorProto.FLOAT, [ROWS]),
        ],
    )
    graph = helper.make_graph(
        [
            helper.make_node("Scan", ["s", "x"], ["s_end", "y"], body=body, num_scan_inputs=1),
            helper.make_node("Gather", ["w", "ids"], ["e"]),
        ],
        "g",
        [
            helper.make_tensor_value_info("s", TensorProto.FLOAT, [1]),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", COLUMNS]),
            helper.make_tensor_value_info("ids", TensorProto.INT64, ["i"]),
        ],
        [
            helper.make_tensor_value_info("s_end", TensorProto.FLOAT, [1]),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", ROWS]),
            helper.make_tensor_value_info("e", TensorProto.FLOAT, ["i", COLUMNS]),
        ],
        [numpy_helper.from_array(weight(), "w")],
    )
    imports = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


BODIES: dict[str, tuple[ModelProto, tuple[Feeds, ...]]] = {
    "if": (
        in_branches(),
        tuple(
            {
                "c": np.array(flag),
                "ids": np.arange(rows) % ROWS,
                "x": random((rows, COLUMNS), 1),
            }
            for flag in (True, False)
            for rows in (1, 3)
        ),
    ),
    "loop": (
        in_loop(),
        tuple({"m": np.array(n), "x": random((2, COLUMNS), 1)} for n in (0, 1, 3)),
    ),
    "scan": (
        in_scan(),
        ({"s": np.zeros(1, np.float32), "x": random((3, COLUMNS), 1), "ids": np.array([1, 2])},),
    ),
}


def stored_twice(
    nodes: str = "e = Gather(w, ids) y = MatMul(x, t)", *, ids: str = "i", opset: int = 17
) -> ModelProto:
    """Return a model that stores a matrix and its transpose, w and t."""
    return model(
        f"g (float[n, {COLUMNS}] x, int64{'[' + ids + ']' if ids else ''} ids)"
        f" => (float[n, {ROWS}] y, float[{ids and ids + ','}{COLUMNS}] e) {{ {nodes} }}",
        opset=opset,
        w=weight(),
        t=np.ascontiguousarray(weight().T),
    )


def saved_pair(path: Path, rows: int, columns: int) -> Path:
    """Save a model with a matrix and its transpose of that size to `path`."""
    matrix = random((rows, columns))
    text = (
        f"g (float[n, {columns}] x, int64[i] ids) => (float[n, {rows}] y, float[i, {columns}] e)"
        " { e = Gather(w, ids) y = MatMul(x, t) }"
    )
    onnx.save(model(text, w=matrix, t=np.ascontiguousarray(matrix.T)), path)
    return path


def operators(path: Path) -> list[str]:
    """Return the operators of a model's nodes, those of subgraphs included."""
    found: list[str] = []
    pending = [onnx.load(path).graph]
    while pending:
        for node in pending.pop().node:
            found.append(node.op_type)
            pending += [one.g for one in node.attribute if one.HasField("g")]
    return sorted(found)


def weights(path: Path) -> list[str]:
    """Return the names of the main graph's initializers."""
    return [tensor.name for tensor in onnx.load(path).graph.initializer]


def rewritten(
    module: ModuleType, original: ModelProto, folder: Path, *feeds: Feeds, of: Finding = SHARED
) -> Path:
    """Return the rewritten model; its outputs with `feeds` are the original's, but for rounding."""
    overridable = module.REWRITE.name in ("overridable-weight", "product-by-rows")
    path = rewrite(module, original, of, folder, storage=None, overridable=overridable)
    for each in feeds:
        assert largest_difference(folder / "original.onnx", path, each, folder) <= BOUND
    return path
