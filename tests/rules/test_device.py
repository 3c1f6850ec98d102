"""The rules for devices: each finding against the raw log and readings, and near misses."""

import re
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from memdiag.device.recording import ArenaChunks, DeviceRecording, ModelWeight
from memdiag.records.device import DeviceFinding
from memdiag.rules.device import device_findings
from memdiag.rules.device.device_block_of_second_run import RULE as BLOCK
from memdiag.rules.device.empty_device_region import RULE as REGION
from memdiag.rules.device.folded_copy_on_device import RULE as COPY
from memdiag.rules.rule import Rule
from memdiag.units import MIB
from tests.device.recorded_sessions import NAMES, raw, recorded
from tests.reports import gpus

EMPTY_REGIONS = {"dense16", "dense_default", "dense_nocupti", "tied"}
GROWTH_IN_SECOND_RUNS = {
    "conv_nhwc": 128,
    "conv_same": 98,
    "encoder_same": 12,
    "resnet50_best": 85,
    "resnet50_default": 256,
    "resnet50_same": 85,
}


def raw_regions(data: Any) -> list[tuple[int, int, int]]:
    """Return the request, start and end of each region of the device's arena."""
    regions, request, memory = [], 0, ""
    for _, line in data["log"]:
        if extends := re.search(r"Extending BFCArena for (\w+)\..*num_bytes: (\d+) \(act", line):
            memory, request = extends[1], int(extends[2])
        grown = re.search(r"Allocated memory at (\w+) to (\w+)", line)
        if grown and memory == "Cuda":
            regions.append((request, int(grown[1], 16), int(grown[2], 16)))
    return regions


def findings_of(rule: Rule, recording: DeviceRecording) -> list[DeviceFinding]:
    findings, notes = device_findings(recording)
    assert notes == ()
    return [finding for finding in findings if finding.name == rule.name]


def with_last_region(recording: DeviceRecording, **changes: Any) -> DeviceRecording:
    """Return `recording` with another last region on the device."""
    last = recording.device_regions[-1]
    regions = tuple(
        region._replace(**changes) if region == last else region
        for region in (recording.regions or ())
    )
    return msgspec.structs.replace(recording, regions=regions)


@pytest.mark.parametrize("name", NAMES)
def test_the_regions_of_the_device_are_those_of_the_log(name: str) -> None:
    regions = recorded(name).device_regions
    assert [(r.requested_bytes, r.start, r.end) for r in regions] == raw_regions(raw(name))
    assert {region.memory for region in recorded(name).regions or ()} >= {"Cuda", "Cpu"}


@pytest.mark.parametrize("name", NAMES)
def test_a_region_for_a_small_value_that_is_empty_between_runs_is_found(name: str) -> None:
    findings = findings_of(REGION, recorded(name))
    assert len(findings) == (name in EMPTY_REGIONS)
    if not findings:
        return
    request, start, end = raw_regions(raw(name))[-1]
    free = next(arena[4] for arena in raw(name)["arenas"]["objects"] if arena[0] == "Cuda")
    assert [start, end] in free or any(first <= start < end <= last for first, last in free)
    assert findings[0].bytes == end - start - request
    assert findings[0].provider_options == {"arena_extend_strategy": "kSameAsRequested"}


def test_the_finding_of_an_empty_region_names_region_and_value() -> None:
    (finding,) = findings_of(REGION, recorded("dense_default"))
    assert finding.message == (
        "The arena opened a region of 128 MiB on the device for a value of 8 KiB; between runs all"
        " of it is empty."
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"requested_bytes": 9 * MIB},  # more than a sixteenth of 128 MiB
        {"requested_bytes": None},
        {"start": 0},  # not within the free chunks
    ],
)
def test_a_region_that_runs_may_need_is_not_found(changes: dict[str, int | None]) -> None:
    recording = recorded("dense_default")
    assert findings_of(REGION, with_last_region(recording, requested_bytes=8 * MIB))
    assert not findings_of(REGION, with_last_region(recording, **changes))


def test_a_region_in_which_a_value_is_held_is_not_empty() -> None:
    recording = recorded("dense_default")
    region = recording.device_regions[-1]
    split = ((region.start, region.start + MIB), (region.start + 2 * MIB, region.end))
    held = ArenaChunks(memory="Cuda", in_use=((region.start + MIB, split[1][0]),), free=split)
    marks = tuple(msgspec.structs.replace(mark, arenas=(held,)) for mark in recording.marks)
    assert not findings_of(REGION, msgspec.structs.replace(recording, marks=marks))


def test_without_the_arena_nothing_is_said_of_its_regions() -> None:
    recording = recorded("dense_default")
    marks = tuple(msgspec.structs.replace(mark, arenas=None) for mark in recording.marks)
    assert not findings_of(REGION, msgspec.structs.replace(recording, marks=marks))


