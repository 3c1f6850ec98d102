"""Small graphs, with what constant folding makes of them."""

import onnx
from onnx import parser

VALUES = ",".join(map(str, range(32)))
W = f"float[4,8] W = {{{VALUES}}}"
Q = f"int8[8,4] Q = {{{VALUES}}}, float s = {{0.5}}, int8 z = {{0}}"
TRANSPOSED = "(bool c, float[3,8] x) => (float[3,4] y)"


def text(graph: str, *, opset: int = 17, ir: int = 9, function: str = "") -> onnx.ModelProto:
    imports = f'["":{opset}, "f":1]' if function else f'["":{opset}]'
    source = f"<ir_version: {ir}, opset_import: {imports}> g {graph}"
    if function:
        source += f'<domain: "f", opset_import: ["":{opset}]> {function}'
    return parser.parse_model(source)


# Each with what is folded; a result in brackets is gone again, for only other folds read it.
CASES: dict[str, tuple[onnx.ModelProto, list[str]]] = {
    "transposed weight": (
        text(f"(float[8,4] x) => (float[8,4] y) <{W}> {{ t = Transpose(W) y = Add(x, t) }}"),
        ["t"],
    ),
    "chain": (
        text(
            f"(float[8,4] x) => (float[8,4] y) <{W}> "
            "{ t = Transpose(W) n = Neg(t) a = Abs(n) y = Add(x, a) }"
        ),
        ["(t)", "(n)", "a"],
    ),
    "an input in it": (
        text(f"(float[4,8] x) => (float[8,4] y) <{W}> {{ a = Add(x, W) y = Transpose(a) }}"),
        [],
    ),
    "output of the graph": (
        text(
            f"(float[8,4] x) => (float[8,4] y, float[8,4] t) <{W}> "
            "{ t = Transpose(W) y = Add(x, t) }"
        ),
        ["t"],
    ),
    "identity is no copy": (
        text(f"(float[4,8] x) => (float[4,8] y) <{W}> {{ i = Identity(W) y = Add(x, i) }}"),
        [],
    ),
    "identity that is an output": (
        text(
            f"(float[4,8] x) => (float[4,8] y, float[4,8] i) <{W}> "
            "{ i = Identity(W) y = Add(x, W) }"
        ),
        ["i"],
    ),
    "casts": (
        text(
            f"(double[4,8] x) => (double[4,8] y, float[4,8] q) <{W}> "
            "{ a = Cast<to=1>(W) q = Neg(a) d = Cast<to=11>(W) y = Add(x, d) }"
        ),
        ["q", "d"],
    ),
    "the same twice": (
        text(
            f"(float[8,4] x) => (float[8,4] y) <{W}> {{ a = Transpose(W) b = Transpose(W) "
            "c = Transpose<perm=[1,0]>(W) d = Add(x, a) e = Add(d, b) y = Add(e, c) }"
        ),
        ["a", "(b)", "c"],
    ),
    "optional input left out": (
        text(
            f"(float[4,8] x) => (float[4,8] y) <{W}, float m = {{3}}> "
            '{ c = Clip(W, "", m) y = Add(x, c) }'
        ),
        ["c"],
    ),
    "random": (
        text("(float[4] x) => (float[4] y) { r = RandomUniform<shape=[4]>() y = Add(x, r) }"),
        [],
    ),
    "several outputs": (
        text(
            f"(float[2,8] x) => (float[2,8] y) <{W}> "
            "{ a, b = Split<axis=0>(W) c = Add(a, b) y = Add(x, c) }"
        ),
        ["(a)", "(b)", "c"],
    ),
    "sequence": (
        text(
            f"(float[4,8] x) => (float[4,8] y) <{W}, int64 i = {{0}}> "
            "{ s = SequenceConstruct(W, W) a = SequenceAt(s, i) y = Add(x, a) }"
        ),
        [],
    ),
    "half floats have few kernels": (
        text(
            f"(float16[8,4] x) => (float16[8,4] y) <float16[4,8] W = {{{VALUES}}}> "
            "{ t = Transpose(W) n = Neg(t) y = Add(x, n) }"
        ),
        ["t"],
    ),
    "overridable": (
        text(
            f"(float[8,4] x, float[4,8] W) => (float[8,4] y) <{W}> "
            "{ t = Transpose(W) y = Add(x, t) }"
        ),
        [],
    ),
    "listed before IR 4": (
        text(
            f"(float[8,4] x, float[4,8] W) => (float[8,4] y) <{W}> "
            "{ t = Transpose(W) y = Add(x, t) }",
            ir=3,
        ),
        ["t"],
    ),
    "shape of a weight": (
        text(
            f"(float[4,8] x) => (float[4,8] y) <{W}> "
            "{ s = Shape(W) c = ConstantOfShape(s) y = Add(x, c) }"
        ),
        ["(s)", "c"],
    ),
    "shape of a fixed input": (
        text(
            "(float[4,8] x) => (float[4,8] y) { s = Shape(x) c = ConstantOfShape(s) y = Add(x, c) }"
        ),
        ["(s)", "c"],
    ),
    "shape of a free input": (
        text(
            "(float[4,n] x) => (float[4,n] y) { s = Shape(x) c = ConstantOfShape(s) y = Add(x, c) }"
        ),
        [],
    ),
    "values of shapes": (
        text(
            "(int64[24] x, float[6,4,5] v) => (int64[24] y) "
            "<int64 o = {0}, int64 u = {1}, int64 two = {2}, int64[2] i = {0, 1}> "
            "{ s = Shape(v) q = Gather(s, i) k = ReduceProd<keepdims=0>(q) r = Range(o, k, u) "
            "e = Div(r, two) y = Add(e, x) }"
        ),
        ["(s)", "(q)", "(k)", "(r)", "e"],
    ),
    "only Gemm reads it": (
        text(f"(float[3,8] x) => (float[3,4] y) <{W}> {{ t = Transpose(W) y = Gemm(x, t) }}"),
        [],
    ),
    "Gemm and another": (
        text(
            f"(float[3,8] x) => (float[3,4] y, float[3,4] z) <{W}> "
            "{ t = Transpose(W) y = Gemm(x, t) z = MatMul(x, t) }"
        ),
        ["t"],
    ),
    "kept dequantized": (
        text(
            f"(float[3,8] x) => (float[3,4] y) <{Q}> "
            "{ d = DequantizeLinear(Q, s, z) y = MatMul(x, d) }"
        ),
        [],
    ),
    "quantized again": (
        text(
            f"(float[3,4] x) => (float[3,8] y) <{Q}> {{ d = DequantizeLinear(Q, s, z) "
            "t = Transpose(d) q = QuantizeLinear(t, s, z) e = DequantizeLinear(q, s, z) "
            "y = MatMul(x, e) }"
        ),
        ["(d)", "(t)", "q"],
    ),
    "one a branch": (
        text(
            f"{TRANSPOSED} <{W}> {{ y = If(c) <"
            "then_branch = a () => (float[3,4] p) { t = Transpose(W) p = MatMul(x, t) }, "
            "else_branch = b () => (float[3,4] q) { u = Transpose(W) q = MatMul(x, u) }> }"
        ),
        ["t", "u"],
    ),
    "folded outside, read inside": (
        text(
            f"{TRANSPOSED} <{W}> {{ t = Transpose(W) y = If(c) <"
            "then_branch = a () => (float[3,4] p) { p = Gemm(x, t) }, "
            "else_branch = b () => (float[3,4] q) { q = MatMul(x, t) }> }"
        ),
        ["t"],
    ),
    "a weight that is a branch's output": (
        text(
            f"(bool c, float[4,8] x) => (float[4,8] y) <{W}> {{ y = If(c) <"
            "then_branch = a () => (float[4,8] p) { p = Identity(W) }, "
            "else_branch = b () => (float[4,8] q) { q = Neg(W) }> }"
        ),
        ["p", "q"],
    ),
    "condition that is constant": (
        text(
            f"(float[8,4] x) => (float[8,4] y) <{W}, bool c = {{1}}> {{ y = If(c) <"
            "then_branch = a () => (float[8,4] p) { t = Transpose(W) p = Add(x, t) }, "
            "else_branch = b () => (float[8,4] q) { u = Neg(W) v = Transpose(u) q = Add(x, v) }> }"
        ),
        ["t"],
    ),
    "body of a loop": (
        text(
            f"(float[8,4] x, int64 n, bool c) => (float[8,4] y) <{W}> {{ y = Loop(n, c, x) <"
            "body = b (int64 i, bool ci, float[8,4] v) => (bool co, float[8,4] vo) "
            "{ t = Transpose(W) vo = Add(v, t) co = Identity(ci) }> }"
        ),
        ["t"],
    ),
    "each call of a function": (
        text(
            f"(float[8,4] x) => (float[8,4] y) <{W}, float[4,8] V = {{{VALUES}}}> "
            "{ a = f.turn(W, x) b = f.turn(V, a) y = f.turn(W, b) }",
            function="turn (w, x) => (o) { t = Transpose(w) o = Add(x, t) }",
        ),
        ["t", "t", "(t)"],
    ),
}
