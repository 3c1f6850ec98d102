"""Every recipe gives a valid model of the size asked for, embedded and external alike."""

import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from sample_models import load_recipes
from tests.sample_models.running import inputs, session

MEGABYTES = 2.0

every_recipe = pytest.mark.parametrize("name", load_recipes())


def initializers(path: Path) -> dict[str, NDArray[np.generic]]:
    """The initializers of the graph and of the branches directly in it."""
    graph = onnx.load_model(path).graph
    branches = [attribute.g for node in graph.node for attribute in node.attribute]
    return {
        tensor.name: onnx.numpy_helper.to_array(tensor)
        for part in (graph, *branches)
        for tensor in part.initializer
    }


@every_recipe
def test_the_name_is_the_file_name_and_the_summary_a_line(name: str) -> None:
    recipe = load_recipes()[name]
    assert recipe is sys.modules[f"sample_models.recipes.{name}"]
    assert 20 < len(recipe.SUMMARY) < 100
    assert "\n" not in recipe.SUMMARY


@every_recipe
@pytest.mark.parametrize("external", [False, True])
def test_the_model_is_valid(sample_model: Callable[..., Path], name: str, external: bool) -> None:
    path = sample_model(name, MEGABYTES, external)
    onnx.checker.check_model(str(path), full_check=True)
    assert path.with_name(path.name + ".data").exists() is external


@every_recipe
@pytest.mark.parametrize("flag", [False, True])
def test_both_forms_run_and_give_the_same(
    sample_model: Callable[..., Path], name: str, flag: bool
) -> None:
    embedded = session(sample_model(name, MEGABYTES, False))
    external = session(sample_model(name, MEGABYTES, True))
    given = inputs(embedded, flag=flag)
    (expected,) = embedded.run(None, given)
    (result,) = external.run(None, given)
    assert np.isfinite(expected).all()
    assert np.abs(expected).max() > 0
    np.testing.assert_array_equal(result, expected)


SIZED = ["tied_if", "two_gemms", "subgraph_weights", "plain_mlp", "qdq_matmul", "matmul_nbits"]
STEPPED = ["phi_like", "crnn", "denormal_conv"]
"""Samples whose graph of many nodes takes tens of kilobytes, and whose widths come in steps."""


@pytest.mark.parametrize(
    ("name", "megabytes"),
    [*product(SIZED, (0.5, MEGABYTES)), *product(STEPPED, (0.5, MEGABYTES, 8.0))],
)
def test_the_weights_take_what_was_asked(
    sample_model: Callable[..., Path], name: str, megabytes: float
) -> None:
    share, more = (0.08, 60_000) if name in STEPPED else (0.03, 0)
    size = sample_model(name, megabytes).stat().st_size
    assert size == pytest.approx(megabytes * 1e6, rel=share, abs=more)


@pytest.mark.parametrize(("name", "folded"), [("expand_bomb", True), ("spike", False)])
def test_only_the_bomb_is_folded_to_its_size(
    sample_model: Callable[..., Path], tmp_path: Path, name: str, folded: bool
) -> None:
    path = sample_model(name, MEGABYTES)
    assert path.stat().st_size < 10_000
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    session(path, options)
    size = (tmp_path / "optimized.onnx").stat().st_size
    assert (size < 10_000) is not folded
    assert not folded or size == pytest.approx(MEGABYTES * 1e6, rel=0.03)


def test_the_spike_is_an_activation_of_the_size_asked(sample_model: Callable[..., Path]) -> None:
    inferred = onnx.shape_inference.infer_shapes(onnx.load_model(sample_model("spike", MEGABYTES)))
    (large,) = (value for value in inferred.graph.value_info if value.name == "large")
    shape = [size.dim_value for size in large.type.tensor_type.shape.dim]
    assert np.prod(shape) * 4 == pytest.approx(MEGABYTES * 1e6, rel=0.03)


def test_the_tied_weight_is_gathered_and_multiplied_by(sample_model: Callable[..., Path]) -> None:
    path = sample_model("tied_if", MEGABYTES)
    (weight,) = initializers(path).values()
    (branching,) = onnx.load_model(path).graph.node
    nodes = [node for branch in branching.attribute for node in branch.g.node]
    users = [node.name for node in nodes if "model.shared.weight" in node.input]
    assert sorted(users) == ["embed/Gather", "lm/Transpose"]

    model = session(path)
    given = inputs(model, flag=True)
    (embedded,) = model.run(None, given)
    np.testing.assert_array_equal(embedded, weight[given["ids"]])
    (logits,) = model.run(None, inputs(model, flag=False))
    expected = given["hidden"].astype(np.float64) @ weight.T.astype(np.float64)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_only_the_subgraphs_hold_a_weight_twice(sample_model: Callable[..., Path]) -> None:
    twice = initializers(sample_model("subgraph_weights", MEGABYTES))
    assert set(twice) == {"first.projection.weight", "second.projection.weight"}
    assert len({array.tobytes() for array in twice.values()}) == 1
    for name in ("two_gemms", "plain_mlp"):
        own = initializers(sample_model(name, MEGABYTES))
        assert len({array.tobytes() for array in own.values()}) == len(own) > 1