@pytest.mark.parametrize("name", NAMES)
def test_growth_in_a_run_with_the_sizes_of_an_earlier_one_is_found(name: str) -> None:
    findings = findings_of(BLOCK, recorded(name))
    assert [finding.bytes // MIB for finding in findings] == (
        [GROWTH_IN_SECOND_RUNS[name]] if name in GROWTH_IN_SECOND_RUNS else []
    )


@pytest.mark.parametrize("name", ["conv_nhwc", "resnet50_default"])
def test_the_growth_is_that_of_the_readings_of_two_equal_runs(name: str) -> None:
    marks = raw(name)["marks"]
    (growth,) = (
        after["mem_get_info_used"] - before["mem_get_info_used"]
        for before, after in pairwise(marks)
        if before["name"] == after["name"]
    )
    (finding,) = findings_of(BLOCK, recorded(name))
    assert finding.bytes == growth
    assert finding.session_options == {"enable_mem_pattern": "0"}


def test_regions_that_shrinkage_returns_are_no_growth() -> None:
    recording = recorded("conv_shrink")
    marks = {mark.name: mark for mark in recording.marks}  # the last of each name
    opened = recording.regions_opened_between(marks["run 1"], marks["steady"])
    assert len(opened) >= 60  # two or more in each of 30 runs
    assert marks["run 1"].used_bytes == marks["steady"].used_bytes
    assert not findings_of(BLOCK, recording)


def test_growth_with_new_sizes_is_no_second_run() -> None:
    recording = recorded("resnet50_default")
    assert findings_of(BLOCK, recording)
    marks = tuple(
        msgspec.structs.replace(mark, inputs=f"{mark.inputs} {number}" if mark.inputs else "")
        for number, mark in enumerate(recording.marks)
    )
    assert not findings_of(BLOCK, msgspec.structs.replace(recording, marks=marks))


def test_growth_outside_of_the_arena_is_no_block_of_the_arena() -> None:
    recording = recorded("resnet50_default")
    without_regions = msgspec.structs.replace(recording, regions=())
    assert not findings_of(BLOCK, without_regions)


@pytest.mark.parametrize("name", NAMES)
def test_a_folded_copy_is_a_size_that_was_asked_for_more_often_than_weights_have_it(
    name: str,
) -> None:
    findings = findings_of(COPY, recorded(name))
    if name != "tied":
        assert findings == []
        return
    sizes = [request for request, _, _ in raw_regions(raw(name))]
    ((_, weight_bytes),) = raw(name)["weights"]
    assert sizes.count(weight_bytes) == 2
    assert [finding.bytes for finding in findings] == [weight_bytes]
    assert "59 MiB, the size of W, 1 time more than" in findings[0].message


def compared(**changes: Any) -> DeviceRecording:
    """Return a recording in which W is on the device twice, with changes of the second copy."""
    first, second, _ = gpus.XRAY.copies
    copies = (first, msgspec.structs.replace(second, **changes))
    xray = msgspec.structs.replace(gpus.XRAY, copies=copies)
    return msgspec.structs.replace(recorded("dense_default"), xray=xray)


def test_a_folded_copy_is_found_by_its_contents() -> None:
    (finding,) = findings_of(COPY, compared())
    assert finding.bytes == 60 * MIB
    assert finding.message == "W is on the device twice, once transposed: 60 MiB more."


@pytest.mark.parametrize(
    "changes",
    [
        {"is_stale": True},
        {"weights": ("V",)},
        {"bytes": MIB - 1},
        {"layout": "channels_last"},
        {"layout": "original", "kind": "original"},
    ],
    ids=["stale", "another weight", "small", "of a kernel", "as the file has it"],
)
def test_other_copies_are_not_folded(changes: dict[str, Any]) -> None:
    assert not findings_of(COPY, compared(**changes))


def test_with_contents_sizes_are_not_compared() -> None:
    without_copies = msgspec.structs.replace(gpus.XRAY, copies=())
    assert findings_of(COPY, recorded("tied"))
    assert not findings_of(COPY, msgspec.structs.replace(recorded("tied"), xray=without_copies))


def test_two_weights_of_one_size_are_no_copies() -> None:
    recording = recorded("tied")
    twice = (*recording.weights, ModelWeight(name="V", bytes=recording.weights[0].bytes))
    assert not findings_of(COPY, msgspec.structs.replace(recording, weights=twice))


def test_a_value_of_a_run_with_the_size_of_a_weight_is_no_copy() -> None:
    recording = recorded("tied")
    during_runs = tuple(
        region._replace(epoch_s=recording.start_epoch_s + recording.marks[-1].seconds)
        for region in (recording.regions or ())
    )
    assert not findings_of(COPY, msgspec.structs.replace(recording, regions=during_runs))


def test_the_largest_finding_is_first() -> None:
    sizes = [finding.bytes for finding in device_findings(recorded("tied"))[0]]
    assert len(sizes) == 2
    assert sizes == sorted(sizes, reverse=True)
