from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper

from memdiag.ort.runtime import Runtime
from tests.builders import build, saved
from tests.ort.executing import analysed

WEIGHT = np.zeros((64, 64), np.float32)
TURNED = "{0} = Transpose<perm=[1,0]>(W) {1} = MatMul(x, {0})"
OWNED = "{1} = MatMul(x, {0})"  # by a weight that the branch has for its own
COMPUTED = "{0} = Neg(x) {1} = MatMul({0}, W)"


@pytest.mark.parametrize(
    ("first", "second", "names", "minor", "kept"),
    [
        # Of constants of one name all but the last are kept.
        (TURNED, TURNED, "tt", 24, [True, False]),
        (OWNED, OWNED, "tt", 24, [True, False]),
        (TURNED, TURNED, "tu", 24, [False, False]),
        (OWNED, OWNED, "tu", 24, [False, False]),
        # A value that is computed in each run is no namesake.
        (TURNED, COMPUTED, "tt", 24, [False, False]),
        (TURNED, TURNED, "tt", 31, [True, True]),
        (TURNED, TURNED, "tu", 31, [True, True]),
    ],
)
def test_which_constants_of_two_branches_are_kept(
    first: str, second: str, names: str, minor: int, kept: list[bool], tmp_path: Path
) -> None:
    model = build(
        f"""(bool c, float[n,64] x) => (float[p,q] y) {{ y = If(c) <
        then_branch = a () => (float[p,q] k) {{ {first.format(names[0], "k")} }},
        else_branch = b () => (float[p,q] l) {{ {second.format(names[1], "l")} }}> }}""",
        ir=10,
        weights={"W": WEIGHT},
    )
    if first == OWNED:
        for attribute, name in zip(model.graph.node[0].attribute, names, strict=True):
            attribute.g.initializer.append(numpy_helper.from_array(WEIGHT, name))
    with analysed(saved(model, tmp_path), {}, Runtime(1, minor), reads_weights=True) as ctx:
        branches = [scope for path, scope in ctx.graphs if path]
        found = [
            ctx.session.is_kept(scope, name) for scope, name in zip(branches, names, strict=True)
        ]
    assert found == kept
