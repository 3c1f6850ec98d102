"""The copies that rules predict are those of X-rays, and without them sessions take less."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from memdiag.rules.match_measurement import match_attribution
from tests.model_text import Array, random, tensor
from tests.rules import test_constant_nodes as constants
from tests.rules import test_overridable_weights as overridable
from tests.rules import test_shared_weight_transposed as shared
from tests.rules import test_sparse_densified as sparse
from tests.rules import test_unused_weights as unused
from tests.rules.building import MIB, branches, rows, typed
from tests.rules.conftest import Agrees
from tests.rules.equal_weight_models import EqualWeights
from tests.rules.examining import external as external_copy
from tests.rules.examining import findings, found
from tests.rules.measuring import NEWEST, above_baseline, xray

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

OLD = "1.24.4"
TRANSPOSES = "s = Transpose(a) t = Transpose(b)"
BOTH = ("k = MatMul(x, {})", "n = MatMul(x, {}) o = Neg(n)")
Build = Callable[[], ModelProto]


@cache
def equal() -> EqualWeights:
    return EqualWeights(1024, 2048)


def turned() -> Array:
    return np.ascontiguousarray(equal().values.T)


def in_branches(then: str, other: str | None, *, owned: bool = True) -> ModelProto:
    """Return an If that multiplies by a weight in each branch, or in the first alone."""
    bodies = [BOTH[0].format(then), BOTH[1].format(other) if other else "o = Relu(x)"]
    if owned:
        return equal().choice(*bodies, owned=(then, other or ""))
    return equal().choice(*bodies, weights=" ".join({then, other or then}))


def unused_in_branch(*, dead: bool) -> ModelProto:
    proto = branches([random((2, 4)), random((2, 4), 1)])
    body = unused.inside(proto)
    body.initializer.append(tensor(random((8, MIB // 2), 2), "unused"))
    body.node.extend([unused.GATHER] if dead else [])
    return proto


def tied(body: str) -> Build:
    return lambda: shared.model(body, rows=2048, columns=1024)


ATTRIBUTED: dict[str, tuple[str, Build]] = {
    "calls of a function": ("constant-nodes", lambda: constants.calling(3, random((16, MIB // 4)))),
    "unread": ("unused-weights", lambda: unused_in_branch(dead=False)),
    "read by a dead node": ("unused-weights", lambda: unused_in_branch(dead=True)),
    "given": (
        "overridable-weights",
        lambda: overridable.given(overridable.TURNED, random((4096, 1024))),
    ),
    "tied": ("shared-weight-transposed", tied(shared.PLAIN)),
    "tied in branches": ("shared-weight-transposed", tied(shared.BRANCHES)),
    "tied and packed": (
        "shared-weight-transposed",
        tied(shared.FIRES["both are packed"][0]),
    ),
    "folded": (
        "identical-weights",
        lambda: equal().model(f"{TRANSPOSES} y = MatMul(z, s) q = MatMul(z, t)", "a b"),
    ),
    "folded and packed": (
        "identical-weights",
        lambda: equal().model(f"{TRANSPOSES} y = MatMul(v, s) o = MatMul(v, t) q = Relu(o)", "a b"),
    ),
    "packed": (
        "identical-weights",
        lambda: equal().model("y = MatMul(x, a) o = MatMul(x, b) q = Relu(o)", "a b"),
    ),
    "packed and read": (
        "identical-weights",
        lambda: equal().model("y = MatMul(x, a) q = Gather(b, ids)", "a b"),
    ),
    "transposed and packed": (
        "stored-transpose",
        lambda: equal().model("y = MatMul(x, w) q = MatMul(v, t)", "w", t=turned()),
    ),
    "transposed": (
        "stored-transpose",
        lambda: equal().model("y = Gather(e, ids) q = MatMul(x, w)", "w", e=turned()),
    ),
    "subgraph": ("subgraph-weights", lambda: in_branches("w", None)),
    "branches": ("weight-in-branches", lambda: in_branches("u", "w")),
    "branches of one name": ("weight-in-branches", lambda: in_branches("w", "w")),
}
EXTERNAL = [name for name, (rule, _) in ATTRIBUTED.items() if rule == "shared-weight-transposed"]


@pytest.mark.parametrize("version", [OLD, NEWEST])
@pytest.mark.parametrize(
    ("name", "external"),
    [*((name, False) for name in ATTRIBUTED), *((name, True) for name in EXTERNAL)],
)
def test_the_copies_are_those_predicted(
    tmp_path: Path, name: str, external: bool, version: str, agrees: Agrees
) -> None:
    rule, build = ATTRIBUTED[name]
    path = tmp_path / "model.onnx"
    onnx.save(build(), path, save_as_external_data=external, location="data")
    finding = found(rule, path, tmp_path, runtime=version)
    after = match_attribution(finding, xray(path, version))
    if not finding.bytes:
        assert after.evidence == "predicted"
        return
    assert after.evidence == "measured"
    assert after.measured_bytes is not None
    agrees(finding, after.measured_bytes, version)


class Saving(NamedTuple):
    """A rule, a model with its waste and one without; `is_run` says whether they are run."""

    rule: str
    waste: Build
    lean: Build
    is_run: bool = True
    is_lean_external: bool = False


def halves() -> list[Array]:
    return [random((16, MIB // 2), seed, np.int8) for seed in range(2)]


SAVINGS = {
    "typed fields": Saving(
        "typed-fields", lambda: branches(halves(), make=typed), lambda: branches(halves())
    ),
    "sparse": Saving(
        "sparse-densified",
        lambda: sparse.sparse(sparse.ROWS, (256, MIB // 8), 2 * MIB),
        lambda: rows(np.zeros((256, MIB // 8), np.float32), name="s"),
        is_run=False,
        is_lean_external=True,
    ),
    "subgraph": Saving(
        "subgraph-weights",
        lambda: in_branches("w", None),
        lambda: in_branches("w", None, owned=False),
    ),
    "branches": Saving(
        "weight-in-branches",
        lambda: in_branches("u", "w"),
        lambda: in_branches("w", "w", owned=False),
    ),
}


@pytest.mark.parametrize("version", [OLD, NEWEST])
@pytest.mark.parametrize("case", SAVINGS.values(), ids=SAVINGS)
def test_without_the_waste_a_session_takes_less(
    tmp_path: Path, case: Saving, version: str, agrees: Agrees
) -> None:
    finding = found(case.rule, case.waste(), tmp_path, runtime=version)
    before = above_baseline(xray(tmp_path / "model.onnx", version, run=case.is_run))
    assert findings(case.rule, case.lean(), tmp_path, runtime=version) == []
    lean = tmp_path / "model.onnx"
    if case.is_lean_external:
        lean = external_copy(case.lean(), tmp_path)
    after = above_baseline(xray(lean, version, run=case.is_run))
    agrees(finding, before - after, version, abs=1 << 19)


def test_of_the_tied_sample(
    sample_model: Callable[..., Path], tmp_path: Path, agrees: Agrees
) -> None:
    path = sample_model("tied_if", 16)
    finding = found("shared-weight-transposed", path, tmp_path)
    after = match_attribution(finding, xray(path))
    assert after.measured_bytes is not None
    agrees(finding, after.measured_bytes)
