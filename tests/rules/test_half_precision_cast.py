from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.model_text import declared, random, tensor, text_model, with_weights
from tests.rules.building import overridable
from tests.rules.conftest import Agrees
from tests.rules.examining import findings, found
from tests.rules.measuring import NEWEST, xray

RULE = "half-precision-cast"
WIDTH = 1024
STORED = WIDTH * WIDTH * 2
FILTERS = (256, 256, 3, 3)


def halves(
    operator: str = "MatMul",
    shape: tuple[int, ...] = (WIDTH, WIDTH),
    x: str = f"n, {WIDTH}",
    *,
    layers: int = 1,
    gathered: bool = False,
    kind: str = "float16",
    biases: tuple[str, ...] = (),
    more: str = "",
) -> onnx.ModelProto:
    """Layers that read an fp16 weight each, with a plain operator between them."""
    nodes = [more] + [
        f"m{n} = {operator}({f'r{n - 1}' if n else 'x'}, w{n}{f', {biases[n]}' if biases else ''})"
        f" r{n} = Sigmoid(m{n})"
        for n in range(layers)
    ]
    outputs = f"{kind}[] r{layers - 1}" + (f", {kind}[] rows" if gathered else "")
    nodes += ["rows = Gather(w0, i)"] if gathered else []
    dtype = np.float16 if kind == "float16" else np.float32
    weights = {f"w{n}": (random(shape, n) * 0.01).astype(dtype) for n in range(layers)}
    inputs = f"{kind}[{x}] x" + (", int64[k] i" if gathered else "")
    return text_model(
        f"g ({inputs}) => ({outputs}) <{declared(**weights)}> {{ {' '.join(nodes)} }}",
        10,
        21,
        **weights,
    )


def test_weights_of_products_are_packed_in_fp32(tmp_path: Path) -> None:
    weights = ("w0", "w1", "w2")
    copies = [("packed", 1, 2 * STORED)] * 3
    # An fp32 model packs them, too.
    fields = {"weights": weights, "bytes": 0, "copies": copies, "phase": "optimize"}
    found(RULE, halves(layers=3), tmp_path, **fields)


@pytest.mark.parametrize(
    ("model", "nbytes", "kind", "remedies"),
    [
        (halves(), 0, "packed", ("model-to-fp32", "fp16-to-fp32", "save-prepacked")),
        (halves(gathered=True), STORED, None, None),
        (halves("Add", x="1024, 1024"), STORED, "cast", None),
        (
            halves("MatMul", (4, 512, 1024), "n, 512"),
            2 * STORED,
            "cast",
            ("model-to-fp32", "fp16-to-fp32"),
        ),
        (halves("Gemm"), 0, "packed", None),
        (halves("Conv", FILTERS, "n, 256, 8, 8"), 0, "reordered", None),
        (halves("ConvTranspose", FILTERS, "n, 256, 8, 8"), 0, "transposed", None),
    ],
    ids=["product", "gathered", "Add", "of matrices", "Gemm", "Conv", "ConvTranspose"],
)
def test_the_kind_of_copy_is_the_kernels(
    tmp_path: Path,
    model: onnx.ModelProto,
    nbytes: int,
    kind: str | None,
    remedies: tuple[str, ...] | None,
) -> None:
    finding = found(RULE, model, tmp_path, bytes=nbytes)
    assert kind in (None, *(copies.kind for copies in finding.expected))
    assert remedies in (None, finding.remedies)
    assert ("save-prepacked" in finding.detail) == ("save-prepacked" in finding.remedies)


@pytest.mark.parametrize(
    ("biases", "more", "kind"),
    [
        (("b0", "b1"), "", "reordered"),
        (("b0", "b0"), "", "cast"),
        (("b0", "b2"), "b2 = Identity(b0)", "cast"),
    ],
    ids=["own", "shared", "shared under another name"],
)
def test_a_filter_whose_bias_is_cast_in_each_run_is_not_reordered(
    tmp_path: Path, biases: tuple[str, ...], more: str, kind: str
) -> None:
    model = halves("Conv", FILTERS, "n, 256, 64, 64", layers=2, biases=biases, more=more)
    for n in range(2):
        model.graph.initializer.append(tensor(np.full(256, 1 + n, np.float16), f"b{n}"))
    finding = found(RULE, model, tmp_path)
    assert {copies.kind for copies in finding.expected} == {kind}


def test_a_weight_with_two_readers_is_cast_in_each_run(tmp_path: Path) -> None:
    model = halves(layers=2)
    model.graph.node[2].input[1] = "w0"
    del model.graph.initializer[1]
    finding = found(RULE, model, tmp_path, bytes=2 * STORED, expected=())
    assert "is cast to fp32 (4.0 MiB) at each run" in finding.message


