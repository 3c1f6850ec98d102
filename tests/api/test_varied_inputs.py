"""Which inputs have other contents in each run, and where it is set and recorded."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import memdiag
from memdiag.api.inputs import describe_inputs, save_inputs
from memdiag.model.inputs import plan_inputs
from memdiag.model.model_file import open_model
from tests.api.small_models import save_model

ROWS = 9
# The type of each input, and how its contents vary.
INPUTS: dict[str, tuple[str, Any]] = {
    "ids": ("int64", (0, ROWS)),
    "half": ("float16", "bits"),
    "single": ("float", "bits"),
    "twice": ("double", "bits"),
    # Only floating-point values have bits that change little, and only indices a known range.
    "pair": ("complex64", None),
    "brain": ("bfloat16", None),
    "count": ("int32", None),
    "flag": ("bool", None),
    "text": ("string", "text"),
    "attention_mask": ("int64", None),
    "given": ("float", None),
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model that reads rows of a table by `ids`, and passes the other inputs on."""
    inputs = ", ".join(f"{kind}[4] {name}" for name, (kind, _) in INPUTS.items())
    copies = " ".join(f"{name}_out = Identity ({name})" for name in INPUTS)
    text = f"g ({inputs}) => (float[4, 2] rows) {{ rows = Gather (table, ids) {copies} }}"
    table = np.arange(2 * ROWS, dtype=np.float32).reshape(ROWS, 2)
    return save_model(tmp_path / "m.onnx", text, table=table)


@pytest.fixture
def small_model(tmp_path: Path) -> Path:
    text = "g (float[4] x, float[4] given) => (float[4] y) { y = Add(x, given) }"
    return save_model(tmp_path / "small.onnx", text)


def test_floats_indices_and_texts_vary_and_nothing_else_does(model: Path, tmp_path: Path) -> None:
    given = {"given": np.ones(4, np.float32)}
    with open_model(model) as file:
        plans = plan_inputs(file, dims={}, given=given)
    feeds = save_inputs(plans, given, tmp_path / "in")
    assert {feed.name: feed.vary for feed in feeds} == {
        name: vary for name, (_, vary) in INPUTS.items()
    }
    same = save_inputs(plans, given, tmp_path / "same", same_inputs=True)
    assert {feed.vary for feed in same} == {None}
    varied = {name for name, (_, vary) in INPUTS.items() if vary is not None}
    assert {each.name for each in describe_inputs(plans) if each.varied} == varied


@pytest.mark.usefixtures("equal_latency")
def test_profiles_and_comparisons_name_the_inputs_that_varied(small_model: Path) -> None:
    given = {"given": np.ones(4, np.float32)}
    profile = memdiag.profile(small_model, inputs=given, runs=1, xray="none")
    models = [small_model, small_model]
    found = memdiag.compare(models, inputs=given, runs=1, repeats=1, xray=False)
    for each in (profile, *(column.profile for column in found.columns)):
        assert each is not None
        assert each.outcome.status == "completed"
        assert [value.name for value in each.inputs if value.varied] == ["x"]
