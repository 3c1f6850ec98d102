"""Trials of a model under limits of the memory on a GPU, with a scripted child."""

from pathlib import Path

import pytest

from memdiag.defaults import CUDA_PROVIDER
from memdiag.deploy import device_trial
from memdiag.deploy.device_trial import DeviceTrials
from memdiag.runner.job import Job, SessionConfig
from memdiag.units import MIB
from tests.deploy.scripted_devices import (
    LATENCY_S,
    OUTSIDE,
    VALUES,
    WEIGHTS,
    limit_of,
    scripted_device_child,
)

SESSION = SessionConfig(
    providers=(CUDA_PROVIDER,), provider_options={CUDA_PROVIDER: {"device_id": "0"}}
)
JOB = Job(model=Path("m.onnx"), session=SESSION, records_device=True, records_allocations=False)


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """The jobs of all children."""
    started: list[Job] = []
    monkeypatch.setattr(device_trial, "MeasuredChild", scripted_device_child(started.append))
    return started


@pytest.fixture
def trials(jobs: list[Job]) -> DeviceTrials:
    return DeviceTrials(job=JOB, timeout_s=7.0)


def test_without_a_limit_the_arena_is_known_and_what_it_leaves_empty(
    trials: DeviceTrials, jobs: list[Job]
) -> None:
    point = trials.measure(None)
    assert point.is_completed
    assert point.peak_bytes == 2 * WEIGHTS
    assert point.device_bytes == OUTSIDE + 2 * WEIGHTS
    assert point.latency_s == LATENCY_S
    assert trials.device is not None
    assert [limit_of(job) for job in jobs] == [None]


def test_a_limit_is_an_option_of_the_provider_next_to_others(
    trials: DeviceTrials, jobs: list[Job]
) -> None:
    point = trials.measure(200 * MIB)
    assert (point.limit_bytes, point.outcome) == (200 * MIB, "completed")
    assert (point.peak_bytes, point.device_bytes) == (200 * MIB, OUTSIDE + 200 * MIB)
    options = jobs[0].session.provider_options[CUDA_PROVIDER]
    assert options == {"device_id": "0", "gpu_mem_limit": str(200 * MIB)}
    assert jobs[0].limits.timeout_s == 7.0
    assert trials.job == JOB


@pytest.mark.parametrize(
    ("limit", "phase", "available", "requested"),
    [
        (WEIGHTS - MIB, "initialize", WEIGHTS - MIB, WEIGHTS),
        (WEIGHTS + VALUES - MIB, "first_run", VALUES - MIB, VALUES),
    ],
)
def test_what_a_limit_leaves_too_little_for_is_in_the_words_of_onnxruntime(
    limit: int, phase: str, available: int, requested: int, trials: DeviceTrials
) -> None:
    point = trials.measure(limit)
    assert (point.outcome, point.phase) == ("failed", phase)
    sentence = f"Available memory of {available} is smaller than requested bytes of {requested}"
    assert point.message == sentence
    assert (point.device_bytes, point.latency_s) == (None, None)


def test_without_lines_of_the_log_the_arena_is_not_known(
    trials: DeviceTrials, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = scripted_device_child(has_log=False)
    monkeypatch.setattr(device_trial, "MeasuredChild", child)
    point = trials.measure(None)
    assert point.peak_bytes is None
    assert trials.rss_bytes == OUTSIDE + 2 * WEIGHTS
