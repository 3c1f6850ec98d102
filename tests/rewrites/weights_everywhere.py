"""A model with weights in all places where a model can have them."""

from pathlib import Path

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper, parser

from memdiag.model.model_file import open_model
from memdiag.rewrites.saving import EXTERNAL_ALIGNMENT

RNG = np.random.default_rng(0)
BIG = RNG.standard_normal((20, 30)).astype(np.float32)
SMALL = np.arange(20, dtype=np.float32)


def external(tensor: TensorProto, location: str, offset: int | None, length: int | None) -> None:
    """Let `tensor` refer to a file; what is None is not said."""
    tensor.ClearField("raw_data")
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        if value is not None:
            tensor.external_data.add(key=key, value=str(value))


def everywhere() -> ModelProto:
    """Return a model with weights in all places: each is BIG, times a number of its own."""
    model = parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 17, "local" : 1, "ai.onnx.ml" : 3]>
        g (bool c, float[2, 20] x) => (float[2, 30] y, float[2, 30] f, int64[2] l) {
            a = MatMul(x, raw)
            b = MatMul(x, typed)
            y = If (c) <
                then_branch = t () => (float[2, 30] p) { m = MatMul(x, inner) p = Add(m, a) },
                else_branch = e () => (float[2, 30] q) {
                    k = Constant() m = MatMul(x, k) q = Add(m, b) }
            >
            h = Add(x, small)
            f = local.F(h)
            keys = ArgMax <axis = 1, keepdims = 0> (f)
            l = ai.onnx.ml.LabelEncoder(keys)
        }
        <domain: "local", opset_import: ["" : 17]>
        F (x) => (y) { k = Constant() y = MatMul(x, k) }"""
    )
    graph = model.graph
    typed = helper.make_tensor("typed", TensorProto.FLOAT, BIG.shape, (2 * BIG).ravel().tolist())
    raw, small = numpy_helper.from_array(BIG, "raw"), numpy_helper.from_array(SMALL, "small")
    graph.initializer.extend([raw, small, typed])
    conditional = next(node for node in graph.node if node.op_type == "If")
    then, other = (attribute.g for attribute in conditional.attribute)
    then.initializer.append(numpy_helper.from_array(3 * BIG, "inner"))
    for node, factor in ((other.node[0], 4), (model.functions[0].node[0], 5)):
        value = node.attribute.add(name="value", type=AttributeProto.TENSOR)
        value.t.CopyFrom(numpy_helper.from_array(factor * BIG))
    for name in ("keys_int64s", "values_int64s"):
        numbers = list(range(30)) if name.startswith("k") else list(range(100, 130))
        graph.node[-1].attribute.append(helper.make_attribute(name, numbers))
    return model


def contents(path: Path) -> list[tuple[str, str, bytes]]:
    """Return graph, name and bytes of all weights."""
    with open_model(path) as file:
        return [(one.graph, one.name, bytes(file.raw_bytes(one))) for one in file.weights]


def written(model: ModelProto, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "model.onnx"
    onnx.save(model, path)
    return path


def moved(model: ModelProto, folder: Path, location: str = "model.data") -> Path:
    """Write `model` with its large weights in external data, two of them sharing a place."""
    folder.mkdir(exist_ok=True)
    data = folder / location
    data.parent.mkdir(exist_ok=True)
    data.write_bytes(b"\0" * EXTERNAL_ALIGNMENT + BIG.tobytes())
    for tensor in model.graph.initializer:
        if tensor.name in ("raw", "typed"):
            external(tensor, location, EXTERNAL_ALIGNMENT, BIG.nbytes)
    return written(model, folder)
