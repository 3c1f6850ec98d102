"""Tree ensembles: their attributes are named, found in memory and estimated with their tables."""

from collections.abc import Callable
from pathlib import Path

import pytest
from onnx import NodeProto

import memdiag
from memdiag.model.attribute_lists import attribute_lists, list_values
from memdiag.model.model_file import open_model
from tests.ort.profiling import PINNED, assert_as_estimated
from tests.ort.trees import ensemble, regressor, saved_trees


def test_long_lists_are_listed_with_their_sizes(tmp_path: Path) -> None:
    # 2 trees of 8 inner nodes and leaves each are too short, 100 of them are not.
    with open_model(saved_trees(regressor(2, 3), tmp_path)) as short:
        assert not list(attribute_lists(short))
    with open_model(saved_trees(regressor(1000, 3), tmp_path)) as model:
        found = {each.weight.name: each for each in attribute_lists(model)}
        values = found["trees.nodes_values"]
        assert (values.weight.dtype, values.weight.shape) == ("float", (15_000,))
        assert found["trees.nodes_featureids"].weight.nbytes == 15_000 * 8
        assert found["trees.nodes_modes"].weight.dtype == "string"
        expected = next(
            each for each in regressor(1000, 3).attribute if each.name == "nodes_values"
        )
        assert list_values(model, values).tolist() == list(expected.floats)


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (regressor, {"trees.nodes_values", "trees.nodes_truenodeids", "trees.target_weights"}),
        (ensemble, {"trees.nodes_splits", "trees.nodes_truenodeids", "trees.leaf_weights"}),
    ],
)
def test_attributes_and_tables_are_found_and_estimated(
    tmp_path: Path, make: Callable[[int, int], NodeProto], names: set[str]
) -> None:
    path = saved_trees(make(60, 10), tmp_path)
    profile = memdiag.profile(path, runs=1, environment=PINNED)
    assert profile.outcome.status == "completed"
    assert profile.attribution is not None
    found = {name for copy in profile.attribution.copies for name in copy.weights}
    assert names <= found
    assert profile.estimate is not None
    assert_as_estimated(profile, rel=0.08, mebibytes=3)
    tables = {term.name: term.bytes for term in profile.estimate.phases[-1].kept_terms}
    nodes = 60 * (2**11 - 1)
    assert tables["tree tables"] == nodes * 24 + 60 * 2**10 * 16
