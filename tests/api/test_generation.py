"""A decoder that is run as a program generates a text: phases, cache, growth, and mistakes."""

import json
from pathlib import Path
from typing import Any

import pytest

import memdiag
from memdiag.errors import UsageError
from memdiag.records.codec import decode, encode
from memdiag.records.phases import GENERATION_PHASES, PHASES
from memdiag.records.profile import Profile
from memdiag.reports.estimate import REPORT
from tests.decoders import TOKEN_BYTES, decoder, genai_config, saved

PREFILL, STEPS = 70, 20


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    model = saved(tmp_path_factory.mktemp("decoder"), decoder())
    return memdiag.profile(model, prefill=PREFILL, steps=STEPS, dims={"batch": 8}, xray="phases")


def test_a_prompt_and_steps_are_the_phases(profile: Profile) -> None:
    assert profile.outcome.status == "completed"
    names = [phase.name for phase in profile.phases]
    others = [name for name in PHASES if name not in (*GENERATION_PHASES, "first_run", "steady")]
    assert names == [*others, *GENERATION_PHASES]
    assert len(profile.runs) == STEPS
    assert profile.steady_rss_bytes is not None
    notes = {each.name: each.note for each in profile.inputs}
    assert notes["past_key_values.0.key"] == "empty, then present.0.key of the call before"
    # Other dimensions have another size in each call.
    assert [(each.name, each.size) for each in profile.dimensions] == [("batch", 8)]


def test_the_cache_has_the_size_of_its_formula(profile: Profile) -> None:
    generation = profile.generation
    assert generation is not None
    assert generation.found_by == "names"
    assert generation.prefill_cache_bytes == 8 * PREFILL * TOKEN_BYTES
    assert generation.cache_bytes == 8 * (PREFILL + STEPS) * TOKEN_BYTES
    assert generation.cache.bytes_at(generation.tokens) == generation.cache_bytes
    assert generation.growth_bytes_per_token is not None


def test_the_cache_is_an_owner(profile: Profile) -> None:
    assert profile.attribution is not None
    (owner,) = [each for each in profile.attribution.owners if each.kind == "kv_cache"]
    assert owner.bytes == 8 * (PREFILL + STEPS) * TOKEN_BYTES
    assert owner.name == "1 layer × 2 × 2 heads × 32 × 90 tokens × 4 bytes × batch 8"
    by_phase = {each.phase: each.attribution for each in profile.phase_attributions}
    assert by_phase["prefill"].bytes_of("kv_cache") == 8 * PREFILL * TOKEN_BYTES
    assert by_phase["prepack"].bytes_of("kv_cache") == 0


def test_the_estimate_has_the_same_phases(profile: Profile) -> None:
    estimate = profile.estimate
    assert estimate is not None
    assert [phase.name for phase in estimate.phases][-2:] == list(GENERATION_PHASES)
    for phase in estimate.phases[-2:]:
        measured = profile.phase(phase.name)
        assert measured is not None
        predicted = profile.baseline_rss_bytes + phase.peak_bytes
        assert predicted == pytest.approx(measured.peak_rss_bytes, rel=0.1)


def test_an_estimate_has_the_cache_as_a_term(tmp_path: Path) -> None:
    model = saved(tmp_path, decoder())
    estimate = memdiag.estimate(model, prefill=70, steps=20, dims={"batch": 8})
    assert estimate.generation is not None
    assert estimate.generation.cache.bytes_at(90) == 8 * 90 * TOKEN_BYTES
    decode = estimate.point.phases[-1]
    assert decode.name == "decode"
    terms = [
        {term.name: term.bytes for term in each} for each in (decode.peak_terms, decode.kept_terms)
    ]
    # During the last step the past is in memory next to what the step returns.
    assert terms[0]["KV cache"] == 8 * (89 + 90) * TOKEN_BYTES
    assert terms[1]["KV cache"] == 8 * 90 * TOKEN_BYTES
    fewer = memdiag.estimate(model, prefill=6, steps=2, dims={"batch": 8}).point
    assert fewer.steady_bytes < estimate.point.steady_bytes
    text = REPORT.render(estimate, "markdown").decode()
    assert "with a prompt of 70 tokens and 20 steps" in text
    assert "1 layer × 2 × 2 heads × 32 × 90 tokens × 4 bytes × batch 8" in text


def test_a_model_for_genai_is_run_by_its_configuration(tmp_path: Path) -> None:
    saved(tmp_path, decoder())
    config = genai_config()
    config["model"]["decoder"]["num_hidden_layers"] = 2
    path = tmp_path / "genai_config.json"
    path.write_text(json.dumps(config))
    profile = memdiag.profile(tmp_path, steps=2, prefill=4, xray="none")
    assert profile.outcome.status == "completed"
    assert profile.model.path == str(tmp_path / "decoder.onnx")
    generation = profile.generation
    assert generation is not None
    assert generation.found_by == "genai"
    assert (generation.max_tokens, generation.buffer_tokens) == (96, 80)
    assert "states 2 layers, but the cache of the model has 1" in " ".join(profile.notes)
    assert "key and value heads" not in " ".join(profile.notes)
    estimate = memdiag.estimate(path, steps=2, prefill=4)
    assert estimate.generation is not None
    assert estimate.generation.feed == generation.feed
    text = REPORT.render(estimate, "markdown").decode()
    assert "allocates the cache for 80 tokens at once" in text
    with pytest.raises(UsageError, match=r"96 positions"):
        memdiag.estimate(path, steps=96, prefill=4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"runs": 3}, "Use steps"),
        ({"fit_bytes": 1 << 30}, "fit_bytes and measure cannot be used"),
        ({"measure": True}, "fit_bytes and measure cannot be used"),
        ({"dims": {"batch": (1, 4)}}, "has several sizes"),
        ({"feed": ("gone.*=past.*",)}, "no output is called"),
    ],
)
def test_an_estimate_of_a_generation_refuses_what_does_not_apply(
    tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        memdiag.estimate(saved(tmp_path, decoder()), steps=4, **arguments)


def test_the_record_is_read_again_and_older_ones_too(profile: Profile) -> None:
    assert decode(encode(profile), Profile) == profile
    older = json.loads(encode(profile))
    del older["generation"]
    assert decode(json.dumps(older).encode(), Profile).generation is None


@pytest.mark.parametrize(
    ("names", "arguments", "message"),
    [
        ({"past": "left", "present": "right"}, {"steps": 4}, "so that there is no cache"),
        ({}, {"steps": 4, "runs": 3}, "Use steps"),
        ({}, {"steps": 4, "run": False}, "run=False"),
        ({}, {"prefill": 0}, "prefill must be a number of 1 or more"),
    ],
)
def test_a_profile_of_a_generation_refuses_what_does_not_apply(
    tmp_path: Path, names: dict[str, str], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        memdiag.profile(saved(tmp_path, decoder(**names)), **arguments)  # type: ignore[arg-type]
