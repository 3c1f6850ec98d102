"""What two columns have on a GPU, compared: recorded sessions against their raw records."""

from functools import cache
from itertools import permutations
from pathlib import Path

import pytest

import memdiag
from memdiag.comparison.device_parts import RELEASED_PART, device_part_differences
from memdiag.records.comparison import Comparison, FigureChange
from memdiag.records.device import DeviceMemory, LedgerRow
from memdiag.records.profile import Profile
from memdiag.reports.comparison.sentences import comparison_answer
from memdiag.units import MIB, format_size
from tests.device.raw_records import raw_bytes_of, raw_chunks, raw_live, raw_mark
from tests.device.recorded_sessions import raw
from tests.reports import gpus, profiles
from tests.reports.rendering import replaced

SAME_MODEL = {
    "dense": ("dense_default", "dense_same", "dense_devalloc"),
    "conv": ("conv_default", "conv_same", "conv_shrink", "conv_nhwc"),
    "resnet50": ("resnet50_default", "resnet50_same", "resnet50_best"),
}
PAIRS = [pair for names in SAME_MODEL.values() for pair in permutations(names, 2)]


@cache
def recorded_memory(name: str) -> DeviceMemory:
    return gpus.recorded_memory(name)


def raw_steady_bytes(name: str) -> int:
    used: int = raw_mark(raw(name), "steady")["mem_get_info_used"]
    return used


def raw_library_bytes(name: str, library: str) -> int:
    data = raw(name)
    return raw_bytes_of(raw_live(data, raw_mark(data, "steady")["cupti_ns"]), library)


def compared(folder: Path, *saved: Profile) -> Comparison:
    paths = [folder / f"{letter}.json" for letter in "abc"[: len(saved)]]
    for path, profile in zip(paths, saved, strict=True):
        profile.save(path)
    return memdiag.compare(*paths)


def device_changes(comparison: Comparison) -> dict[str, FigureChange]:
    changes = comparison.changes
    return {change.metric: change for change in changes if change.metric.startswith("device_")}


def with_steady(profile: Profile, size_bytes: int) -> Profile:
    """Return `profile` with as much more on the GPU after the runs."""
    assert profile.device is not None
    assert profile.device.ledger is not None
    context, *others = profile.device.ledger.rows
    return replaced(
        profile,
        device__ledger__used_bytes=profile.device.ledger.used_bytes + size_bytes,
        device__ledger__rows=(replaced(context, bytes=context.bytes + size_bytes), *others),
    )


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_the_parts_add_up_and_are_what_the_raw_records_say(before: str, after: str) -> None:
    differences = device_part_differences(
        recorded_memory(before), recorded_memory(after), of_peak=False
    )
    assert sum(differences.values()) == raw_steady_bytes(after) - raw_steady_bytes(before)
    free = [raw_chunks(raw(name))[1] for name in (before, after)]
    assert differences["empty arena"] == free[1] - free[0]
    for label, library in (("cuBLAS", "libcublas"), ("cuDNN", "libcudnn")):
        sizes = [raw_library_bytes(name, library) for name in (before, after)]
        assert differences[label] == sizes[1] - sizes[0]


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_the_parts_of_a_peak_add_up_with_what_was_released(before: str, after: str) -> None:
    memories = [recorded_memory(name) for name in (before, after)]
    differences = device_part_differences(*memories, of_peak=True)
    peaks = [memory.peak_bytes or 0 for memory in memories]
    assert sum(differences.values()) == peaks[1] - peaks[0]
    released = [
        peak - raw_steady_bytes(name) for peak, name in zip(peaks, (before, after), strict=True)
    ]
    assert differences[RELEASED_PART] == released[1] - released[0]


def test_what_one_of_both_does_not_tell_apart_is_one_part() -> None:
    fine, coarse = recorded_memory("dense_default"), recorded_memory("dense_nocupti")
    differences = device_part_differences(fine, coarse, of_peak=False)
    assert {*differences} == {
        "context, code and libraries", "weights", "values and copies", "empty arena"
    }  # fmt: skip
    expected = raw_steady_bytes("dense_nocupti") - raw_steady_bytes("dense_default")
    assert sum(differences.values()) == expected


def test_copies_that_only_one_tells_apart_are_values() -> None:
    sizes = recorded_memory("dense_default")
    contents = gpus.compared_profile().device
    assert contents is not None
    differences = device_part_differences(sizes, contents, of_peak=False)
    assert "values and copies" in differences
    assert "weights in another layout" not in differences
    assert sum(differences.values()) == 0


