"""Options of the CUDA provider without effect, and a provider that was not used."""

from typing import Any

import msgspec
import pytest

from memdiag.device.recording import DeviceRecording, ModelWeight
from memdiag.rules.device import (
    device_findings,
    device_memory_limit_below_weights,
    provider_fallback,
    unknown_provider_option,
)
from memdiag.session_options import CUDA_PROVIDER_OPTIONS
from memdiag.units import MIB
from tests.device.recorded_sessions import NAMES, raw, recorded

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
OPTION_RULES = {
    device_memory_limit_below_weights.RULE.name,
    provider_fallback.RULE.name,
    unknown_provider_option.RULE.name,
}
OUTSIDE_ARENA = {"session.use_device_allocator_for_initializers": "1"}


def with_session(*, weight_bytes: int = 0, **changes: Any) -> DeviceRecording:
    """Return a recording whose session was asked for with `changes`."""
    recording = recorded("dense_default")
    assert recording.session is not None
    return msgspec.structs.replace(
        recording,
        session=msgspec.structs.replace(recording.session, **changes),
        weights=(ModelWeight(name="w", bytes=weight_bytes),),
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_options_of_recorded_sessions_are_known_and_in_effect(name: str) -> None:
    data = raw(name)
    in_effect = data["options_in_effect"]
    assert in_effect.keys() == CUDA_PROVIDER_OPTIONS
    assert {option: in_effect[option] for option in data["provider_options"]} == (
        data["provider_options"]
    )
    findings, _ = device_findings(recorded(name))
    assert OPTION_RULES.isdisjoint({finding.name for finding in findings})


@pytest.mark.parametrize(
    ("option", "ending"),
    [
        ("arena_extend_strategie", "strategie. Did you mean arena_extend_strategy?"),
        ("zzz", "has no option zzz."),
        (*OUTSIDE_ARENA, "It is a configuration entry of the session or of a run."),
    ],
)
def test_an_unknown_option_is_found_with_what_was_meant(option: str, ending: str) -> None:
    recording = with_session(provider_options={option: "0", "use_tf32": "0"})
    (finding,) = unknown_provider_option.detect(recording)
    assert finding.message.startswith("The CUDA provider of this release has no option")
    assert finding.message.endswith(ending)


def test_an_option_is_not_called_unknown_where_the_session_did_not_list_any() -> None:
    recording = with_session(provider_options={"zzz": "0"}, known_options=None)
    assert not list(unknown_provider_option.detect(recording))
    without = msgspec.structs.replace(recording, session=None)
    assert device_findings(without)[0] == device_findings(recording)[0]


@pytest.mark.parametrize(
    ("limit", "entries", "is_found"),
    [
        (str(100 * MIB - 1), {}, True),
        (str(100 * MIB), {}, False),
        (str(2**64 - 1), {}, False),
        ("no number", {}, False),
        ("0", {}, False),  # no limit
        (str(MIB), OUTSIDE_ARENA, False),  # the limit is the arena's
    ],
)
def test_a_limit_below_the_weights_is_found_if_no_session_was_created(
    limit: str, entries: dict[str, str], is_found: bool
) -> None:
    recording = with_session(
        providers=None,
        provider_options={"gpu_mem_limit": limit},
        entries=entries,
        weight_bytes=100 * MIB,
    )
    findings = list(device_memory_limit_below_weights.detect(recording))
    assert len(findings) == is_found
    if is_found:
        assert findings[0].bytes == 1
        assert findings[0].message.endswith("100 MiB, and the weights of the file take 100 MiB.")


def test_a_limit_with_which_the_session_was_created_is_not_found() -> None:
    recording = with_session(
        providers=(CUDA, CPU), provider_options={"gpu_mem_limit": "1"}, weight_bytes=MIB
    )
    assert not list(device_memory_limit_below_weights.detect(recording))


WARNING = f"Failed to create {CUDA}. Require cuDNN 9.* and CUDA 13.*."


@pytest.mark.parametrize(
    ("providers", "is_found"),
    [((CPU,), True), ((CUDA, CPU), False), (None, False)],
)
def test_a_provider_that_the_session_lacks_is_found_with_the_warning(
    providers: tuple[str, ...] | None, is_found: bool
) -> None:
    recording = with_session(providers=providers, warnings=("another", WARNING))
    findings = list(provider_fallback.detect(recording))
    assert len(findings) == is_found
    if is_found:
        assert findings[0].message == (
            f"onnxruntime created the session without {CUDA}: it runs on {CPU}."
        )
        assert findings[0].detail == f"onnxruntime warned: {WARNING}"


def test_several_missing_providers_are_one_finding() -> None:
    recording = with_session(requested_providers=(CUDA, "Other", CPU), providers=(CPU,))
    (finding,) = provider_fallback.detect(recording)
    assert f"without {CUDA}, Other: it runs on {CPU}." in finding.message
