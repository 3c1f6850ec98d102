"""What the rules on equal weights predict is what the X-ray and the memory of a run say."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from memdiag.model.model_file import open_model
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.runtime import Runtime
from memdiag.records.finding import Finding
from memdiag.records.profile import Profile
from memdiag.rules.catalog import (
    identical_weights,
    stored_transpose,
    subgraph_weights,
    weight_in_branches,
)
from memdiag.rules.match_measurement import match_attribution
from tests.rules.conftest import Agrees
from tests.rules.measuring import NEWEST, profile

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROWS, COLUMNS = 1024, 2048
SIZE = ROWS * COLUMNS * 4
VALUES = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
RULES = (identical_weights, stored_transpose, subgraph_weights, weight_in_branches)


def _node(operator: str, inputs: str, output: str, **attributes: Any) -> NodeProto:
    return helper.make_node(operator, inputs.split(), [output], name=f"{output}/op", **attributes)


def _model(nodes: list[NodeProto], weights: dict[str, NDArray[Any]], outputs: str) -> ModelProto:
    used = {name for node in nodes for name in node.input} | {"x"}
    wide = helper.make_tensor_value_info("v", TensorProto.FLOAT, [ROWS, COLUMNS])
    ids = helper.make_tensor_value_info("i", TensorProto.INT64, [4])
    flag = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    graph = helper.make_graph(
        nodes,
        "main",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, ROWS]),
            *(value for value in (wide, ids, flag) if value.name in used),
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs.split()],
        [numpy_helper.from_array(values, name) for name, values in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _branches(*weights: str) -> ModelProto:
    """Return an If with one of `weights` in each branch, or none in the other one."""
    graphs = []
    for number in range(2):
        name = weights[number] if number < len(weights) else None
        node = _node("MatMul", f"x {name}", f"o{number}") if name else _node("Relu", "x", "o1")
        output = helper.make_tensor_value_info(f"o{number}", TensorProto.FLOAT, None)
        owned = [numpy_helper.from_array(VALUES, name)] if name else []
        graphs.append(helper.make_graph([node], f"b{number}", [], [output], owned))
    choice = _node("If", "c", "y", then_branch=graphs[0], else_branch=graphs[1])
    return _model([choice], {}, "y")


TURNED = np.ascontiguousarray(VALUES.T)
MODELS: dict[str, Callable[[], ModelProto]] = {
    "folded": lambda: _model(
        [
            _node("Transpose", "a", "at", perm=[1, 0]),
            _node("Transpose", "b", "bt", perm=[1, 0]),
            _node("MatMul", "at x", "p"),
            _node("MatMul", "bt x", "q"),
        ],
        {"a": VALUES[:, :ROWS].copy(), "b": VALUES[:, :ROWS].copy()},
        "p q",
    ),
    "folded and packed": lambda: _model(
        [
            _node("Transpose", "a", "at", perm=[1, 0]),
            _node("Transpose", "b", "bt", perm=[1, 0]),
            _node("MatMul", "v at", "p"),
            _node("MatMul", "v bt", "o"),
            _node("Relu", "o", "q"),
        ],
        {"a": VALUES, "b": VALUES},
        "p q",
    ),
    "transposed": lambda: _model(
        [_node("Gather", "e i", "p"), _node("MatMul", "x w", "q")],
        {"e": TURNED, "w": VALUES},
        "p q",
    ),
    "transposed and packed": lambda: _model(
        [_node("MatMul", "x w", "p"), _node("MatMul", "v t", "q")],
        {"w": VALUES, "t": TURNED},
        "p q",
    ),
    "packed": lambda: _model(
        [_node("MatMul", "x a", "p"), _node("MatMul", "x b", "o"), _node("Relu", "o", "q")],
        {"a": VALUES, "b": VALUES},
        "p q",
    ),
    "packed and read": lambda: _model(
        [_node("MatMul", "x a", "p"), _node("Gather", "b i", "q")],
        {"a": VALUES, "b": VALUES},
        "p q",
    ),
    "subgraph": lambda: _branches("w"),
    "branches": lambda: _branches("u", "w"),
    "branches of one name": lambda: _branches("w", "w"),
}


def _run(model: ModelProto, folder: Path, version: str) -> tuple[list[Finding], Profile]:
    path = folder / "model.onnx"
    onnx.save(model, path)
    with open_model(path) as opened:
        ctx = AnalysisContext(opened, Runtime.parse(version))
        findings = [finding for rule in RULES for finding in rule.detect(ctx)]
    return findings, profile(path, version, xray="steady")


@pytest.mark.parametrize("version", ["1.24.4", NEWEST])
@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("folded", "MD101"),
        ("folded and packed", "MD101"),
        ("packed", "MD101"),
        ("packed and read", "MD101"),
        ("transposed and packed", "MD102"),
        ("transposed", "MD102"),
        ("subgraph", "MD104"),
        ("branches", "MD105"),
        ("branches of one name", "MD105"),
    ],
)
def test_what_was_predicted_is_measured(
    tmp_path: Path, name: str, rule: str, version: str, agrees: Agrees
) -> None:
    findings, seen = _run(MODELS[name](), tmp_path, version)
    (finding,) = findings
    assert finding.rule == rule
    assert seen.attribution is not None
    confronted = match_attribution(finding, seen.attribution)
    if not finding.bytes:
        assert confronted.evidence == "predicted"
        return
    assert confronted.evidence == "measured"
    assert confronted.measured_bytes is not None
    agrees(finding, confronted.measured_bytes, version)


@pytest.mark.parametrize("version", ["1.24.4", NEWEST])
@pytest.mark.parametrize("name", ["subgraph", "branches"])
def test_hoisting_saves_the_memory_that_was_predicted(
    tmp_path: Path, name: str, version: str, agrees: Agrees
) -> None:
    (finding,), before = _run(MODELS[name](), tmp_path, version)
    hoisted = MODELS[name]()
    for attribute in hoisted.graph.node[0].attribute:
        for node in attribute.g.node:
            for place, source in enumerate(node.input):
                node.input[place] = "w" if source == "u" else source
        del attribute.g.initializer[:]
    hoisted.graph.initializer.append(numpy_helper.from_array(VALUES, "w"))
    (tmp_path / "after").mkdir()
    none, after = _run(hoisted, tmp_path / "after", version)
    assert none == []
    assert before.steady_rss_bytes is not None
    assert after.steady_rss_bytes is not None
    saved = before.steady_rss_bytes - after.steady_rss_bytes
    agrees(finding, saved, version, abs=1 << 19)
