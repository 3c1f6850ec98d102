"""Which weights are looked for, and what the graph says of their use."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from memdiag.attribution.search_target import WeightContent, weight_contents
from memdiag.model.model_file import open_model
from memdiag.records.attribution import Unidentifiable
from tests.attribution.provenance_models import Models
from tests.builders import build, noise, saved

WEIGHT = noise(9, 9)


def contents(
    folder: Path, body: str, *tensors: TensorProto, **weights: Any
) -> tuple[tuple[WeightContent, ...], tuple[Unidentifiable, ...]]:
    model = build(f"(x) => (y) {{ {body} }}", opset=21, weights=weights)
    model.graph.initializer.extend(tensors)
    with open_model(saved(model, folder)) as opened:
        # The values are views of the file: they outlive it.
        return weight_contents(opened)


def by_name(groups: tuple[WeightContent, ...]) -> dict[str, WeightContent]:
    return {name: group for group in groups for name in group.names}


def test_a_weight_comes_with_its_hints_and_readers(tmp_path: Path) -> None:
    body = (
        "same = Identity (w) [turn] t = Transpose <perm = [2, 0, 1]> (same) "
        "[product] y = MatMul (x, t)"
    )
    seen = by_name(contents(tmp_path, body, w=noise(8, 9, 10))[0])
    assert seen["w"].hints.permutations == ((2, 0, 1),)
    assert {(reader.node.label, reader.through) for reader in seen["w"].readers} >= {
        ("turn", ("Identity",)),
        ("product", ("Identity", "Transpose")),
    }


def test_equal_content_is_one_subject(tmp_path: Path) -> None:
    same = noise(32, 16)
    other = noise(32, 16, seed=1)
    seen = by_name(contents(tmp_path, "y = Sum (x, a, b, other)", a=same, b=same, other=other)[0])
    assert seen["a"] is seen["b"]
    assert seen["a"].names == ("a", "b")
    assert seen["other"].names == ("other",)


def test_equal_content_in_other_shapes_and_types_is_looked_for_in_each(tmp_path: Path) -> None:
    same = noise(32, 16)
    groups, _ = contents(
        tmp_path,
        "[turn] t = Transpose <perm = [1, 0]> (a) [conv] y = Conv <group = 2> (x, wide)",
        numpy_helper.from_array(same, "b"),
        numpy_helper.from_array(same.view(np.int32), "bits"),
        a=same,
        wide=same.reshape(8, 16, 2, 2),
    )
    forms = {(group.values.dtype.name, group.values.shape): group for group in groups}
    flat, wide, bits = ("float32", (32, 16)), ("float32", (8, 16, 2, 2)), ("int32", (32, 16))
    assert set(forms) == {flat, wide, bits}
    assert {group.names for group in groups} == {("a", "wide", "b", "bits")}
    readers = {tuple(reader.node.label for reader in group.readers) for group in groups}
    assert readers == {("turn", "conv")}
    assert forms[flat].hints.permutations == ((1, 0),)
    assert forms[flat].hints.groups == ()
    assert forms[wide].hints.groups == (2,)


def test_bfloat16_is_told_from_the_integers_that_carry_it(tmp_path: Path) -> None:
    bits = noise(16, 24, dtype=np.float16).view(np.uint16)
    half = helper.make_tensor("half", TensorProto.BFLOAT16, bits.shape, bits.tobytes(), raw=True)
    groups, _ = contents(tmp_path, "y = Sum (x, integers)", half, integers=bits)
    types = {group.values.dtype.name: group.values.tobytes() for group in groups}
    assert types == {"bfloat16": bits.tobytes(), "uint16": bits.tobytes()}


@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        (np.zeros((64, 64), np.float32), "the same few values throughout"),
        (np.full((64, 64), 2.5, np.float32), "the same few values throughout"),
        (noise(8), "smaller than 256 bytes each"),
    ],
)
def test_what_content_cannot_tell_is_counted_and_not_looked_for(
    tmp_path: Path, weight: np.ndarray, reason: str
) -> None:
    groups, indistinct = contents(tmp_path, "y = Sum (x, w, real)", w=weight, real=WEIGHT)
    assert set(by_name(groups)) == {"real"}
    (group,) = indistinct
    found = (group.reason, group.count, group.bytes, group.weights)
    assert found == (reason, 1, weight.nbytes, ("w",))


def test_constants_that_the_runtime_made_are_counted_beside_those_of_the_model(
    tmp_path: Path,
) -> None:
    """Large ones: they are what most of the heap is, though no content proves it."""
    zeros = np.zeros((64, 64), np.float32)
    small = np.zeros(4, np.float32)
    with ExitStack() as stack:
        models = Models(tmp_path, stack)
        original = models.target("y = Sum (x, w, zeros)", w=WEIGHT, zeros=zeros)
        body = "y = Sum (x, w, zeros, made, small)"
        _, optimized = models.optimized(
            original, body, w=WEIGHT, zeros=zeros, made=zeros, small=small
        )
    (group,) = optimized.unidentifiable
    assert (group.count, group.bytes, group.weights) == (1, zeros.nbytes, ("made",))


def test_strings_are_not_looked_for(tmp_path: Path) -> None:
    text = numpy_helper.from_array(np.array(["a" * 200, "b" * 200, "c"], object), "t")
    groups, indistinct = contents(tmp_path, "y = Sum (x, w)", text, w=WEIGHT)
    assert set(by_name(groups)) == {"w"}
    assert [group.reason for group in indistinct] == ["strings, which have no fixed layout"]


def test_a_weight_of_a_subgraph_is_named_by_its_path(tmp_path: Path) -> None:
    values = ", ".join(f"{value}.25" for value in range(256))
    branch = f"() => (out) <float[16, 16] w = {{{values}}}> {{ out = Add (w, w) }}"
    body = f"[if] y = If (x) <then_branch = a {branch}, else_branch = b {branch}>"
    seen = by_name(contents(tmp_path, body)[0])
    assert set(seen["if/then_branch/w"].names) == {"if/then_branch/w", "if/else_branch/w"}
