"""The snapshot for PyTorch's memory_viz, read back and added up against the raw records."""

import pickle
from collections import Counter
from typing import Any

import pytest

from memdiag.errors import ReportError
from memdiag.records.attribution import DeviceArena
from memdiag.records.profile import Profile
from memdiag.reports.profile import REPORT
from memdiag.units import MIB
from tests.device.raw_records import raw_live
from tests.device.recorded_sessions import RECORDED_WITH_CUPTI, arenas_at_rest, raw
from tests.reports import attributions, gpus, profiles
from tests.reports.rendering import replaced

ALLOCATION, RELEASE, DEVICE = 1, 2, 3


def snapshot_of(profile: Profile) -> Any:
    return pickle.loads(REPORT.render(profile, "memory_viz"))  # memdiag wrote it


def raw_events(data: Any) -> list[tuple[int, int, int]]:
    """Return operation, address and bytes of each record of the device until the deletion."""
    end_ns = data["marks"][-2]["cupti_ns"]
    return [
        (record[1], record[3], record[4])
        for record in data["cupti_records"]
        if record[0] <= end_ns and record[2] == DEVICE
    ]


def with_arenas(name: str) -> Profile:
    """Return a profile of a recorded session with the arenas that were read in it."""
    arenas = [
        DeviceArena(
            device="Cuda",
            used_bytes=0,
            slack_bytes=0,
            used_ranges=arena.in_use,
            slack_ranges=arena.free,
        )
        for arena in arenas_at_rest(raw(name))
        if arena.memory == "Cuda"
    ]
    attribution = attributions.attribution(device_arenas=tuple(arenas))
    return replaced(gpus.recorded_profile(name), attribution=attribution)


@pytest.mark.parametrize("name", RECORDED_WITH_CUPTI)
def test_segments_are_the_allocations_that_exist_after_the_last_run(name: str) -> None:
    live = raw_live(raw(name), raw(name)["marks"][-2]["cupti_ns"])
    segments = snapshot_of(gpus.recorded_profile(name))["segments"]
    assert sorted((segment["address"], segment["total_size"]) for segment in segments) == sorted(
        (record[3], record[4]) for record in live
    )
    for segment in segments:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]


@pytest.mark.parametrize("name", RECORDED_WITH_CUPTI)
def test_the_trace_has_each_allocation_and_release(name: str) -> None:
    (trace,) = snapshot_of(gpus.recorded_profile(name))["device_traces"]
    events = raw_events(raw(name))
    for action, operation in (("alloc", ALLOCATION), ("segment_alloc", ALLOCATION)):
        assert [(event["addr"], event["size"]) for event in trace if event["action"] == action] == [
            (address, size) for number, address, size in events if number == operation
        ]
    released = [event for event in trace if event["action"] == "free_completed"]
    assert [event["addr"] for event in released] == [
        address for operation, address, _ in events if operation == RELEASE
    ]
    assert [event["time_us"] for event in trace] == sorted(event["time_us"] for event in trace)


def test_free_chunks_of_the_arena_are_inactive() -> None:
    profile, data = with_arenas("dense_default"), raw("dense_default")
    blocks = [block for segment in snapshot_of(profile)["segments"] for block in segment["blocks"]]
    free = [block for block in blocks if block["state"] == "inactive"]
    (expected,) = (row[2] for row in data["arenas"]["objects"] if row[0] == "Cuda")
    assert sum(block["size"] for block in free) == expected
    assert {block["frames"][0]["name"] for block in free} == {"free chunk of the arena"}
    segments = snapshot_of(profile)["segments"]
    assert (
        sum(segment["total_size"] - segment["allocated_size"] for segment in segments) == expected
    )


def test_a_block_is_named_by_its_weight_or_else_by_the_library() -> None:
    segments = snapshot_of(gpus.compared_profile())["segments"]
    blocks = [block for segment in segments for block in segment["blocks"]]
    sizes = Counter[str]()
    for block in blocks:
        sizes[block["frames"][0]["name"]] += block["size"]
    assert sizes["W"] == 120 * MIB  # two copies, whose blocks end where a segment ends
    assert "filter" not in sizes  # a stale copy
    assert sizes["libcublas.so.13"] > 64 * MIB


@pytest.mark.parametrize(
    "profile",
    [profiles.tied_if(), gpus.recorded_profile("dense_nocupti")],
    ids=["without a GPU", "without CUPTI"],
)
def test_without_allocations_there_is_nothing_to_draw(profile: Profile) -> None:
    with pytest.raises(ReportError, match="this profile has none"):
        REPORT.render(profile, "memory_viz")
