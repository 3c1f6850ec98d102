"""The GPU in the report of an X-ray of a process: arenas, and what NVML reports of the process."""

import re

import pytest

from memdiag.detail import Detail
from memdiag.records.attribution import Attribution, DeviceArena, DeviceUse, SearchedModel
from memdiag.units import MIB
from tests.reports import attributions, profiles, tied_xray
from tests.reports.rendering import markdown, printed, replaced, words

CUDA = DeviceArena(
    device="Cuda",
    used_bytes=300 * MIB,
    slack_bytes=212 * MIB,
    largest_slack_bytes=128 * MIB,
    region_count=3,
)
PINNED = DeviceArena(device="CudaPinned", used_bytes=4 * MIB, slack_bytes=12 * MIB)
USE = DeviceUse(name="NVIDIA H100", process_bytes=1200 * MIB)


def xrayed(*arenas: DeviceArena, device: DeviceUse | None = USE) -> Attribution:
    return attributions.attribution(device_arenas=arenas, device=device)


def test_arenas_are_listed_with_regions_and_the_largest_free_chunk() -> None:
    text = printed(xrayed(PINNED, CUDA), detail=Detail.USUAL)
    assert re.search(r"^arena \(MiB\) +in use +free +largest free chunk +regions$", text, re.M)
    assert re.search(r"^Cuda +300 +212 +128 +3$", text, re.M)
    assert re.search(r"^CudaPinned \(memory of the host\) +4 +12\b", text, re.M)
    assert text.index("Cuda ") < text.index("CudaPinned")


def test_the_rest_of_the_process_is_no_arena_and_pinned_memory_is_not_on_the_gpu() -> None:
    text = words(xrayed(CUDA, PINNED))
    assert "The process has 1.17 GiB on NVIDIA H100 (NVML): 512 MiB in onnxruntime's arenas" in text
    assert "1.17 GiB on NVIDIA H100 (NVML)." in words(xrayed(PINNED))
    assert "has 1.17 GiB on the GPU (NVML)." in words(xrayed(device=replaced(USE, name="")))


def test_a_figure_that_nvml_does_not_have_is_not_0() -> None:
    reason = "NVML lists the process with 0 bytes, as under WSL"
    use = DeviceUse(name="GPU", process_bytes=None, missing_reason=reason)
    text = words(xrayed(CUDA, device=use))
    assert f"What the process has on the GPU in all is not known: {reason}." in text
    assert re.search(r"Cuda +300", text)


def test_a_process_without_a_device_has_no_such_section() -> None:
    for text in (words(xrayed(device=None)), markdown(xrayed(device=None))):
        assert "GPU" not in text
        assert "arena (MiB)" not in text


@pytest.mark.parametrize(("arena", "is_on_device"), [(CUDA, True), (PINNED, False)])
def test_weights_on_a_device_are_not_called_missing(arena: DeviceArena, is_on_device: bool) -> None:
    model = SearchedModel(name="a.onnx", weight_bytes=300 * MIB)
    record = replaced(tied_xray.attribution(), copies=(), models=(model,), device_arenas=(arena,))
    text = words(record)
    assert ("No weight was found in the memory of the host" in text) is is_on_device
    assert ("Check that the process" in text) is not is_on_device


def test_a_profile_lists_the_arenas_on_request() -> None:
    profile = replaced(profiles.tied_if(), attribution=xrayed(CUDA, device=None))
    assert "largest free chunk" in printed(profile, detail=Detail.ALL)
    assert "largest free chunk" not in printed(profile, detail=Detail.USUAL)


def test_names_with_control_characters_are_escaped() -> None:
    record = xrayed(replaced(CUDA, device="C\x1b"), device=replaced(USE, name="G\x1b"))
    assert "\x1b" not in printed(record)
