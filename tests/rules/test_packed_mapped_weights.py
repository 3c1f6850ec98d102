from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from memdiag.ort.prepacking import fp32_panels
from tests.rules.conftest import Agrees
from tests.rules.examining import findings
from tests.rules.measuring import NEWEST, xray

RULE = "packed-mapped-weights"
WIDTH = 2048
ONE = fp32_panels(WIDTH, WIDTH)


def layers(
    folder: Path,
    count: int = 4,
    *,
    external: bool = True,
    gathered: bool = False,
    random: np.random.Generator | None = None,
) -> Path:
    """A model of products with a weight of 16 MiB each, beside its data.

    An X-ray needs `random` values; otherwise all values of a weight are the same.
    """
    info = helper.make_tensor_value_info
    nodes, constants, value = [], [], "x"
    for layer in range(count):
        weight = np.full((WIDTH, WIDTH), layer + 1, np.float32)
        if random is not None:
            weight = random.standard_normal((WIDTH, WIDTH), np.float32)
        constants.append(numpy_helper.from_array(weight, f"w{layer}"))
        nodes += [
            helper.make_node("MatMul", [value, f"w{layer}"], [f"m{layer}"]),
            helper.make_node("Sigmoid", [f"m{layer}"], [f"r{layer}"]),
        ]
        value = f"r{layer}"
    outputs = [info(value, 1, None)]
    if gathered:
        nodes.append(helper.make_node("Gather", ["w0", "i"], ["rows"]))
        outputs.append(info("rows", 1, None))
    inputs = [info("x", 1, ["n", WIDTH]), info("i", 7, ["k"])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    opset = [helper.make_opsetid("", 21)]
    path = folder / "layers.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=opset, ir_version=10),
        path,
        save_as_external_data=external,
        location="data" if external else None,
    )
    return path


def test_all_that_is_packed_is_one_finding(tmp_path: Path) -> None:
    (one,) = findings(RULE, layers(tmp_path), tmp_path)
    assert one.weights == ("w0", "w1", "w2", "w3")
    assert one.bytes == 4 * ONE
    assert sum(each.bytes for each in one.expected) == 4 * ONE
    assert one.message == (
        "4 weights (64 MiB: w0, w1, w2 and 1 more) that would stay mapped from the file are "
        "packed into private memory, for MatMul_0, MatMul_2, MatMul_4 and 1 more"
    )
    assert one.remedies[0] == "save-prepacked"


def test_less_than_64_mib_is_clean(tmp_path: Path) -> None:
    assert not findings(RULE, layers(tmp_path, 3), tmp_path)


def test_embedded_weights_are_copied_anyway(tmp_path: Path) -> None:
    assert not findings(RULE, layers(tmp_path, external=False), tmp_path)


def test_a_weight_in_two_forms_is_another_rules(tmp_path: Path) -> None:
    (one,) = findings(RULE, layers(tmp_path, 5, gathered=True), tmp_path)
    assert one.weights == ("w1", "w2", "w3", "w4")


def test_one_that_may_be_given_is_not_packed(tmp_path: Path) -> None:
    path = layers(tmp_path)
    proto = onnx.load(path, load_external_data=False)
    proto.graph.input.append(helper.make_tensor_value_info("w0", 1, [WIDTH, WIDTH]))
    onnx.save(proto, path)
    assert not findings(RULE, path, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", ["1.24.4", NEWEST])
def test_the_private_copies_are_those_predicted(
    tmp_path: Path, version: str, agrees: Agrees
) -> None:
    path = layers(tmp_path, random=np.random.default_rng(1))
    (one,) = findings(RULE, path, tmp_path, runtime=version)
    copies = xray(path, version).copies
    private = [copy for copy in copies if copy.backing.kind == "anonymous" and copy.in_use]
    assert {copy.kind for copy in private} == {"packed"}
    agrees(one, sum(copy.resident_bytes for copy in private), version)
