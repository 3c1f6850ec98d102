"""A decoder with past of one layer, for tests: 2 heads of 32, a vocabulary of 64, 96 positions."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HEADS, HEAD_SIZE, VOCABULARY, POSITIONS = 2, 32, 64, 96
WIDTH = HEADS * HEAD_SIZE
TOKEN_BYTES = 2 * HEADS * HEAD_SIZE * 4


def decoder(
    *,
    past: str = "past_key_values.0",
    present: str = "present.0",
    total: str = "total_sequence_length",
    past_length: str | int = "past_sequence_length",
    new_length: str | int = "sequence_length",
    extra_inputs: tuple[onnx.ValueInfoProto, ...] = (),
    cache_type: int = TensorProto.FLOAT,
    positions: int = POSITIONS,
) -> onnx.ModelProto:
    """Return the model; the names and lengths of its cache, of its mask and of its ids can be set.

    It fails if the mask has not as many tokens as the past and the ids together.
    """
    random = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array(random.standard_normal(shape).astype("f4"), name)

    def cache(name: str, length: str | int, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, ["batch", HEADS, length, HEAD_SIZE])

    def value(name: str, kind: int, *shape: str | int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    node = helper.make_node
    graph = helper.make_graph(
        [
            node("Gather", ["embedding", "input_ids"], ["embedded"]),
            node("Gather", ["table", "position_ids"], ["placed"]),
            node("Add", ["embedded", "placed"], ["hidden"]),
            node("Reshape", ["hidden", "split"], ["apart"]),
            node("Transpose", ["apart"], ["heads"], perm=[0, 2, 1, 3]),
            node("Concat", [f"{past}.key", "heads"], [f"{present}.key"], axis=2),
            node("Concat", [f"{past}.value", "heads"], [f"{present}.value"], axis=2),
            node("Transpose", [f"{present}.key"], ["keys"], perm=[0, 1, 3, 2]),
            node("MatMul", ["heads", "keys"], ["scores"]),
            node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
            node("Unsqueeze", ["mask", "axes"], ["broad_mask"]),
            node("Add", ["scores", "broad_mask"], ["masked"]),
            node("Softmax", ["masked"], ["shares"]),
            node("MatMul", ["shares", f"{present}.value"], ["mixed"]),
            node("Transpose", ["mixed"], ["back"], perm=[0, 2, 1, 3]),
            node("Reshape", ["back", "join"], ["joined"]),
            node("MatMul", ["joined", "head"], ["logits"]),
        ],
        "decoder",
        [
            value("input_ids", TensorProto.INT64, "batch", new_length),
            value("attention_mask", TensorProto.INT64, "batch", total),
            value("position_ids", TensorProto.INT64, "batch", new_length),
            cache(f"{past}.key", past_length, cache_type),
            cache(f"{past}.value", past_length, cache_type),
            *extra_inputs,
        ],
        [
            value("logits", TensorProto.FLOAT, "batch", new_length, VOCABULARY),
            cache(f"{present}.key", total),
            cache(f"{present}.value", total),
        ],
        [
            weight("embedding", VOCABULARY, WIDTH),
            weight("table", positions, WIDTH),
            weight("head", WIDTH, VOCABULARY),
            numpy_helper.from_array(np.array([0, 0, HEADS, HEAD_SIZE]), "split"),
            numpy_helper.from_array(np.array([0, 0, WIDTH]), "join"),
            numpy_helper.from_array(np.array([1, 2]), "axes"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def saved(folder: Path, model: onnx.ModelProto, name: str = "decoder.onnx") -> Path:
    """Write `model` to `folder` and return its path."""
    path = folder / name
    onnx.save(model, path)
    return path


def genai_config() -> dict[str, Any]:
    """Return the configuration of `decoder` for onnxruntime-genai."""
    return {
        "model": {
            "type": "gpt2",
            "context_length": POSITIONS,
            "vocab_size": VOCABULARY,
            "decoder": {
                "filename": "decoder.onnx",
                "head_size": HEAD_SIZE,
                "hidden_size": WIDTH,
                "num_attention_heads": HEADS,
                "num_key_value_heads": HEADS,
                "num_hidden_layers": 1,
                "inputs": {
                    "input_ids": "input_ids",
                    "attention_mask": "attention_mask",
                    "position_ids": "position_ids",
                    "past_key_names": "past_key_values.%d.key",
                    "past_value_names": "past_key_values.%d.value",
                },
                "outputs": {
                    "logits": "logits",
                    "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value",
                },
            },
        },
        "search": {"max_length": 80, "past_present_share_buffer": True},
    }
