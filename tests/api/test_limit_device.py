"""The smallest `gpu_mem_limit`, found with trials on a scripted GPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import memdiag
from memdiag.defaults import CUDA_PROVIDER
from memdiag.deploy.limit_bisection import LIMIT_CONFIRMATIONS, LIMIT_PRECISION
from memdiag.errors import UsageError
from memdiag.records.codec import decode, encode
from memdiag.records.limit import MemoryLimit
from memdiag.reports.limit import limit_compose_yaml, limit_kubernetes_yaml
from memdiag.reports.limit.device import device_limit_program
from memdiag.reports.limit.sentences import limit_headline, suggestion_reason
from memdiag.runner.job import Job
from memdiag.units import MIB
from tests.deploy.scripted_devices import OUTSIDE, VALUES, WEIGHTS, scripted_device_child
from tests.device.recorded_models import recorded_model
from tests.device.remedies import DEVICE_NAME

NEEDED = WEIGHTS + VALUES
Limited = Callable[..., MemoryLimit]


@pytest.fixture
def limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Limited:
    """A function that searches for the limit of a model on a scripted GPU."""
    monkeypatch.setattr("memdiag.api.limit.require_cuda", lambda: None)
    monkeypatch.setattr("memdiag.api.limit.parent_group", no_group)

    def limit(at_start: Callable[[Job], None] = lambda job: None, **options: Any) -> MemoryLimit:
        monkeypatch.setattr(
            "memdiag.deploy.device_trial.MeasuredChild", scripted_device_child(at_start)
        )
        arguments = {"providers": [CUDA_PROVIDER], "dims": {"n": 1}, "runs": 2, **options}
        return memdiag.limit(recorded_model("dense", tmp_path), **arguments)

    return limit


def no_group() -> None:
    pytest.fail("the memory on a GPU needs no control group")


def test_the_smallest_limit_is_found_and_confirmed(limited: Limited) -> None:
    limit = limited()
    assert limit.smallest_bytes is not None
    assert NEEDED <= limit.smallest_bytes <= NEEDED * (1 + LIMIT_PRECISION) + 2 * MIB
    confirming = [point for point in limit.limited if point.limit_bytes == limit.smallest_bytes]
    assert [point.outcome for point in confirming] == ["completed"] * LIMIT_CONFIRMATIONS
    assert limit.is_measured_under_limits
    assert limit.limit_bytes == pytest.approx(1.2 * limit.smallest_bytes, abs=2 * MIB)
    assert limit.device is not None
    assert limit.device.name == DEVICE_NAME
    assert (limit.message, limit.notes, limit.group_version) == ("", (), None)
    assert (limit.measured_peak_bytes, limit.estimated_bytes, limit.counted) == (None, None, None)
    assert decode(encode(limit), MemoryLimit) == limit


def test_the_answer_says_what_the_limit_is_and_what_it_costs(limited: Limited) -> None:
    limit = limited(at_bytes=[NEEDED, NEEDED - MIB, WEIGHTS - MIB])
    answer = limit_headline(limit)
    assert answer.line.startswith("dense.onnx: set gpu_mem_limit to 202 MiB. It works in 168 MiB")
    assert "and fails in 167 MiB" in answer.first
    assert "on the GPU 841 MiB, 929 MiB without a limit" in answer.second
    assert (OUTSIDE + NEEDED, OUTSIDE + 2 * WEIGHTS) == (841 * MIB, 929 * MIB)
    assert "latency 10 ms, 10 ms without a limit" in answer.second
    sentence = f"Available memory of {VALUES - MIB} is smaller than requested bytes of {VALUES}"
    assert f"In 167 MiB it fails in first_run: {sentence}." in answer.second
    assert DEVICE_NAME in answer.facts
    assert "slowdown" not in f"{answer.line} {answer.second} {suggestion_reason(limit)}"


def test_the_program_and_the_containers_are_for_a_gpu(limited: Limited) -> None:
    limit = limited(at_bytes=[NEEDED])
    values: dict[str, Any] = {}
    exec(device_limit_program(limit).partition("session = ")[0], values)
    expected = [(CUDA_PROVIDER, {"gpu_mem_limit": str(limit.limit_bytes)})]
    assert values["providers"] == expected
    text = limit_kubernetes_yaml(limit)
    assert yaml.safe_load(text) == {"resources": {"limits": {"nvidia.com/gpu": 1}}}
    assert "# Memory of a GPU is not a resource of Kubernetes" in text
    service = yaml.safe_load(limit_compose_yaml(limit))["services"]["dense"]
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}


def test_a_search_that_ends_early_keeps_its_result(limited: Limited) -> None:
    started: list[Job] = []

    def interrupt(job: Job) -> None:
        started.append(job)
        if len(started) == 5:
            raise KeyboardInterrupt

    limit = limited(interrupt)
    assert (limit.message, len(limit.points)) == ("interrupted", 4)
    answer = limit_headline(limit)
    assert (answer.ended, answer.ended_label) == ("interrupted", "Ended early")


def test_a_limit_that_is_given_is_not_searched_for(limited: Limited) -> None:
    with pytest.raises(UsageError, match="gpu_mem_limit is what is searched for"):
        limited(provider_options={CUDA_PROVIDER: {"gpu_mem_limit": "1"}})


def test_without_a_gpu_it_ends_at_once(tmp_path: Path) -> None:
    steps: list[str] = []
    with pytest.raises(UsageError, match="CUDAExecutionProvider is not there"):
        memdiag.limit(
            recorded_model("dense", tmp_path), providers=[CUDA_PROVIDER], on_progress=steps.append
        )
    assert steps == []
