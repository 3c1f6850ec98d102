"""The memory of a GPU in reports: the answer, the sum that adds up, and the sections."""

import re

import pytest

from memdiag.detail import Detail
from memdiag.records.device import (
    Device,
    DeviceMemory,
    DeviceSource,
    Ledger,
    LedgerRow,
    MissingSource,
    TensorRTStep,
)
from memdiag.reports.device import device_answer, device_sum, device_sums
from memdiag.units import MIB
from tests.device.recorded_sessions import NAMES, raw, recorded
from tests.reports import gpus
from tests.reports.gpus import XRAY, recorded_memory
from tests.reports.rendering import printed, replaced


def ledger_of(name: str) -> Ledger:
    ledger = recorded_memory(name).ledger
    assert ledger is not None
    return ledger


def answer(name: str, ledger: Ledger | None = None) -> str:
    weight_bytes = recorded(name).weight_bytes
    return device_answer(
        f"{name}.onnx", recorded_memory(name), ledger or ledger_of(name), weight_bytes
    )


def built(*sizes: int) -> Ledger:
    rows = tuple(
        LedgerRow(owner="other_library", label="library", bytes=size, basis="exact")
        for size in sizes
    )
    return Ledger(mark="steady", used_bytes=sum(sizes), rows=rows, is_coarse=False)


@pytest.mark.parametrize("name", NAMES)
def test_the_numbers_of_the_sum_add_up(name: str) -> None:
    line = device_sum(ledger_of(name))
    total, *parts = (
        int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d\b(?!\.)", line)
    )
    steady = next(mark for mark in raw(name)["marks"] if mark["name"] == "steady")
    assert total == round(steady["mem_get_info_used"] / MIB)
    assert sum(parts) == total


def test_the_sum_names_each_owner() -> None:
    assert device_sum(ledger_of("dense_default")) == (
        "device 945 MiB = context and code 559 + weights 128 + values and copies 0 + empty arena"
        " 128 + cuBLAS 128 + cuDNN 0 + rounding 2"
    )
    assert device_sum(ledger_of("dense_nocupti")) == (
        "device 931 MiB = context and code 545 + libraries and rounding 130 + weights 128 + values"
        " and copies 0 + empty arena 128"
    )


