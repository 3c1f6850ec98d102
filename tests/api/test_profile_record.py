from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import onnx
import pytest
from onnx import helper

from memdiag.api.profile_record import (
    RunDescription,
    _measured_generation,
    assemble_profile,
    measurement_notes,
)
from memdiag.model.model_file import open_model
from memdiag.records.profile import Run
from memdiag.runner.job import Job
from memdiag.runner.measured_child import MeasuredChild
from memdiag.units import MIB
from tests.reports import profiles
from tests.reports.control_groups import group
from tests.runner.conftest import fake_job

__all__ = ["fake_job"]


def test_a_provider_that_the_session_lacks_is_noted(fake_job: Callable[..., Job]) -> None:
    measured = MeasuredChild(fake_job({})).run()
    asked = fake_job({}, providers=("MyProvider", "CPUExecutionProvider"))
    found = [note for note in measurement_notes(measured, asked) if "without MyProvider" in note]
    assert found == [
        "onnxruntime created the session without MyProvider: it runs on CPUExecutionProvider"
    ]
    got = replace(measured, providers=asked.session.providers)
    assert not any("without" in note for note in measurement_notes(got, asked))
    ended = replace(measured, providers=None)  # before there was a session
    assert not any("without" in note for note in measurement_notes(ended, asked))


@pytest.mark.parametrize("has_begun", [True, False])
def test_peaks_are_called_sampled_only_where_the_child_reached_its_baseline(
    has_begun: bool, fake_job: Callable[..., Job]
) -> None:
    job = fake_job({})
    measured = MeasuredChild(job).run()
    phases = tuple(msgspec.structs.replace(phase, peak_kind="sampled") for phase in measured.phases)
    seen = replace(measured, phases=phases, baseline=measured.baseline if has_begun else None)
    notes = [note for note in measurement_notes(seen, job) if "high-water mark" in note]
    assert len(notes) == has_begun


@pytest.mark.parametrize(
    ("signal", "oom_kills", "reason"),
    [
        ("SIGKILL", 1, "the control group reached its memory limit of 512 MiB"),
        ("SIGKILL", 0, "killed by the system (SIGKILL; memory may be short)"),
        ("SIGABRT", 1, "the process was ended by SIGABRT"),
    ],
)
def test_a_kill_at_the_limit_of_the_control_group_is_called_so(
    signal: str, oom_kills: int, reason: str, fake_job: Callable[..., Job], tmp_path: Path
) -> None:
    job = fake_job({"create": [{"signal": signal}]})
    model = helper.make_model(helper.make_graph([], "g", [], []))
    onnx.save(model, tmp_path / "m.onnx")
    measured = MeasuredChild(job).run()
    assert measured.outcome.status == "killed"
    with open_model(tmp_path / "m.onnx") as file:
        description = RunDescription(inputs=(), dimensions=())
        profile = assemble_profile(
            file, job, description, measured, None, group(oom_kills=oom_kills)
        )
    assert reason in profile.outcome.message
    assert profile.environment.memory_limit_bytes == 512 * MIB


def test_the_growth_of_a_token_is_that_of_the_steps(fake_job: Callable[..., Job]) -> None:
    planned = profiles.generated().generation
    assert planned is not None
    measured = MeasuredChild(fake_job({})).run()
    runs = tuple(Run(latency_s=0.1, rss_bytes=MIB + 3000 * step) for step in range(5001))
    many = _measured_generation(planned, replace(measured, runs=runs, cache_bytes=7))
    assert many is not None
    assert many.growth_bytes_per_token == 3000
    assert many.cache_bytes == 7
    few = _measured_generation(planned, replace(measured, runs=runs[:3]))
    assert few is not None
    assert few.growth_bytes_per_token is None
    assert _measured_generation(None, measured) is None
