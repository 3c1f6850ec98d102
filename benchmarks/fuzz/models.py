"""Small valid models of many kinds, which the mutations start from.

They are the sample models at their smallest, and models written as ONNX text for what these do not
have: control flow, functions, quantized and packed types, sparse tensors, sequences, maps, strings
and trees.
"""

import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper, parser

from memdiag.errors import UsageError
from memdiag.model.tensor_types import ELEMENT_TYPES
from sample_models import load_recipes

DATA_FILE = "w.bin"
"""External data that every model finds in its folder, of `DATA_BYTES`."""

DATA_BYTES = 16384

_ML = '"ai.onnx.ml" : 3'
_MS = '"com.microsoft" : 1'

# Name: other opsets, then graph and functions. Weights called w…, of the sizes in `_WEIGHTS`, are
# added as initializers where they are mentioned.
_TEXTS: dict[str, tuple[str, str]] = {
    "branches": (
        "",
        """g (bool c, float[N, 16] x) => (float[N, 16] y) {
            y = If (c) <
                then_branch = t () => (float[N, 16] p) {
                    v = Transpose <perm = [1, 0]> (w0) m = MatMul(x, v)
                    p = If (c) < then_branch = tt () => (float[N, 16] r) { r = MatMul(m, w1) },
                                 else_branch = te () => (float[N, 16] s) { s = Relu(m) } >
                },
                else_branch = e () => (float[N, 16] q) { m = MatMul(x, w0) q = Add(m, w2) } >
        }""",
    ),
    "loops": (
        "",
        """g (int64 n, bool c, float[N, 16] x) => (float[N, 16] y, float[K, N, 16] z) {
            y, z = Loop (n, c, x) < body = b (int64 i, bool d, float[N, 16] a)
                => (bool e, float[N, 16] o, float[N, 16] k) {
                    e = Identity(d) m = MatMul(a, w0) o = Add(m, w2) k = Mul(o, w2) } >
        }""",
    ),
    "scans": (
        "",
        """g (float[16] s, float[T, 16] x) => (float[16] last, float[T, 16] y) {
            last, y = Scan (s, x) < num_scan_inputs = 1, body = b (float[16] a, float[16] v)
                => (float[16] o, float[16] k) { m = Add(a, v) o = Mul(m, w2) k = Identity(o) } >
        }""",
    ),
    "functions": (
        ', "local" : 1',
        """g (float[N, 16] x) => (float[N, 16] y) {
            a = local.Twice(x, w0) b = local.Dense <alpha : float = 2.0> (a, w1)
            y = local.Twice(b, w0)
        }
        <domain : "local", opset_import : ["" : 17, "local" : 1]>
        Twice (x, w) => (y) { a = local.Dense(x, w) y = local.Dense(a, w) }
        <domain : "local", opset_import : ["" : 17]>
        Dense <alpha : float = 1.0> (x, w) => (y) {
            k = Constant <value = float[16] {1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8}> ()
            m = MatMul(x, w) y = Add(m, k)
        }""",
    ),
    "quantized": (
        f", {_MS}",
        """g (float[N, 16] x) => (float[N, 16] y, int32[N, 16] i, float[N, 16] d) {
            q, s, z = DynamicQuantizeLinear(x)
            i = MatMulInteger(q, wi8, z)
            h = QLinearMatMul(q, s, z, wu8, wscale, wzero, wscale, wzero)
            y = DequantizeLinear(h, wscale, wzero)
            dq = DequantizeLinear(wi8, wscale)
            t = Transpose <perm = [1, 0]> (dq)
            e = MatMul(x, t)
            f = com.microsoft.MatMulIntegerToFloat(q, wi8, s, wscale, z)
            d = Add(e, f)
        }""",
    ),
    "contrib": (
        f", {_MS}",
        """g (float[N, 16] x, float[B, S, 16] t)
            => (float[N, 16] y, float[B, S, 16] n, float[N, 8] k) {
            a = com.microsoft.FusedMatMul <alpha = 0.5, transB = 1> (x, w0)
            y = com.microsoft.Gelu(a)
            n, m, v = com.microsoft.SkipLayerNormalization <epsilon = 0.00001> (t, t, w2, w2)
            k = com.microsoft.MatMulNBits <K = 16, N = 8, bits = 4, block_size = 16>
                (x, wblocks, wscales)
            f = com.microsoft.BiasGelu(x, w2)
        }""",
    ),
    "shapes": (
        "",
        """g (float[N, 4, 4] x, int64[K] ids) => (float[N, M] y, float[A, B] z, float[C, D] t) {
            s = Shape(x) zero = Constant <value_int = 0> () n = Gather(s, zero)
            axes = Constant <value_ints = [0]> () u = Unsqueeze(n, axes)
            rest = Constant <value_ints = [-1]> () to = Concat <axis = 0> (u, rest)
            y = Reshape(x, to)
            sizes = Constant <value_ints = [64, 64]> () ones = ConstantOfShape(sizes)
            to2 = Constant <value_ints = [16, 16]> () reps = Constant <value_ints = [2, 2]> ()
            e = Expand(w2, to2) tiled = Tile(e, reps) z = Add(tiled, tiled)
            start = Constant <value_int = 0> () stop = Constant <value_int = 256> ()
            step = Constant <value_int = 1> () r = Range(start, stop, step)
            pads = Constant <value_ints = [1, 1, 1, 1]> ()
            f = Cast <to = 1> (r) g = Reshape(f, to2) p = Pad(g, pads)
            a, b = Split <axis = 0> (g) c = Concat <axis = 1> (a, b)
            big = Greater(g, g) w = Where(big, g, g) i = Einsum <equation = "ij,jk->ik"> (g, w)
            sl = Slice(i, axes, reps, axes) sq = Squeeze(u, axes) t = MatMul(g, w)
            h = Gather(w0, ids) nz = NonZero(w0) top, at = TopK(f, u) o = OneHot(at, n, reps)
        }""",
    ),
    "networks": (
        "",
        """g (float[N, 4, H, W] x, float[S, N, 16] q)
            => (float[N, 4, A, B] y, float[S, 1, N, 4] z) {
            c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, wconv)
            n = BatchNormalization(c, wbn, wbn, wbn, wbn) r = Relu(n)
            p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
            y = ConvTranspose(p, wconv)
            z, h, l = LSTM <hidden_size = 4> (q, wlstm, wrec)
            g2 = LayerNormalization(q, w2, w2) s = Softmax(g2)
            e = Gemm <transB = 1, alpha = 0.5> (w0, w1, w2) d, mask = Dropout(e)
        }""",
    ),
    "wasteful": (
        "",
        """g (float[N, 16] x, int64[K] ids) => (float[N, 16] y, float[K, 16] e, float[N, 16] h) {
            t = Transpose <perm = [1, 0]> (w0) a = MatMul(x, t) b = MatMul(a, w0)
            e = Gather(w0, ids)
            c = Cast <to = 1> (whalf) d = MatMul(b, c) f = Gemm <transB = 1> (d, w1)
            i = MatMul(f, wsame1) j = MatMul(i, wsame2) y = MatMul(j, wdenormal)
            k = Constant <value_floats = [1.0, 2.0, 3.0]> () l = Identity(w0) h = MatMul(x, l)
        }""",
    ),
    "sequences": (
        "",
        """g (seq(float[N]) s, optional(float[4]) o, float[N, 16] x)
            => (seq(float[N]) m, float[A] y, float[4] v) {
            m = SequenceMap (s) < body = b (float[N] i) => (float[N] j) { j = Relu(i) } >
            p = SplitToSequence <axis = 1> (x) zero = Constant <value_int = 0> ()
            q = SequenceInsert(p, x) y = ConcatFromSequence <axis = 0> (m)
            u = SequenceAt(q, zero) l = SequenceLength(q) v = OptionalGetElement(o)
            z = SequenceConstruct(w0, w1, w0) k = SequenceErase(z, zero)
        }""",
    ),
    "strings": (
        f", {_ML}",
        """g (string[N] x, int64[N] i) => (string[N] y, float[N, M] t, int64[N] k, string[N] o) {
            y = StringNormalizer <case_change_action = "LOWER", stopwords = ["a", "b"]> (x)
            t = TfIdfVectorizer <mode = "TF", min_gram_length = 1, max_gram_length = 1,
                max_skip_count = 0, ngram_counts = [0], ngram_indexes = [0, 1],
                pool_strings = ["a", "b"]> (x)
            k = ai.onnx.ml.LabelEncoder <keys_strings = ["a", "b"], values_int64s = [1, 2]> (x)
            m = Constant <value_strings = ["p", "q"]> () o = Gather(wtext, i)
        }""",
    ),
    "maps": (
        f", {_ML}",
        """g (map(string, float) d, float[N, 4] x) => (float[1, 2] v, seq(map(int64, float)) y) {
            v = ai.onnx.ml.DictVectorizer <string_vocabulary = ["a", "b"]> (d)
            a = ai.onnx.ml.Scaler <offset = [1.0], scale = [2.0]> (x)
            b, c = ai.onnx.ml.LinearClassifier <coefficients = [1.0, 2.0, 3.0, 4.0],
                classlabels_ints = [0, 1], intercepts = [0.0]> (x)
            y = ai.onnx.ml.ZipMap <classlabels_int64s = [0, 1, 2, 3]> (a)
        }""",
    ),
    "trees": (
        f", {_ML}",
        """g (float[N, 4] x) => (float[N, 1] y, int64[N] l, float[N, 2] p) {
            y = ai.onnx.ml.TreeEnsembleRegressor <n_targets = 1, nodes_treeids = [0, 0, 0],
                nodes_nodeids = [0, 1, 2], nodes_featureids = [0, 0, 0],
                nodes_modes = ["BRANCH_LEQ", "LEAF", "LEAF"], nodes_values = [0.5, 0.0, 0.0],
                nodes_truenodeids = [1, 0, 0], nodes_falsenodeids = [2, 0, 0],
                target_treeids = [0, 0], target_nodeids = [1, 2], target_ids = [0, 0],
                target_weights = [1.0, 2.0]> (x)
            l, p = ai.onnx.ml.SVMClassifier <classlabels_ints = [0, 1], coefficients = [1.0, 2.0],
                support_vectors = [1.0, 2.0, 3.0, 4.0], vectors_per_class = [1, 0],
                rho = [0.5], kernel_params = [0.1, 0.0, 3.0]> (x)
        }""",
    ),
    "empty": ("", "g () => () { }"),
}


