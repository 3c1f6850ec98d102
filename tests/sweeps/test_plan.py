"""The plan: every combination is one job, with the memory that it needs."""

from collections.abc import Sequence
from typing import Any

import pytest

from memdiag.errors import UsageError
from memdiag.records.sweep_job import SweepJob
from memdiag.sweeps.model_sources import ModelSource
from memdiag.sweeps.plan import (
    PROCESS_BYTES,
    WEIGHT_COPIES,
    JobSettings,
    models_without,
    plan_jobs,
    with_needed_memory,
)
from tests.sweeps.results import job

SETTINGS = JobSettings(runs=3, timeout_s=60)


def source(name: str, *dims: str, **values: Any) -> ModelSource:
    return ModelSource(name=name, address=name, digest=name, dim_names=frozenset(dims), **values)


def planned(
    models: Sequence[ModelSource], dims: dict[str, list[int]]
) -> list[tuple[str, dict[str, int]]]:
    """Return the model and the sizes of each job on one release."""
    jobs = plan_jobs(models, {"1.32.0": ""}, dims=dims, options={}, settings=SETTINGS)
    return [(each.model, each.dims) for each in jobs]


def test_every_combination_is_a_job() -> None:
    jobs = plan_jobs(
        [source("a", "batch", "seq"), source("b", "batch"), source("c"), source("d", problem="x")],
        {"1.24.4": "", "1.32.0": "bin/python"},
        dims={"batch": [1, 4], "seq": [16]},
        options={"x": ["0", "1"]},
        settings=SETTINGS,
    )
    assert len({each.key("machine") for each in jobs}) == len(jobs)
    by_model = {name: {each.dims_text for each in jobs if each.model == name} for name in "abcd"}
    assert by_model == {
        "a": {"batch=1,seq=16", "batch=4,seq=16"},
        "b": {"batch=1", "batch=4"},  # it has no other dimension
        "c": {""},
        "d": set(),
    }
    assert {(each.onnxruntime, each.python) for each in jobs} == {
        ("1.24.4", ""),
        ("1.32.0", "bin/python"),
    }
    assert len(jobs) == (2 + 2 + 1) * 2 * 2


def test_sizes_of_a_list_override_those_of_the_sweep() -> None:
    listed = source("a", "batch", dims={"batch": 7})
    assert planned([listed], {"batch": [1, 4]}) == [("a", {"batch": 7})]


def test_a_role_is_the_dimension_of_each_model_that_has_it() -> None:
    by_role = source("r", "N", "T", dim_roles={"batch": "N"})
    models = [by_role, source("a", "batch"), source("c", "other")]
    assert planned(models, {"batch": [1, 4]}) == [
        *(("r", {"N": 1}), ("r", {"N": 4}), ("a", {"batch": 1}), ("a", {"batch": 4}), ("c", {})),
    ]
    assert models_without(models, "batch") == ["c"]
    with pytest.raises(UsageError, match="'N' is also given as 'batch'"):
        planned(models, {"N": [2], "batch": [1]})
    # A list may name a size by role.
    listed = source("r", "N", dim_roles={"batch": "N"}, dims={"batch": 7})
    assert planned([listed], {"N": [1]}) == [("r", {"N": 7})]


def test_memory_is_estimated_once_for_all_releases_and_the_largest_comes_first() -> None:
    jobs = [
        job("small", digest="s"),
        job("large", digest="l"),
        job("large", digest="l", onnxruntime="1.24.4"),
        job("broken", digest="b"),
    ]
    asked: list[tuple[str, str]] = []

    def estimate(of: Sequence[SweepJob]) -> list[int | None]:
        asked.extend((each.model, each.onnxruntime) for each in of)
        return [{"small": 10, "large": 10**12}.get(each.model) for each in of]

    planned = with_needed_memory(jobs, {"b": 10**6}, estimate)
    assert sorted(model for model, _ in asked) == ["broken", "large", "small"]
    assert ("large", "1.32.0") in asked
    assert [(each.job.model, each.needed_bytes, each.is_estimated) for each in planned] == [
        ("large", 10**12, True),
        ("large", 10**12, True),
        ("broken", PROCESS_BYTES + WEIGHT_COPIES * 10**6, False),
        ("small", 10, True),
    ]
