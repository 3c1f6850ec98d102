from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from memdiag.model.graph_index import Scope
from memdiag.model.model_file import open_model
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.runtime import Runtime

SIDE = 64
WEIGHT = np.zeros((SIDE, SIDE), np.float32)


def branches(then: str, other: str, *owned: str) -> onnx.ModelProto:
    """Return an If of two branches; `owned` are the weights that each has for its own."""
    model = parser.parse_model(
        f"""<ir_version: 10, opset_import: ["":17]>
        g (bool c, float[n,{SIDE}] x) => (float[p,q] y) {{
            y = If(c) <then_branch = a () => (float[p,q] k) {{ {then} }},
                       else_branch = b () => (float[p,q] l) {{ {other} }}>
        }}"""
    )
    model.graph.initializer.append(numpy_helper.from_array(WEIGHT, "W"))
    for attribute, name in zip(model.graph.node[0].attribute, owned, strict=False):
        attribute.g.initializer.append(numpy_helper.from_array(WEIGHT, name))
    return model


def kept(model: onnx.ModelProto, folder: Path, *names: str, runtime: str = "1.24.4") -> list[bool]:
    """Return whether the constant of each name is kept, of the first branch, then the second."""
    path = folder / "model.onnx"
    onnx.save(model, path)
    with open_model(path) as opened:
        ctx = AnalysisContext(opened, Runtime.parse(runtime))
        session = ctx.session
        bodies: list[Scope] = [scope for path, scope in ctx.graphs if path]
        return [session.is_kept(scope, name) for scope, name in zip(bodies, names, strict=True)]


TURNED = "{0} = Transpose<perm=[1,0]>(W) {1} = MatMul(x, {0})"
OWNED = "{1} = MatMul(x, {0})"


@pytest.mark.parametrize(("body", "owned"), [(TURNED, False), (OWNED, True)])
def test_of_constants_of_one_name_all_but_the_last_are_kept(
    tmp_path: Path, body: str, owned: bool
) -> None:
    names = ("t", "t")
    model = branches(body.format("t", "k"), body.format("t", "l"), *(names if owned else ()))
    assert kept(model, tmp_path, *names) == [True, False]


@pytest.mark.parametrize(("body", "owned"), [(TURNED, False), (OWNED, True)])
def test_constants_of_two_names_are_freed(tmp_path: Path, body: str, owned: bool) -> None:
    names = ("t", "u")
    model = branches(body.format("t", "k"), body.format("u", "l"), *(names if owned else ()))
    assert kept(model, tmp_path, *names) == [False, False]


def test_a_value_that_is_computed_in_each_run_is_no_namesake(tmp_path: Path) -> None:
    model = branches(TURNED.format("t", "k"), "t = Neg(x) l = MatMul(t, W)")
    assert kept(model, tmp_path, "t", "t") == [False, False]


@pytest.mark.parametrize("name", ["t", "u"])
def test_since_1_29_all_are_kept(tmp_path: Path, name: str) -> None:
    model = branches(TURNED.format("t", "k"), TURNED.format(name, "l"))
    assert kept(model, tmp_path, "t", name, runtime="1.31.1") == [True, True]