def test_an_arena_that_was_read_in_one_only_is_not_compared() -> None:
    read = recorded_memory("dense_default")
    assert read.ledger is not None
    rows = [row for row in read.ledger.rows if row.owner != "empty_arena"]
    unread = replaced(read, ledger__rows=tuple(rows))
    assert device_part_differences(read, unread, of_peak=False) == {}
    assert device_part_differences(read, DeviceMemory(device=read.device), of_peak=False) == {}


def test_what_other_processes_use_is_in_no_difference(tmp_path: Path) -> None:
    plain = gpus.recorded_profile()
    assert plain.device is not None
    assert plain.device.ledger is not None
    others = LedgerRow(
        owner="other_processes", label="other processes", bytes=300 * MIB, basis="computed"
    )
    rows = [row for row in plain.device.ledger.rows if row.owner != "other_processes"]
    busy = replaced(
        plain,
        device__ledger__used_bytes=plain.device.ledger.own_bytes + others.bytes,
        device__ledger__rows=(*rows, others),
    )
    assert busy.device is not None
    assert plain.device.steady_bytes == busy.device.steady_bytes
    assert "device_steady" not in device_changes(compared(tmp_path, plain, busy))
    differences = device_part_differences(plain.device, busy.device, of_peak=False)
    assert {name: size for name, size in differences.items() if size} == {}


def test_two_saved_profiles_are_compared_in_the_memory_on_the_gpu(tmp_path: Path) -> None:
    names = ("dense_default", "dense_same")
    comparison = compared(tmp_path, *map(gpus.recorded_profile, names))
    steady = device_changes(comparison)["device_steady"]
    before, after = map(raw_steady_bytes, names)
    assert steady.bytes == after - before
    assert steady.ratio == pytest.approx(after / before)
    free = [raw_chunks(raw(name))[1] for name in names]
    assert steady.why.startswith(f"{format_size(free[1] - free[0], signed=True)}, empty arena")
    answer = comparison_answer(comparison)
    sizes = f"from {format_size(before)} in a.json to {format_size(after)} in b.json"
    assert answer.startswith(f"GPU peak and steady {sizes}")
    measured = comparison.columns[1].measured
    assert measured is not None
    assert measured.device_steady is not None
    assert measured.device_steady.median == after


def test_a_peak_that_was_released_has_its_own_cause(tmp_path: Path) -> None:
    saved = map(gpus.recorded_profile, ("conv_same", "conv_shrink"))
    peak = device_changes(compared(tmp_path, *saved))["device_peak"]
    assert RELEASED_PART in peak.why


@pytest.mark.parametrize(("size", "metrics"), [(3 * MIB, set()), (5 * MIB, {"device_steady"})])
def test_what_contexts_differ_by_is_no_change(size: int, metrics: set[str], tmp_path: Path) -> None:
    plain = gpus.recorded_profile()
    assert {*device_changes(compared(tmp_path, plain, with_steady(plain, size)))} == metrics


@pytest.mark.parametrize(("size", "metrics"), [(19 * MIB, set()), (21 * MIB, {"device_steady"})])
def test_what_cupti_takes_is_no_change(size: int, metrics: set[str], tmp_path: Path) -> None:
    plain, without = gpus.on_gpu(), gpus.on_gpu(has_cupti=False)
    comparison = compared(tmp_path, plain, with_steady(without, size))
    assert {*device_changes(comparison)} == metrics
    assert any("the second ran without CUPTI" in note for note in comparison.notes)
    both = compared(tmp_path, without, without)
    assert not any("CUPTI" in note for note in both.notes)


def test_other_gpus_are_named(tmp_path: Path) -> None:
    plain = gpus.on_gpu()
    other = replaced(plain, device__device__name="another GPU")
    (note,) = (note for note in compared(tmp_path, plain, other).notes if "GPU" in note)
    assert note == "a.json, b.json: they ran on different GPUs: GPU and another GPU"
    assert not any("GPU" in note for note in compared(tmp_path, plain, plain).notes)


def test_of_a_session_on_the_cpu_nothing_is_compared_on_the_gpu(tmp_path: Path) -> None:
    comparison = compared(tmp_path, profiles.tied_if(), gpus.recorded_profile())
    assert device_changes(comparison) == {}
    size = format_size(raw_steady_bytes("dense_default"))
    assert comparison_answer(comparison).startswith(f"on the GPU {size} in b.json; ")
    on_cpu = compared(tmp_path, profiles.tied_if(), profiles.tied_if())
    assert "GPU" not in comparison_answer(on_cpu)