def only_gathered() -> onnx.ModelProto:
    model = halves(gathered=True)
    del model.graph.node[:2], model.graph.input[0], model.graph.output[0]
    return model


def of_another_domain() -> onnx.ModelProto:
    model = halves()
    model.graph.node[0].domain = "custom"
    model.opset_import.append(helper.make_opsetid("custom", 1))
    return model


RUN = {"n": 1, "height": 256, "width": 512}


def network(body: str, opset: int = 17, kind: str = "float16") -> onnx.ModelProto:
    """A network of images, with two filters and a slope for each of 16 channels."""
    dtype = np.float16 if kind == "float16" else np.float32
    filters = np.full((16, 16, 3, 3), 0.01, dtype)
    text = f"g ({kind}[n, 16, height, width] x) => ({kind}[n, 16, height, width] y) {{ {body} }}"
    slope = np.full((16, 1, 1), 0.25, dtype)
    return with_weights(text, 9, opset, f=filters, e=filters, s=slope)


CONV = "Conv <pads=[1, 1, 1, 1]>"
RECTIFIED = f"a = {CONV} (x, f) b = PRelu (a, s) y = {CONV} (b, e)"
MOVED = (
    f"a = {CONV} (x, f) k = Constant <value_ints=[0, 16, -1]> () b = Reshape (a, k) "
    "c = Transpose <perm=[0, 2, 1]> (b) q = Softmax <axis=-1> (c) "
    "t = Transpose <perm=[0, 2, 1]> (q) h = Shape (a) g = Reshape (t, h) y = Sigmoid (g)"
)
EXPLICIT_CASTS = (
    "a = Cast <to=1> (x) b = Sigmoid (a) c = Cast <to=10> (b) d = Cast <to=1> (c) "
    "e = Erf (d) y = Cast <to=10> (e)"
)


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        (RECTIFIED, "PRelu (1 node) becomes Less, Mul, Where"),
        (MOVED, "Softmax (1 node) becomes ReduceMax, Sub, Exp, ReduceSum, Div, and"),
    ],
)
def test_a_run_with_more_than_in_fp32_is_found(tmp_path: Path, body: str, cause: str) -> None:
    fields = {"remedies": ("model-to-fp32",), "phase": "first_run"}
    finding = found(RULE, network(body), tmp_path, sizes=RUN, **fields)
    assert cause in finding.message
    assert "at n=1, height=256, width=512: " in finding.message
    assert finding.bytes >= 8 << 20
    assert finding.run_bytes > finding.bytes / 2


def test_assumed_sizes_claim_no_bytes(tmp_path: Path) -> None:
    finding = found(RULE, network(RECTIFIED), tmp_path, bytes=0, peak_bytes=0)
    assert "assumed sizes" in finding.message


NEAR_MISSES: dict[str, tuple[onnx.ModelProto, dict[str, int]]] = {
    "only gathered": (only_gathered(), {}),
    "fp32 weights": (halves(kind="float"), {}),
    "little": (halves("MatMul", (512, 512), "n, 512"), {}),
    "another domain": (of_another_domain(), {}),
    "overridable": (overridable(halves()), {}),
    "fp32 run": (network(RECTIFIED, kind="float"), RUN),
    "a later operator set": (network(RECTIFIED, opset=20), RUN),  # PRelu is not replaced
    "Relu": (network(f"a = {CONV} (x, f) b = Relu (a) y = {CONV} (b, e)"), RUN),
    "interface only": (network("a = Cast <to=1> (x) b = Sigmoid (a) y = Cast <to=10> (b)"), RUN),
    "casts of the model": (network(EXPLICIT_CASTS), RUN),
    "a small run": (network(RECTIFIED), {"n": 1, "height": 16, "width": 16}),
}


@pytest.mark.parametrize("case", NEAR_MISSES)
def test_near_misses(tmp_path: Path, case: str) -> None:
    model, sizes = NEAR_MISSES[case]
    assert not findings(RULE, model, tmp_path, sizes=sizes or None)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("version", ["1.24.4", NEWEST])
def test_the_copies_are_those_predicted(
    tmp_path: Path, version: str, external: bool, agrees: Agrees
) -> None:
    path = tmp_path / "half.onnx"
    onnx.save(halves(layers=3, gathered=True), path, save_as_external_data=external)
    finding = found(RULE, path, tmp_path, runtime=version)
    attribution = xray(path, version)
    copies: list[Any] = [copy for copy in attribution.copies if copy.in_use is not False]
    for expected in finding.expected:
        weights = {*expected.weights}
        seen = [one for one in copies if one.kind == expected.kind and weights & {*one.weights}]
        assert len(seen) == expected.count
        agrees(finding, sum(copy.bytes for copy in seen), version, predicted=expected.bytes)
    originals = [copy.weights for copy in copies if copy.kind == "original" and copy.in_use]
    assert originals == [("w0",)]
