from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from memdiag.ort.prepacking import fp32_panels
from tests.model_text import random, with_weights
from tests.rules.conftest import Agrees
from tests.rules.examining import findings, found
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
    distinct: bool = False,
) -> Path:
    """A model of products with a weight of 16 MiB each, next to its data.

    All values of a weight are the same unless they have to be `distinct`, for an X-ray.
    """
    nodes = [
        f"m{n} = MatMul({f'r{n - 1}' if n else 'x'}, w{n}) r{n} = Sigmoid(m{n})"
        for n in range(count)
    ]
    nodes += ["rows = Gather(w0, i)"] if gathered else []
    outputs = f"float[n, m] r{count - 1}" + (", float[k, m] rows" if gathered else "")
    shape = (WIDTH, WIDTH)
    weights = {
        f"w{n}": random(shape, n) if distinct else np.full(shape, n + 1, np.float32)
        for n in range(count)
    }
    text = f"g (float[n, {WIDTH}] x, int64[k] i) => ({outputs}) {{ {' '.join(nodes)} }}"
    path = folder / "layers.onnx"
    location = "data" if external else None
    model = with_weights(text, **weights)
    onnx.save(model, path, save_as_external_data=external, location=location)
    return path


def test_all_that_is_packed_is_one_finding(tmp_path: Path) -> None:
    weights = ("w0", "w1", "w2", "w3")
    finding = found(RULE, layers(tmp_path), tmp_path, weights=weights, bytes=4 * ONE)
    assert sum(copies.bytes for copies in finding.expected) == 4 * ONE
    assert finding.remedies[0] == "save-prepacked"


def test_near_misses(tmp_path: Path) -> None:
    assert not findings(RULE, layers(tmp_path, 3), tmp_path)  # less than 64 MiB
    assert not findings(RULE, layers(tmp_path, external=False), tmp_path)  # copied anyway
    path = layers(tmp_path)
    overridable = onnx.load(path, load_external_data=False)
    overridable.graph.input.append(helper.make_tensor_value_info("w0", 1, [WIDTH, WIDTH]))
    onnx.save(overridable, path)
    assert not findings(RULE, path, tmp_path)


def test_a_weight_in_two_forms_is_another_rules(tmp_path: Path) -> None:
    weights = ("w1", "w2", "w3", "w4")
    found(RULE, layers(tmp_path, 5, gathered=True), tmp_path, weights=weights)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", ["1.24.4", NEWEST])
def test_the_private_copies_are_those_predicted(
    tmp_path: Path, version: str, agrees: Agrees
) -> None:
    path = layers(tmp_path, distinct=True)
    finding = found(RULE, path, tmp_path, runtime=version)
    copies = xray(path, version).copies
    private = [copy for copy in copies if copy.backing.kind == "anonymous" and copy.in_use]
    assert {copy.kind for copy in private} == {"packed"}
    agrees(finding, sum(copy.resident_bytes for copy in private), version)
