"""Models that read one weight as it is and through Transpose, in many ways."""

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import onnx
from onnx import ModelProto, helper

from memdiag.records.finding import Finding
from memdiag.verify.outputs import Bound
from tests.model_text import Array, random, tensor, with_weights
from tests.rewrites import rewriting
from tests.rewrites.rewriting import Feeds, finding

ROWS, COLUMNS = 24, 16

SHARED = finding("w")
BOUND = Bound.reordered(COLUMNS).relative
STORED = msgspec.structs.replace(finding("w", "t"), name="stored-transpose")


def weight(seed: int = 0, dtype: Any = np.float32) -> Array:
    """Return the matrix, ROWS by COLUMNS, large enough to be referenced in the file."""
    return random((ROWS, COLUMNS), seed, dtype)


def model(text: str, *, opset: int = 17, ir: int = 8, **weights: Array) -> ModelProto:
    """Return the model of `text` with `weights`, or w, as initializers of its main graph."""
    return with_weights(text, ir, opset, **(weights or {"w": weight()}))


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
    return model(
        f"""g (float[1] s, float[n, {COLUMNS}] x, int64[i] ids)
            => (float[1] s_end, float[n, {ROWS}] y, float[i, {COLUMNS}] e) {{
            s_end, y = Scan <num_scan_inputs = 1, body = b (float[1] s_in, float[{COLUMNS}] row)
                => (float[1] s_out, float[{ROWS}] p) {{
                s_out = Identity(s_in) t = Transpose <perm = [1, 0]> (w) p = MatMul(row, t)
            }}> (s, x)
            e = Gather(w, ids) }}"""
    )


BODIES = {"if": in_branches(), "loop": in_loop(), "scan": in_scan()}


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


def rewritten(
    module: ModuleType, original: ModelProto, folder: Path, *feeds: Feeds, of: Finding = SHARED
) -> Path:
    """Return the rewritten model; its outputs are the original's, but for rounding."""
    overridable = module.REWRITE.name in ("overridable-weight", "product-by-rows")
    return rewriting.rewritten(
        module, original, of, folder, *feeds, bound=BOUND, storage=None, overridable=overridable
    )


def in_function() -> ModelProto:
    """Return a call of a function whose product reads its transposed Constant c."""
    original = model(
        f"""g (float[n, {COLUMNS}] x) => (float[n, {ROWS}] y) {{ y = local.F(x) }}
        <domain: "local", opset_import: ["" : 17]>
        F (x) => (y) {{ c = Constant() t = Transpose(c) y = MatMul(x, t) }}"""
    )
    value = helper.make_attribute("value", original.graph.initializer.pop())
    original.functions[0].node[0].attribute.append(value)
    return original


def in_subgraph() -> ModelProto:
    """Return an If whose branches multiply by the transposes of their own v, and of w."""
    original = model(
        f"""g (bool c, float[n, {COLUMNS}] x) => (float[n, {ROWS}] y) {{
            y = If (c) <
                then_branch = a () => (float[n, {ROWS}] p) {{ t = Transpose(v) p = MatMul(x, t) }},
                else_branch = b () => (float[n, {ROWS}] q) {{ u = Transpose(w) q = MatMul(x, u) }}
            > }}"""
    )
    branch = original.graph.node[0].attribute[0].g
    branch.initializer.append(tensor(weight(), "v"))
    return original


def with_list(kind: str, name: str = "w", **options: Any) -> ModelProto:
    """Return `tied` with the matrix `name` listed as an `input` or `output` as well."""
    original = tied(**options)
    value = helper.make_tensor_value_info(name, 1, [ROWS, COLUMNS])
    getattr(original.graph, kind).append(value)
    return original