def base_models(folder: Path) -> dict[str, ModelProto]:
    """Return the models by name; write the data files that they refer to into `folder`."""
    data = np.arange(DATA_BYTES // 4, dtype=np.float32).tobytes()
    for name, size in ((DATA_FILE, DATA_BYTES), ("short.bin", 100), ("empty.bin", 0)):
        (folder / name).write_bytes(data[:size])
    (folder / "folder").mkdir()
    (folder / "link").symlink_to(DATA_FILE)
    os.mkfifo(folder / "pipe")
    models = {name: _parsed(*text) for name, text in _TEXTS.items()}
    models |= {"sparse": _sparse(), "types": _types(), "external": _external()}
    for name, recipe in load_recipes().items():
        for external in (True,) if name == "phi_like" else (False, True):  # at least 250 kB
            path = folder / f"{name}.onnx"
            for megabytes in (0.02, 0.25, 1.0):  # the smallest that the sample can be
                with suppress(UsageError):
                    recipe.build(megabytes, path, external)
                    break
            models[f"{name}{' external' * external}"] = onnx.load(path, load_external_data=False)
            path.unlink()
    return models


def _parsed(opsets: str, text: str) -> ModelProto:
    model = parser.parse_model(f'<ir_version : 10, opset_import : ["" : 17{opsets}]> {text}')
    mentioned = {name for node in _nodes(model.graph) for name in node.input}
    made = {name for node in model.graph.node for name in node.output}
    weights = {name: array for name, array in _weights().items() if name in mentioned - made}
    model.graph.initializer.extend(numpy_helper.from_array(*pair[::-1]) for pair in weights.items())
    model.metadata_props.add(key="author", value="nobody")
    return model


def _nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    inner = [one.g for node in graph.node for one in node.attribute if one.HasField("g")]
    return [*graph.node, *(node for each in inner for node in _nodes(each))]


def _weights() -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    random = np.random.default_rng(0)

    def floats(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return random.standard_normal(shape).astype(np.float32)

    same = floats(16, 16)
    return {
        "w0": floats(16, 16),
        "w1": floats(16, 16),
        "w2": floats(16),
        "wi8": random.integers(-8, 8, (16, 16)).astype(np.int8),
        "wu8": random.integers(0, 8, (16, 16)).astype(np.uint8),
        "wscale": np.array(0.5, np.float32),
        "wzero": np.array(0, np.uint8),
        "wblocks": random.integers(0, 255, (8, 1, 8)).astype(np.uint8),
        "wscales": floats(8),
        "wconv": floats(4, 4, 3, 3),
        "wbn": np.abs(floats(4)),
        "wlstm": floats(1, 16, 16),
        "wrec": floats(1, 16, 4),
        "whalf": floats(16, 16).astype(np.float16),
        "wsame1": same,
        "wsame2": same,
        "wdenormal": np.full((16, 16), 1e-40, np.float32),
        "wtext": np.array([b"one", b"two"], object),
    }


def _sparse() -> ModelProto:
    """Return a model with sparse tensors, as initializer and as attribute."""
    model = _parsed(
        "", "g (float[N, 16] x) => (float[N, 16] y) { a = MatMul(x, s) y = MatMul(a, t) }"
    )
    values, flat = np.ones(4, np.float32), np.array([0, 5, 17, 200])
    tensor = model.graph.sparse_initializer.add(dims=[16, 16])
    tensor.values.CopyFrom(numpy_helper.from_array(values, "s"))
    tensor.indices.CopyFrom(numpy_helper.from_array(flat))
    node = model.graph.node.add(op_type="Constant", output=["t"])
    attribute = node.attribute.add(name="sparse_value", type=AttributeProto.SPARSE_TENSOR)
    attribute.sparse_tensor.dims.extend([16, 16])
    attribute.sparse_tensor.values.CopyFrom(numpy_helper.from_array(values))
    pairs = np.stack(np.unravel_index(flat, (16, 16)), 1).astype(np.int64)
    attribute.sparse_tensor.indices.CopyFrom(numpy_helper.from_array(pairs))
    return model


def _types() -> ModelProto:
    """Return a model with a weight of every element type, raw or as numbers, and other fields."""
    model = _parsed("", "g (float[N, 16] x) => (float[N, 16] y) { y = MatMul(x, w0) }")
    graph = model.graph
    for data_type in ELEMENT_TYPES:
        if data_type != TensorProto.STRING:
            name = f"t{data_type}"
            raw = graph.initializer.add(name=name, data_type=data_type, dims=[64])
            raw.raw_data = bytes(ELEMENT_TYPES[data_type].nbytes((64,)))
            graph.node.add(op_type="Cast", input=[name], output=[f"c{data_type}"]).attribute.append(
                helper.make_attribute("to", 1)
            )
    for name, data_type, field in (
        ("f", TensorProto.FLOAT, "float_data"),
        ("h", TensorProto.FLOAT16, "int32_data"),
        ("l", TensorProto.INT64, "int64_data"),
        ("d", TensorProto.DOUBLE, "double_data"),
        ("u", TensorProto.UINT64, "uint64_data"),
        ("b", TensorProto.BOOL, "int32_data"),
        ("i4", TensorProto.INT4, "int32_data"),
        ("z", TensorProto.COMPLEX64, "float_data"),
    ):
        tensor = graph.initializer.add(name=f"typed_{name}", data_type=data_type, dims=[32])
        count = {"i4": 16, "z": 64}.get(name, 32)
        getattr(tensor, field).extend([1] * count)
        graph.node.add(op_type="Identity", input=[tensor.name], output=[f"typed_{name}_out"])
    annotation = graph.quantization_annotation.add(tensor_name="w0")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="t1")
    graph.metadata_props.add(key="k", value="v")
    model.training_info.add().algorithm.CopyFrom(graph)
    return model


def _external() -> ModelProto:
    """Return a model with weights at several places of one external file."""
    model = _parsed(
        "", "g (float[N, 16] x) => (float[N, 16] y) { a = MatMul(x, e0) y = MatMul(a, e1) }"
    )
    for index in range(4):
        tensor = model.graph.initializer.add(name=f"e{index}", data_type=TensorProto.FLOAT)
        tensor.dims.extend([16, 16])
        tensor.data_location = TensorProto.EXTERNAL
        entries = {"location": DATA_FILE, "offset": index * 4096, "length": 1024}
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=str(value))
    return model
