"""What rules say of the peak is what those of a model and of one without the waste differ by."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from tests.model_text import Array, random, tensor, text_model, with_weights
from tests.rules.building import MIB
from tests.rules.conftest import Agrees
from tests.rules.examining import findings
from tests.rules.measuring import NEWEST, peak, private_peak, profile

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROWS, COLUMNS = 2048, 4096
UNFOLDING = {"keep-unfolded", "folding-size-limit", "disable-constant-folding"}
VERSIONS = ["1.24.4", NEWEST]


def model(body: str, **weights: Array) -> ModelProto:
    """Return a model with inputs c, ids, x [n, COLUMNS] and v [n, ROWS]."""
    inputs = f"bool c, int64[n] ids, float[n,{COLUMNS}] x, float[n,{ROWS}] v"
    text = f"g ({inputs}) => (float[p,q] y, float[r,s] z) {{ {body} }}"
    return with_weights(text, **weights)


def branches(
    then: str, other: str = "l = Neg(v)", beside: str = "Neg(x)", /, **weights: Array
) -> ModelProto:
    """Return an If, of which one branch makes k and the other one l."""
    return model(
        f"z = {beside} y = If(c) <"
        f"then_branch = a () => (float[p,q] k) {{ {then} }}, "
        f"else_branch = b () => (float[p,q] l) {{ {other} }}>",
        **weights,
    )


def nested(**weights: Array) -> ModelProto:
    """Return an If in an If, in which W is read."""
    inner = (
        "k = If(c) <then_branch = d () => (float[p,q] m) { m = Gather(W, ids) }, "
        "else_branch = e () => (float[p,q] n) { n = Neg(v) }>"
    )
    return branches(inner, **weights)


def owning(proto: ModelProto, path: str, **weights: Array) -> ModelProto:
    """Return the model with `weights` in the branch that the names in `path` lead to."""
    graph = proto.graph
    for name in path.split("/"):
        node = next(node for node in graph.node if node.op_type == "If")
        graph = next(one.g for one in node.attribute if one.name == name)
    graph.initializer.extend(tensor(value, name) for name, value in weights.items())
    return proto


def given(proto: ModelProto) -> ModelProto:
    """Return the model with its matrices among its inputs: nothing folds or packs them."""
    proto.graph.input.extend(
        onnx.helper.make_tensor_value_info(one.name, one.data_type, list(one.dims))
        for one in proto.graph.initializer
        if len(one.dims) == 2
    )
    return proto


@cache
def whole() -> Array:
    return random((ROWS, COLUMNS))


def half() -> Array:
    return whole().astype(np.float16)


def turned() -> Array:
    return np.ascontiguousarray(whole().T)


def parts() -> dict[str, Array]:
    return {name: random((ROWS // 2, COLUMNS), place) for place, name in enumerate("ABD")}


def row() -> Array:
    return random((1, COLUMNS))


TALL = np.array([ROWS, COLUMNS])
OF_PARTS = "d = Gather(A, ids) e = Gather(B, ids) f = Gather(D, ids) g = Add(d, e) k = Add(f, g)"
IN_BOTH = ("k = MatMul(v, {})", "l = MatMul(v, {})")


class Case(NamedTuple):
    """A model, one without the waste, and the rule; `external` says where weights may lie.

    The models are built when a test needs them: together they take more than a gigabyte.
    """

    rule: str
    waste: Callable[[], ModelProto]
    lean: Callable[[], ModelProto]
    external: tuple[bool, ...] = (False, True)


def tied() -> ModelProto:
    return given(model("y = Gather(W, ids) z = Gemm<transB=1>(x, W)", W=whole()))


def both_ways() -> ModelProto:
    return given(model("y = MatMul(v, W) z = Gemm<transB=1>(x, W)", W=whole()))


CASES = {
    "used and transposed": Case(
        "MD103",
        lambda: model(
            "y = Gather(W, ids) t = Transpose<perm=[1,0]>(W) z = MatMul(x, t)", W=whole()
        ),
        tied,
    ),
    "transposed in two branches": Case(
        "MD103",
        lambda: branches(
            "t = Transpose<perm=[1,0]>(W) k = MatMul(x, t)",
            "t = Transpose<perm=[1,0]>(W) m = MatMul(x, t) l = Neg(m)",
            "Gather(W, ids)",
            W=whole(),
        ),
        tied,
    ),
    "packed and transposed": Case(
        "MD103",
        lambda: model("y = MatMul(v, W) t = Transpose<perm=[1,0]>(W) z = MatMul(x, t)", W=whole()),
        both_ways,
    ),
    "stored transpose": Case(
        "MD102", lambda: model("y = Gather(W, ids) z = MatMul(x, T)", W=whole(), T=turned()), tied
    ),
    "stored transpose, both packed": Case(
        "MD102",
        lambda: model("y = MatMul(v, W) z = MatMul(x, T)", W=whole(), T=turned()),
        both_ways,
    ),
    "equal, one of them packed": Case(
        "MD101",
        lambda: model("y = MatMul(v, W) z = Gather(V, ids)", W=whole(), V=whole()),
        lambda: model("y = MatMul(v, W) z = Gather(W, ids)", W=whole()),
    ),
    "equal and packed": Case(
        "MD101",
        lambda: model("y = MatMul(v, W) m = MatMul(v, V) z = Neg(m)", W=whole(), V=whole()),
        lambda: model("y = MatMul(v, W) m = MatMul(v, W) z = Neg(m)", W=whole()),
    ),
    "equal and folded": Case(
        "MD101",
        lambda: model(
            "s = Transpose(W) t = Transpose(V) y = MatMul(x, s) m = MatMul(x, t) z = Neg(m)",
            W=whole(),
            V=whole(),
        ),
        lambda: model("s = Transpose(W) y = MatMul(x, s) m = MatMul(x, s) z = Neg(m)", W=whole()),
    ),
    "packed and kept": Case(
        "MD201",
        lambda: model("y = Gather(W, ids) z = MatMul(v, W)", W=whole()),
        lambda: given(model("y = Gather(W, ids) z = MatMul(v, W)", W=whole())),
    ),
    "packed in two ways": Case(
        "MD201", lambda: model("y = MatMul(v, W) z = Gemm<transB=1>(x, W)", W=whole()), both_ways
    ),
    "half precision": Case(
        "MD204",
        lambda: model("h = Cast<to=10>(v) m = MatMul(h, W) y = Cast<to=1>(m) z = Neg(x)", W=half()),
        lambda: model("g = Gather(W, ids) y = Cast<to=1>(g) z = Neg(x)", W=half()),
        external=(False,),
    ),
    "expanded": Case(
        "MD301",
        lambda: model("t = Expand(W, k) y = Gather(t, ids) z = Neg(x)", W=row(), k=TALL),
        lambda: model("y = Gather(W, ids) z = Neg(x)", W=row()),
    ),
    "expanded and packed": Case(
        "MD301",
        lambda: model("t = Expand(W, k) y = MatMul(v, t) z = Neg(x)", W=row(), k=TALL),
        lambda: model("y = Gather(W, ids) z = Neg(x)", W=row()),
    ),
    "tiled": Case(
        "MD301",
        lambda: model(
            "t = Tile(W, k) y = Gather(t, ids) z = Neg(x)", W=parts()["A"], k=np.array([3, 1])
        ),
        lambda: model("y = Gather(W, ids) z = Neg(x)", W=parts()["A"]),
        external=(False,),
    ),
    "owned by a subgraph": Case(
        "MD104",
        lambda: owning(branches("k = MatMul(v, W)"), "then_branch", W=whole()),
        lambda: branches("k = MatMul(v, W)", W=whole()),
        external=(False,),
    ),
    "several owned by a subgraph": Case(
        "MD104",
        lambda: owning(branches(OF_PARTS), "then_branch", **parts()),
        lambda: branches(OF_PARTS, **parts()),
        external=(False,),
    ),
    "owned by a subgraph in another one": Case(
        "MD104",
        lambda: owning(nested(), "then_branch/then_branch", W=whole()),
        lambda: nested(W=whole()),
        external=(False,),
    ),
    "in both branches": Case(
        "MD105",
        lambda: owning(
            owning(branches(*(one.format("W") for one in IN_BOTH)), "then_branch", W=whole()),
            "else_branch",
            W=whole(),
        ),
        lambda: branches(*(one.format("W") for one in IN_BOTH), W=whole()),
        external=(False,),
    ),
}
PLACES = [
    pytest.param(name, external, id=f"{name}, {'external' if external else 'embedded'}")
    for name, case in CASES.items()
    for external in case.external
]


def saved(proto: ModelProto, folder: Path, *, external: bool) -> Path:
    """Return the path of a copy of the model in a folder of its own."""
    folder.mkdir()
    path = folder / "model.onnx"
    copy = ModelProto.FromString(proto.SerializeToString())
    onnx.save(copy, path, save_as_external_data=external, location="data", size_threshold=65536)
    return path


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("name", "external"), PLACES)
def test_the_peak_is_lower_by_what_was_predicted(
    tmp_path: Path, name: str, external: bool, version: str, agrees: Agrees
) -> None:
    case = CASES[name]
    waste = saved(case.waste(), tmp_path / "waste", external=external)
    lean = saved(case.lean(), tmp_path / "lean", external=external)
    (found,) = findings(case.rule, waste, tmp_path, runtime=version)
    tolerance = 4 * MIB
    if case.rule in ("MD104", "MD105"):
        # Their peak may be that of parsing, when the 8 MiB of a session itself are not there yet.
        tolerance = 9 * MIB
    less = peak(lean, version)
    if found.remedies and {*found.remedies} <= UNFOLDING:
        # What is evaluated in each run takes memory there.
        less = peak(waste, version, disabled_optimizers=("ConstantFolding",))
    agrees(found, peak(waste, version) - less, version, figure="peak", abs=tolerance)


@pytest.mark.parametrize("version", ["1.24.4", NEWEST])
@pytest.mark.parametrize(
    ("rule", "external", "body"),
    [
        ("MD401", False, "y = Gather(W, ids) z = Gather(V, ids)"),
        ("MD202", True, "y = MatMul(v, W) m = MatMul(v, V) z = Neg(m)"),
    ],
)
def test_so_is_that_of_private_memory(
    tmp_path: Path, rule: str, external: bool, body: str, version: str, agrees: Agrees
) -> None:
    two = {"W": whole(), "V": random((ROWS, COLUMNS), 1)}
    waste = saved(model(body, **two), tmp_path / "waste", external=external)
    lean = saved(given(model(body, **two)), tmp_path / "lean", external=True)
    (found,) = findings(rule, waste, tmp_path, runtime=version)
    more = private_peak(waste, version) - private_peak(lean, version)
    agrees(found, more, version, figure="peak", abs=4 * MIB)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_first_run_takes_the_activations_that_were_predicted(
    tmp_path: Path, version: str, agrees: Agrees
) -> None:
    proto = text_model(
        """g (float[4096, 256] x, float[256, 4096] keys) => (float[4096, 256] y) {
            dots = MatMul(x, keys) soft = Erf(dots) d = Transpose<perm=[1,0]>(keys)
            y = MatMul(soft, d) }"""
    )
    path = saved(proto, tmp_path / "model", external=False)
    (found,) = findings("MD602", path, tmp_path, runtime=version)
    run = profile(path, version, xray="none")
    first = run.phase("first_run")
    assert first is not None
    taken = first.peak_rss_bytes - first.start.rss_bytes
    agrees(found, taken, version)