@pytest.mark.parametrize(
    "sizes",
    [
        (MIB // 2, MIB // 2, MIB // 2),
        (10 * MIB - 1, 1, 0),
        (7 * MIB, -3 * MIB - 1),
        (2000 * MIB + MIB // 3, MIB // 3, MIB // 3),
    ],
)
def test_rounded_parts_add_up_and_each_is_off_by_less_than_one(sizes: tuple[int, ...]) -> None:
    line = device_sum(built(*sizes))
    total, *parts = (int(number.replace(",", "")) for number in re.findall(r"-?[\d,]*\d", line))
    assert sum(parts) == total == round(sum(sizes) / MIB)
    for part, size in zip(parts, sizes, strict=True):
        assert abs(part - size / MIB) < 1


def test_the_answer_names_an_empty_region() -> None:
    assert answer("dense_default") == (
        "dense_default.onnx: 945 MiB on the GPU (NVIDIA H100 80GB HBM3), 7.4 × the weights:"
        " 128 MiB of it are an empty region of the arena."
    )


def test_the_answer_names_free_chunks_or_else_the_largest_part() -> None:
    assert answer("resnet50_same").endswith("257 MiB of it are empty parts of the arena.")
    assert answer("dense_same").endswith("559 MiB of it are the context and code.")


def test_a_multiple_of_few_weights_is_left_out() -> None:
    assert "×" not in answer("nbits")  # 10 MiB of weights, 705 MiB on the device
    assert "6.4 × the weights" in answer("dense_same")


def test_other_processes_are_not_the_models() -> None:
    ledger = ledger_of("dense_default")
    row = LedgerRow(
        owner="other_processes", label="other processes", bytes=4000 * MIB, basis="computed"
    )
    shared = replaced(ledger, used_bytes=ledger.used_bytes + row.bytes, rows=(*ledger.rows, row))
    own = answer("dense_default")
    assert answer("dense_default", shared) == own
    assert device_sum(shared).endswith("+ other processes 4,000")


def with_peak(excess: float) -> DeviceMemory:
    """Return a memory whose arena had `excess` of the memory after the runs more at the peak."""
    memory = recorded_memory("dense_default")
    ledger = ledger_of("dense_default")
    size = round(excess * ledger.own_bytes)
    row = LedgerRow(owner="unread_arena", label="arena", bytes=size, basis="exact")
    peak = replaced(
        ledger, mark="first run", used_bytes=ledger.used_bytes + size, rows=(*ledger.rows, row)
    )
    return replaced(memory, peak_ledger=peak)


def test_the_answer_is_a_peak_that_is_clearly_above_the_memory_after_the_runs() -> None:
    memory, ledger = with_peak(0.2), ledger_of("dense_default")
    assert device_answer("a.onnx", memory, ledger, 128 * MIB) == (
        "a.onnx: peak 1.11 GiB on the GPU (NVIDIA H100 80GB HBM3) in the first run, 8.9 × the"
        " weights; 945 MiB afterwards: the arena had 189 MiB more at the peak."
    )
    at_peak, after = device_sums(memory, ledger)
    assert at_peak.startswith("device 1,134 MiB at the peak = context and code 559 + ")
    assert at_peak.endswith(" + arena 189")
    assert after.startswith("device 945 MiB afterwards = ")


@pytest.mark.parametrize("excess", [0.0, 0.049])
def test_the_answer_is_the_memory_after_the_runs_if_the_peak_is_near(excess: float) -> None:
    memory, ledger = with_peak(excess), ledger_of("dense_default")
    assert device_answer("dense_default.onnx", memory, ledger, 128 * MIB) == answer("dense_default")
    assert device_sums(memory, ledger) == [device_sum(ledger)]


def test_a_peak_of_a_library_is_not_the_arenas() -> None:
    memory, ledger = with_peak(0.2), ledger_of("dense_default")
    assert memory.peak_ledger is not None
    rows = [
        replaced(row, bytes=row.bytes + 300 * MIB) if row.owner == "cudnn" else row
        for row in memory.peak_ledger.rows
    ]
    used_bytes = memory.peak_ledger.used_bytes + 300 * MIB
    of_library = replaced(memory, peak_ledger__rows=(*rows,), peak_ledger__used_bytes=used_bytes)
    text = device_answer("a.onnx", of_library, ledger, 128 * MIB)
    assert text.endswith("945 MiB afterwards: cuDNN had 300 MiB more at the peak.")


def test_each_copy_of_a_weight_is_listed_with_all_details_only() -> None:
    profile = gpus.compared_profile()
    text = printed(profile, detail=Detail.ALL, width=200)
    for words in (
        rf"W \+1 more +transposed \(perm 1,0\) +60\.0 +in use +{XRAY.copies[1].address:#x}",
        r"filter +transposed \(channels last\) +2\.0 +stale",
        r"1 copy \(2\.0 MiB\) is stale",
        r"Not on the GPU in any layout that memdiag knows: on_host\.",
        r"2 weights \(bias, scale\), 128 B: smaller than 256 bytes each",
        r"256 MiB of the GPU were searched in 310 ms\..* 400 MiB were copied",
    ):
        assert re.search(words, text), words
    assert "channels last" not in printed(profile, detail=Detail.USUAL, width=200)


def test_the_steps_of_tensorrt_are_a_section_of_their_own() -> None:
    step = TensorRTStep(
        name="Init CUDA\x1b",
        host_added_bytes=-3 * MIB,
        device_added_bytes=12 * MIB,
        host_bytes=40 * MIB,
        device_bytes=1700 * MIB,
    )
    memory = replaced(recorded_memory("dense_default"), tensorrt_steps=(step,) * 8)
    text = printed(gpus.with_memory(memory), detail=Detail.USUAL)
    assert re.search(r"^step \(MiB\) +GPU added +GPU now +host added +host now$", text, re.M)
    assert len(re.findall(r"^Init CUDA\\x1b +\+12 +1,700 +-3 +40$", text, re.M)) == 6
    assert "TensorRT" not in printed(gpus.recorded_profile(), detail=Detail.ALL)


def test_names_with_control_characters_are_escaped() -> None:
    named = replaced(recorded_memory("nbits"), device__name="b\x1b")
    assert "\x1b" not in device_answer("a\x1b.onnx", named, ledger_of("nbits"), 1)


def test_a_device_whose_name_is_not_known_is_the_gpu() -> None:
    unnamed = replaced(recorded_memory("nbits"), device__name="")
    assert " on the GPU: " in device_answer("a.onnx", unnamed, ledger_of("nbits"), 1)


def test_a_session_that_fell_back_is_a_finding_below_the_answer_of_the_host() -> None:
    text = printed(gpus.fallen_back(), detail=Detail.USUAL, width=200)
    assert text.startswith("tied_if.onnx: peak 1.50 GiB above baseline")
    assert f"{gpus.FALLBACK.message} [provider-fallback]" in text
    assert text.index(gpus.FALLBACK.message) < text.index("Result")


@pytest.mark.parametrize("detail", Detail)
def test_an_error_of_the_gpu_is_printed_with_every_detail(detail: Detail) -> None:
    text = printed(gpus.out_of_memory(), detail=detail)
    assert text.startswith("tied_if.onnx: failed in steady")
    assert re.search(r"GPU error +onnxruntime asked for 64 MiB\.", text)


@pytest.mark.parametrize(("source", "is_printed"), [("cudaMemGetInfo", True), ("NVML", False)])
def test_only_a_gpu_that_was_not_read_is_called_so_unasked(
    source: DeviceSource, is_printed: bool
) -> None:
    missing = MissingSource(source=source, reason="it is busy")
    profile = gpus.with_memory(DeviceMemory(device=Device(name=""), missing=(missing,)))
    assert ("it is busy" in printed(profile, detail=Detail.USUAL)) is is_printed
    assert "it is busy" in printed(profile, detail=Detail.ALL)


@pytest.mark.parametrize(
    ("last_mark", "text"),
    [
        ("", "The memory in use on the GPU was not read: error 700."),
        ("run", "The memory in use on the GPU was not read after a later run: error 700."),
        ("first run", "The memory in use on the GPU was not read after the first run: error 700."),
    ],
)
def test_a_source_that_failed_late_is_said_to_have_reported_until_then(
    last_mark: str, text: str
) -> None:
    missing = MissingSource(source="cudaMemGetInfo", reason="error 700", last_mark=last_mark)
    profile = gpus.with_memory(DeviceMemory(device=Device(name=""), missing=(missing,)))
    assert text in " ".join(printed(profile, detail=Detail.ALL).split())
