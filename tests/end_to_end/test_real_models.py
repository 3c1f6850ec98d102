"""Every real model profiles to the end with no flag at all."""

from pathlib import Path

import pytest

import memdiag

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_all_profile_with_no_flag(real_models: dict[str, Path]) -> None:
    endings = {}
    for name, path in real_models.items():
        profile = memdiag.profile(path, runs=2)
        endings[name] = (profile.outcome.status, profile.outcome.message)
        assert profile.model.weight_bytes
        assert profile.peak_rss_bytes >= profile.baseline_rss_bytes
    assert {name: end for name, end in endings.items() if end[0] != "completed"} == {}
    assert len(endings) >= 20


def test_a_model_that_does_not_run_for_a_second_of_sound_gets_a_chunk(
    real_models: dict[str, Path],
) -> None:
    profile = memdiag.profile(real_models["silero_vad"], runs=1)
    shapes = {given.name: given.shape for given in profile.inputs}
    assert shapes["input"] == (1, 512)
    tried = [note for note in profile.notes if "does not run at" in note]
    assert any("samples 16000" in note for note in tried)
    given = memdiag.profile(real_models["silero_vad"], runs=1, dims={"input:1": 512})
    assert {each.name: each.shape for each in given.inputs}["input"] == (1, 512)
    assert not any("does not run" in note for note in given.notes)
