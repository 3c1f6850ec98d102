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
from memdiag.verify.outputs import Bound
from tests.rewrites.rewriting import (
    Feeds,
    finding,
    largest_difference,
    random,
    refusal,
    rewrite,
    text_model,
)
from tests.rewrites.tied_models import SHARED, operators, tied, tied_feeds


def listing(*names: str) -> ModelProto:
    """Return a product by a transposed weight w, and a bias; `names` are inputs as well."""
    model = text_model(
        "g (float[n, 4] x) => (float[n, 3] y) <float[3, 4] w, float[3] bias>"
        " { t = Transpose(w) m = MatMul(x, t) y = Add(m, bias) }",
        w=random((3, 4), 1),
        bias=random((3,), 2),
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
        row=random((1, 6)),
        sizes=np.array([50, 6]),
    )


class Case(NamedTuple):
    """A model, the finding, inputs, and what the rewritten model has.

    `inputs` are names of the graph; None where they stay. `reduction` bounds the difference of the
    outputs, which are equal where it is 0.
    """

    module: ModuleType
    model: ModelProto
    finding: Finding
    feeds: Sequence[Feeds]
    operators: str
    inputs: Sequence[str] | None = None
    reduction: int = 64


FUSED: dict[str, Any] = {"module": fused_matmul_transposed, "finding": SHARED}
TURNED: dict[str, Any] = {"module": transpose_small_side, "finding": SHARED}
CASES = {
    "input": Case(
        inputs_without_initializers,
        listing("w", "bias"),
        finding("w"),
        [{"x": random((5, 4))}],
        "Add MatMul Transpose",
        inputs=["x", "bias"],
    ),
    "chain": Case(
        store_folded_result,
        chain(),
        finding(nodes=("Expand_1", "Exp_2")),
        [{"x": random((2, 6))}],
        "Add",
        reduction=0,
    ),
    "small side of a matrix": Case(
        model=tied(),
        feeds=[tied_feeds(rows) for rows in (0, 1, 5)],
        operators="Gather MatMul Transpose Transpose",
        **TURNED,
    ),
    "small side of a vector": Case(
        model=tied(()), feeds=[tied_feeds()], operators="Gather MatMul", **TURNED
    ),
    "small side of whole numbers": Case(
        model=tied(dtype=np.int32),
        feeds=[tied_feeds(3, dtype=np.int32)],
        operators="Gather MatMul Transpose Transpose",
        reduction=0,
        **TURNED,
    ),
    **{
        f"FusedMatMul of rank {len(sizes) + 1}, opset {opset}": Case(
            model=tied(sizes, opset=opset),
            feeds=[
                tied_feeds(*(size if isinstance(size, int) else free for size in sizes))
                for free in (0, 1, 3)
            ],
            operators="FusedMatMul Gather",
            **FUSED,
        )
        for sizes in ((), ("n",), ("b", "s"), ("b", 2, "s"))
        for opset in (9, 13, 21)
    },
}


@pytest.mark.parametrize("name", CASES)
def test_the_rewritten_model(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    changes_inputs = case.inputs is not None
    path = rewrite(
        case.module, case.model, case.finding, tmp_path, storage=None, overridable=changes_inputs
    )
    assert [each for each in operators(path) if each != "Constant"] == case.operators.split()
    before = [each.name for each in case.model.graph.input]
    after = [each.name for each in onnx.load(path, load_external_data=False).graph.input]
    assert after == (case.inputs if case.inputs is not None else before)
    bound = Bound.reordered(case.reduction).relative if case.reduction else 0.0
    for feeds in case.feeds:
        assert largest_difference(tmp_path / "original.onnx", path, feeds, tmp_path) <= bound


@pytest.mark.parametrize("output", ["y = Add (x, small)", "z = Mul (x, row) y = Add (z, small)"])
def test_only_constants_that_nothing_else_reads_are_removed(tmp_path: Path, output: str) -> None:
    model = chain(output)
    of = finding(nodes=("Expand_1", "Exp_2"))
    path = rewrite(store_folded_result, model, of, tmp_path, storage=None)
    names = [each.name for each in onnx.load(path, load_external_data=False).graph.initializer]
    assert ("row" in names) == ("row" in output)
    assert "sizes" not in names
    assert "Constant" not in operators(path)


@pytest.mark.parametrize(
    ("module", "model", "of", "reason"),
    [
        *(
            (
                inputs_without_initializers,
                listing("w"),
                finding(name),
                "none of the weights is listed as an input",
            )
            for name in ("x", "missing", "t", "bias")
        ),
        (
            store_folded_result,
            text_model("g (float[2, 6] x) => (float[2, 6] y) { big = Exp (x) y = Erf (big) }"),
            finding(nodes=("Exp_0",)),
            "it is not computed from constants alone",
        ),
        (
            transpose_small_side,
            tied(None, opset=13),
            SHARED,
            "in operator set 13 the product cannot be given its axes again",
        ),
        (
            fused_matmul_transposed,
            tied(dtype=np.float64),
            SHARED,
            "FusedMatMul does not support double on the CPU",
        ),
        (
            fused_matmul_transposed,
            tied(dtype=np.float16),
            SHARED,
            "FusedMatMul does not support float16 on the CPU",
        ),
    ],
)
def test_near_misses_are_refused(
    tmp_path: Path, module: ModuleType, model: ModelProto, of: Finding, reason: str
) -> None:
    assert refusal(module, model, of, tmp_path) == reason
