"""Small graphs, with what constant folding makes of them."""

from typing import Any

from onnx import ModelProto

from tests.builders import build, cases

VALUES = ",".join(map(str, range(32)))
W = f"float[4,8] W = {{{VALUES}}}"
TURN = '<domain: "f", opset_import: ["":17]> turn (w, x) => (o) { t = Transpose(w) o = Add(x, t) }'

# Each with what is folded; a result in brackets is gone again, for only other folds read it.
TABLE = """
transposed weight: t | (float[8,4] x) => (float[8,4] y) <$W> { t = Transpose(W) y = Add(x, t) }
chain: (t) (n) a
    (float[8,4] x) => (float[8,4] y) <$W> { t = Transpose(W) n = Neg(t) a = Abs(n) y = Add(x, a) }
an input in it | (float[4,8] x) => (float[8,4] y) <$W> { a = Add(x, W) y = Transpose(a) }
output of the graph: t
    (float[8,4] x) => (float[8,4] y, float[8,4] t) <$W> { t = Transpose(W) y = Add(x, t) }
identity is no copy | (float[4,8] x) => (float[4,8] y) <$W> { i = Identity(W) y = Add(x, i) }
identity that is an output: i
    (float[4,8] x) => (float[4,8] y, float[4,8] i) <$W> { i = Identity(W) y = Add(x, W) }
casts: q d
    (double[4,8] x) => (double[4,8] y, float[4,8] q) <$W>
    { a = Cast<to=1>(W) q = Neg(a) d = Cast<to=11>(W) y = Add(x, d) }
the same twice: a (b) c
    (float[8,4] x) => (float[8,4] y) <$W> { a = Transpose(W) b = Transpose(W)
    c = Transpose<perm=[1,0]>(W) d = Add(x, a) e = Add(d, b) y = Add(e, c) }
optional input left out: c
    (float[4,8] x) => (float[4,8] y) <$W, float m = {3}> { c = Clip(W, "", m) y = Add(x, c) }
random | (float[4] x) => (float[4] y) { r = RandomUniform<shape=[4]>() y = Add(x, r) }
several outputs: (a) (b) c
    (float[2,8] x) => (float[2,8] y) <$W> { a, b = Split<axis=0>(W) c = Add(a, b) y = Add(x, c) }
sequence:
    (float[4,8] x) => (float[4,8] y) <$W, int64 i = {0}>
    { s = SequenceConstruct(W, W) a = SequenceAt(s, i) y = Add(x, a) }
half floats have few kernels: t
    (float16[8,4] x) => (float16[8,4] y) <$H> { t = Transpose(W) n = Neg(t) y = Add(x, n) }
overridable | (float[8,4] x, float[4,8] W) => (float[8,4] y) <$W> { t = Transpose(W) y = Add(x, t) }
listed before IR 4: t
    (float[8,4] x, float[4,8] W) => (float[8,4] y) <$W> { t = Transpose(W) y = Add(x, t) }
shape of a weight: (s) c
    (float[4,8] x) => (float[4,8] y) <$W> { s = Shape(W) c = ConstantOfShape(s) y = Add(x, c) }
shape of a fixed input: (s) c
    (float[4,8] x) => (float[4,8] y) { s = Shape(x) c = ConstantOfShape(s) y = Add(x, c) }
shape of a free input:
    (float[4,n] x) => (float[4,n] y) { s = Shape(x) c = ConstantOfShape(s) y = Add(x, c) }
values of shapes: (s) (q) (k) (r) e
    (int64[24] x, float[6,4,5] v) => (int64[24] y)
    <int64 o = {0}, int64 u = {1}, int64 two = {2}, int64[2] i = {0, 1}>
    { s = Shape(v) q = Gather(s, i) k = ReduceProd<keepdims=0>(q) r = Range(o, k, u)
    e = Div(r, two) y = Add(e, x) }
only Gemm reads it | (float[3,8] x) => (float[3,4] y) <$W> { t = Transpose(W) y = Gemm(x, t) }
Gemm and another: t
    (float[3,8] x) => (float[3,4] y, float[3,4] z) <$W>
    { t = Transpose(W) y = Gemm(x, t) z = MatMul(x, t) }
kept dequantized:
    (float[3,8] x) => (float[3,4] y) <$Q> { d = DequantizeLinear(Q, s, z) y = MatMul(x, d) }
quantized again: (d) (t) q
    (float[3,4] x) => (float[3,8] y) <$Q> { d = DequantizeLinear(Q, s, z) t = Transpose(d)
    q = QuantizeLinear(t, s, z) e = DequantizeLinear(q, s, z) y = MatMul(x, e) }
one a branch: t u
    (bool c, float[3,8] x) => (float[3,4] y) <$W> { y = If(c) <
    then_branch = a () => (float[3,4] p) { t = Transpose(W) p = MatMul(x, t) },
    else_branch = b () => (float[3,4] q) { u = Transpose(W) q = MatMul(x, u) }> }
folded outside, read inside: t
    (bool c, float[3,8] x) => (float[3,4] y) <$W> { t = Transpose(W) y = If(c) <
    then_branch = a () => (float[3,4] p) { p = Gemm(x, t) },
    else_branch = b () => (float[3,4] q) { q = MatMul(x, t) }> }
a weight that is a branch's output: p q
    (bool c, float[4,8] x) => (float[4,8] y) <$W> { y = If(c) <
    then_branch = a () => (float[4,8] p) { p = Identity(W) },
    else_branch = b () => (float[4,8] q) { q = Neg(W) }> }
condition that is constant: t
    (float[8,4] x) => (float[8,4] y) <$W, bool c = {1}> { y = If(c) <
    then_branch = a () => (float[8,4] p) { t = Transpose(W) p = Add(x, t) },
    else_branch = b () => (float[8,4] q) { u = Neg(W) v = Transpose(u) q = Add(x, v) }> }
body of a loop: t
    (float[8,4] x, int64 n, bool c) => (float[8,4] y) <$W> { y = Loop(n, c, x) <
    body = b (int64 i, bool ci, float[8,4] v) => (bool co, float[8,4] vo)
    { t = Transpose(W) vo = Add(v, t) co = Identity(ci) }> }
each call of a function: t t (t)
    (float[8,4] x) => (float[8,4] y) <$W, $V> { a = f.turn(W, x) b = f.turn(V, a) y = f.turn(W, b) }
"""
_PARTS = {
    "W": W,
    "H": W.replace("float", "float16"),
    "V": W.replace("W", "V"),
    "Q": f"int8[8,4] Q = {{{VALUES}}}, float s = {{0.5}}, int8 z = {{0}}",
}
_OPTIONS: dict[str, dict[str, Any]] = {
    "listed before IR 4": {"ir": 3},
    "each call of a function": {"functions": TURN, "domains": {"f": 1}},
}
CASES: dict[str, tuple[ModelProto, list[str]]] = {
    name: (build(text, **_OPTIONS.get(name, {})), expected.split())
    for name, (expected, text) in cases(TABLE, **_PARTS).items()
}
