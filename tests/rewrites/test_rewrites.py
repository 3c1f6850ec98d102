"""Simple cases of rewrites in two tables: what each one makes of a model, and what it refuses."""

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper

from memdiag.records.finding import Finding
from memdiag.rewrites.catalog import (
    fused_matmul_transposed,
    inputs_without_initializers,
    store_folded_result,
    transpose_small_side,
)
from tests.model_text import text_model
from tests.rewrites.rewriting import Feeds, finding, operators, refusal, rewrite, rewritten, weights
from tests.rewrites.tied_models import BOUND, SHARED, tied, tied_feeds


def listing(*names: str) -> ModelProto:
    """Return a product by a transposed weight w, and a bias; `names` are inputs as well."""
    model = text_model(
        "g (float[n, 4] x) => (float[n, 3] y) <float[3, 4] w, float[3] bias>"
        " { t = Transpose(w) m = MatMul(x, t) y = Add(m, bias) }"
    )
    shapes = {"w": [3, 4], "bias": [3]}
    for name in names:
        model.graph.input.append(helper.make_tensor_value_info(name, 1, shapes[name]))
    return model


def chain(output: str = "y = Add (x, small)") -> ModelProto:
    """Return a model with a large intermediate result that depends on constants alone."""
    return text_model(
        f"""g (float[2, 6] x) => (float[2, 6] y) <float[1, 6] row, int64[2] sizes> {{
            axes = Constant <value_ints = [0]> ()
            big = Expand (row, sizes) curved = Exp (big)
            small = ReduceSum <keepdims = 0> (curved, axes) {output}
        }}""",
        sizes=np.array([50, 6]),
    )


class Case(NamedTuple):
    """A model, the finding, its inputs, and what the rewritten model has.

    `inputs` are names of the graph; None where they stay. Outputs are equal but for `bound`.
    """

    module: ModuleType
    model: ModelProto
    of: Finding
    operators: str
    feeds: Sequence[Feeds] = ()
    inputs: Sequence[str] | None = None
    bound: float = BOUND


FOLDED = finding(nodes=("Expand_1", "Exp_2"))
SMALL_SIDE = "Gather MatMul Transpose Transpose"
INTEGERS: dict[str, Any] = {"feeds": [tied_feeds(3, dtype=np.int32)], "bound": 0.0}
CASES = {
    "input": Case(
        inputs_without_initializers,
        listing("w", "bias"),
        finding("w"),
        "Add MatMul Transpose",
        inputs=["x", "bias"],
    ),
    "chain": Case(store_folded_result, chain(), FOLDED, "Add", bound=0.0),
    "small side of a matrix": Case(
        transpose_small_side, tied(), SHARED, SMALL_SIDE, [tied_feeds(rows) for rows in (0, 1, 5)]
    ),
    "small side of a vector": Case(transpose_small_side, tied(()), SHARED, "Gather MatMul"),
    "small side of whole numbers": Case(
        transpose_small_side, tied(dtype=np.int32), SHARED, SMALL_SIDE, **INTEGERS
    ),
    **{
        f"FusedMatMul of rank {len(sizes) + 1}, opset {opset}": Case(
            fused_matmul_transposed,
            tied(sizes, opset=opset),
            SHARED,
            "FusedMatMul Gather",
            [
                tied_feeds(*(free if isinstance(one, str) else one for one in sizes))
                for free in (0, 3)
            ],
        )
        for sizes in ((), ("n",), ("b", "s"), ("b", 2, "s"))
        for opset in (9, 13, 21)
    },
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_rewritten_model(tmp_path: Path, case: Case) -> None:
    path = rewritten(
        case.module,
        case.model,
        case.of,
        tmp_path,
        *case.feeds,
        bound=case.bound,
        storage=None,
        overridable=case.inputs is not None,
    )
    assert [one for one in operators(path) if one != "Constant"] == case.operators.split()
    after = [one.name for one in onnx.load(path, load_external_data=False).graph.input]
    assert after == (case.inputs or [one.name for one in case.model.graph.input])


@pytest.mark.parametrize("output", ["y = Add (x, small)", "z = Mul (x, row) y = Add (z, small)"])
def test_only_constants_that_nothing_else_reads_are_removed(tmp_path: Path, output: str) -> None:
    path = rewrite(store_folded_result, chain(output), FOLDED, tmp_path, storage=None)
    assert ("row" in weights(path)) == ("row" in output)
    assert "sizes" not in weights(path)
    assert "Constant" not in operators(path)


NOT_LISTED = "none of the weights is listed as an input"
COMPUTED = text_model("g (float[2, 6] x) => (float[2, 6] y) { big = Exp (x) y = Erf (big) }")
OPSET_13 = "in operator set 13 the product cannot be given its axes again"


@pytest.mark.parametrize(
    ("module", "model", "of", "reason"),
    [
        *(
            (inputs_without_initializers, listing("w"), finding(name), NOT_LISTED)
            for name in ("x", "missing", "t", "bias")
        ),
        (
            store_folded_result,
            COMPUTED,
            finding(nodes=("Exp_0",)),
            "it is not computed from constants alone",
        ),
        (transpose_small_side, tied(None, opset=13), SHARED, OPSET_13),
        *(
            (
                fused_matmul_transposed,
                tied(dtype=dtype),
                SHARED,
                f"FusedMatMul does not support {name} on the CPU",
            )
            for dtype, name in ((np.float64, "double"), (np.float16, "float16"))
        ),
    ],
)
def test_near_misses_are_refused(
    tmp_path: Path, module: ModuleType, model: ModelProto, of: Finding, reason: str
) -> None:
    assert refusal(module, model, of, tmp_path) == reason
