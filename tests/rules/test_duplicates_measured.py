"""What the rules on equal weights predict is what the X-ray and the memory of a run say."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from memdiag.rules.match_measurement import match_attribution
from tests.rules.conftest import Agrees
from tests.rules.equal_weights import EqualWeights, examined
from tests.rules.measuring import NEWEST, profile

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EQUAL = EqualWeights(1024, 2048)
TURNED = np.ascontiguousarray(EQUAL.values.T)
TRANSPOSES = "s = Transpose(a) t = Transpose(b)"
BOTH = ("k = MatMul(x, {})", "n = MatMul(x, {}) o = Neg(n)")


def branches(then: str, other: str | None, *, owned: bool = True) -> ModelProto:
    """Return an If that multiplies by a weight in each branch, or in the first alone."""
    bodies = [BOTH[0].format(then), BOTH[1].format(other) if other else "o = Relu(x)"]
    names = f"{then} {other or ''}".split()
    if owned:
        return EQUAL.choice(*bodies, owned=(then, other or ""))
    return EQUAL.choice(*bodies, weights=" ".join(dict.fromkeys(names)))


MODELS: dict[str, tuple[str, Callable[[], ModelProto]]] = {
    "folded": (
        "MD101",
        lambda: EQUAL.model(f"{TRANSPOSES} y = MatMul(z, s) q = MatMul(z, t)", "a b"),
    ),
    "folded and packed": (
        "MD101",
        lambda: EQUAL.model(f"{TRANSPOSES} y = MatMul(v, s) o = MatMul(v, t) q = Relu(o)", "a b"),
    ),
    "packed": (
        "MD101",
        lambda: EQUAL.model("y = MatMul(x, a) o = MatMul(x, b) q = Relu(o)", "a b"),
    ),
    "packed and read": (
        "MD101",
        lambda: EQUAL.model("y = MatMul(x, a) q = Gather(b, ids)", "a b"),
    ),
    "transposed and packed": (
        "MD102",
        lambda: EQUAL.model("y = MatMul(x, w) q = MatMul(v, t)", "w", t=TURNED),
    ),
    "transposed": (
        "MD102",
        lambda: EQUAL.model("y = Gather(e, ids) q = MatMul(x, w)", "w", e=TURNED),
    ),
    "subgraph": ("MD104", lambda: branches("w", None)),
    "branches": ("MD105", lambda: branches("u", "w")),
    "branches of one name": ("MD105", lambda: branches("w", "w")),
}
HOISTED = {"subgraph": ("w", None), "branches": ("w", "w")}


@pytest.mark.parametrize("version", ["1.24.4", NEWEST])
@pytest.mark.parametrize("name", MODELS)
def test_what_was_predicted_is_measured(
    tmp_path: Path, name: str, version: str, agrees: Agrees
) -> None:
    rule, build = MODELS[name]
    (finding,) = examined(build(), tmp_path, version).values()
    assert finding.rule == rule
    seen = profile(tmp_path / "model.onnx", version, xray="steady").attribution
    assert seen is not None
    confronted = match_attribution(finding, seen)
    if not finding.bytes:
        assert confronted.evidence == "predicted"
        return
    assert confronted.evidence == "measured"
    assert confronted.measured_bytes is not None
    agrees(finding, confronted.measured_bytes, version)


@pytest.mark.parametrize("version", ["1.24.4", NEWEST])
@pytest.mark.parametrize("name", HOISTED)
def test_hoisting_saves_the_memory_that_was_predicted(
    tmp_path: Path, name: str, version: str, agrees: Agrees
) -> None:
    (finding,) = examined(MODELS[name][1](), tmp_path, version).values()
    before = profile(tmp_path / "model.onnx", version, xray="steady").steady_rss_bytes
    assert examined(branches(*HOISTED[name], owned=False), tmp_path, version) == {}
    after = profile(tmp_path / "model.onnx", version, xray="steady").steady_rss_bytes
    assert before is not None
    assert after is not None
    agrees(finding, before - after, version, abs=1 << 19)
