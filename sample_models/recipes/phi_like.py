"""A decoder of a language model: int4 products, one table for embedding and output, RMS norms."""

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from sample_models.graph_builder import GraphBuilder
from sample_models.quantized import QDQ_OPSET, Int4Matrix
from sample_models.weights import FLOAT_BYTES, RandomWeight, floats

NAME = "phi_like"
SUMMARY = "a decoder with int4 weights and a tied fp32 embedding, which is folded and packed"

LAYERS = 8
HEAD = 64
"""The width of a head of attention; the model's is a multiple of it."""

INNER = 5 / 2
"""The feed-forward layers' width, in widths of the model."""

_BYTES_PER_SQUARE = 120
"""About what the model takes for each number of its width squared, half of it in the embedding."""

_EPSILON = 1e-5
_MASKED = -1e9


def build(megabytes: float, path: Path, external: bool) -> None:
    """Write the model of `megabytes`: eight layers, and a vocabulary that fills the rest.

    Its input is a whole prompt: attention is causal, without past keys and values. Positions are
    not encoded.
    """
    # The least that the narrowest stack takes is asked for before there is a width at all.
    floats(megabytes, per=HEAD, beside=_nbytes(_stack(HEAD)))
    width = HEAD * max(1, round((megabytes * 1e6 / _BYTES_PER_SQUARE) ** 0.5 / HEAD))
    stack = _stack(width)
    vocabulary = floats(megabytes, per=width, beside=_nbytes(stack))
    builder = GraphBuilder()
    table = builder.weight(
        RandomWeight(
            name="model.embedding.weight", shape=(vocabulary, width), seed=LAYERS, scale=1.0
        )
    )
    _add_constants(builder, width)
    value = builder.node("Gather", "embed/Gather", table, "ids")
    for layer in stack:
        value = layer.add_to(builder, value)
    value = _norm(builder, "final", value, width)
    turned = builder.node("Transpose", "lm_head/Transpose", table, perm=[1, 0])
    builder.node("MatMul", "lm_head/MatMul", value, turned)
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "tokens"])
    logits = builder.result("logits", "batch", "tokens", vocabulary)
    builder.write(NAME, [ids], [logits], path, external, opset=QDQ_OPSET)


class _Layer:
    """A layer of the decoder: attention and a gated feed-forward part, each with norm and
    shortcut."""

    def __init__(self, name: str, width: int, number: int) -> None:
        inner = round(INNER * width)
        shapes = {
            "query": (width, width),
            "key": (width, width),
            "value": (width, width),
            "attended": (width, width),
            "gate": (width, inner),
            "up": (width, inner),
            "down": (inner, width),
        }
        self._name = name
        self._width = width
        self._matrices = {
            part: Int4Matrix(
                name=f"{name}.{part}",
                depth=depth,
                columns=columns,
                seed=len(shapes) * number + index,
            )
            for index, (part, (depth, columns)) in enumerate(shapes.items())
        }

    @property
    def nbytes(self) -> int:
        """The bytes of the layer's weights, including both norms."""
        matrices = sum(matrix.nbytes for matrix in self._matrices.values())
        return matrices + 2 * self._width * FLOAT_BYTES

    def add_to(self, builder: GraphBuilder, value: str) -> str:
        """Add the layer and return the name of its output."""
        name = self._name
        normed = _norm(builder, f"{name}.attention", value, self._width)
        attended = self._attention(builder, normed)
        value = builder.node("Add", f"{name}/attention/Add", value, attended)
        normed = _norm(builder, f"{name}.feed_forward", value, self._width)
        return builder.node("Add", f"{name}/Add", value, self._feed_forward(builder, normed))

    def _attention(self, builder: GraphBuilder, value: str) -> str:
        name = f"{self._name}/attention"
        heads = {}
        for part, order in (
            ("query", [0, 2, 1, 3]),
            ("key", [0, 2, 3, 1]),
            ("value", [0, 2, 1, 3]),
        ):
            product = self._matrices[part].add_qdq(builder, value)
            split = builder.node("Reshape", f"{name}/{part}/Reshape", product, "heads.shape")
            heads[part] = builder.node("Transpose", f"{name}/{part}/Transpose", split, perm=order)
        scores = builder.node("MatMul", f"{name}/scores/MatMul", heads["query"], heads["key"])
        scores = builder.node("Mul", f"{name}/scores/Mul", scores, "heads.scale")
        scores = builder.node("Add", f"{name}/scores/Add", scores, "mask/Trilu")
        shares = builder.node("Softmax", f"{name}/Softmax", scores, axis=-1)
        mixed = builder.node("MatMul", f"{name}/MatMul", shares, heads["value"])
        mixed = builder.node("Transpose", f"{name}/Transpose", mixed, perm=[0, 2, 1, 3])
        joined = builder.node("Reshape", f"{name}/Reshape", mixed, "model.shape")
        return self._matrices["attended"].add_qdq(builder, joined)

    def _feed_forward(self, builder: GraphBuilder, value: str) -> str:
        name = f"{self._name}/feed_forward"
        gate = self._matrices["gate"].add_qdq(builder, value)
        up = self._matrices["up"].add_qdq(builder, value)
        opened = builder.node("Sigmoid", f"{name}/Sigmoid", gate)
        opened = builder.node("Mul", f"{name}/gate/Mul", gate, opened)
        product = builder.node("Mul", f"{name}/Mul", opened, up)
        return self._matrices["down"].add_qdq(builder, product)


def _stack(width: int) -> list[_Layer]:
    return [_Layer(f"layer.{number}", width, number) for number in range(LAYERS)]


def _nbytes(stack: list[_Layer]) -> int:
    return sum(layer.nbytes for layer in stack)


def _add_constants(builder: GraphBuilder, width: int) -> None:
    """Add the constants of all layers: shapes, small numbers, and the causal mask of the prompt."""
    builder.constant("heads.shape", np.array([0, 0, width // HEAD, HEAD]))
    builder.constant("heads.scale", np.array(HEAD**-0.5, np.float32))
    builder.constant("model.shape", np.array([0, 0, width]))
    builder.constant("norm.two", np.array(2, np.float32))
    builder.constant("norm.axes", np.array([-1]))
    builder.constant("norm.epsilon", np.array(_EPSILON, np.float32))
    one = builder.constant("mask.one", np.array(1))
    tokens = builder.node("Shape", "mask/Shape", "ids", start=1, end=2)
    square = builder.node("Concat", "mask/Concat", tokens, tokens, axis=0)
    masked = helper.make_tensor("masked", TensorProto.FLOAT, [1], [_MASKED])
    full = builder.node("ConstantOfShape", "mask/ConstantOfShape", square, value=masked)
    builder.node("Trilu", "mask/Trilu", full, one, upper=1)


def _norm(builder: GraphBuilder, name: str, value: str, width: int) -> str:
    """Add ``value / sqrt(mean(value ** 2) + epsilon) * weight`` (Zhang and Sennrich 2019)."""
    weight = builder.constant(f"{name}.norm.weight", np.ones(width, np.float32))
    squares = builder.node("Pow", f"{name}/norm/Pow", value, "norm.two")
    mean = builder.node("ReduceMean", f"{name}/norm/ReduceMean", squares, "norm.axes", keepdims=1)
    mean = builder.node("Add", f"{name}/norm/Add", mean, "norm.epsilon")
    root = builder.node("Sqrt", f"{name}/norm/Sqrt", mean)
    normed = builder.node("Div", f"{name}/norm/Div", value, root)
    return builder.node("Mul", f"{name}/norm/Mul", normed, weight)
