"""A profile that compares the contents of a device: a file in the place of the device's memory.

The libraries are made for the test. The child copies blocks of the file as if from a device, so
that each copy is where the test has put it, and in no other memory.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import memdiag
import memdiag.api.xray
from memdiag.attribution.process_xray import take_xray
from memdiag.defaults import XrayTime
from memdiag.detail import Detail
from memdiag.records.attribution import Attribution, DeviceArena
from memdiag.records.device import DeviceMemory
from memdiag.records.profile import Profile
from memdiag.units import MIB
from tests.builders import noise
from tests.reports import rendering
from tests.runner.conftest import RUNTIME
from tests.runner.test_device_script import (
    CUDART_WITH_CONTENTS,
    CUPTI,
    DEVICE_ADDRESS,
    compiled,
)

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a compiler")

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
REGION_BYTES = 2 * MIB
DEVICE_BYTES = 3 * REGION_BYTES
WEIGHTS = {
    "dense": noise(640, 512),
    "half": noise(384, 512).astype(np.float16),
    "filter": noise(64, 32, 3, 3),
    "nearly": noise(300, 100),
    "ones": np.ones(4096, np.float32),
}


class Placed(NamedTuple):
    """A copy that the test puts on the device."""

    name: str
    layout: str
    offset: int
    content: np.ndarray
    is_stale: bool = False


PLACED = (
    Placed("dense", "original", 4096, WEIGHTS["dense"]),
    Placed("dense", "transposed", REGION_BYTES, WEIGHTS["dense"].T),
    Placed("half", "original", REGION_BYTES + 1536 * 1024, WEIGHTS["half"]),
    Placed("half", "cast", 2 * REGION_BYTES + 256, WEIGHTS["half"].astype(np.float32)),
    Placed(
        "filter",
        "channels_last",
        2 * REGION_BYTES + MIB,
        WEIGHTS["filter"].transpose(0, 2, 3, 1),
        is_stale=True,
    ),
)
NEARLY_OFFSET = 1500 * 1024
FREE = ((DEVICE_ADDRESS + 2 * REGION_BYTES + MIB, DEVICE_ADDRESS + DEVICE_BYTES),)
IN_USE = ((DEVICE_ADDRESS, FREE[0][0]),)


def device_contents() -> bytes:
    """Return the memory of the device: the placed copies, and one with a changed byte."""
    memory = np.zeros(DEVICE_BYTES, np.uint8)
    for placed in PLACED:
        content = np.ascontiguousarray(placed.content).reshape(-1).view(np.uint8)
        memory[placed.offset : placed.offset + len(content)] = content
    nearly = WEIGHTS["nearly"].reshape(-1).view(np.uint8)
    memory[NEARLY_OFFSET : NEARLY_OFFSET + len(nearly)] = nearly
    memory[NEARLY_OFFSET + len(nearly) // 3] ^= 1
    return memory.tobytes()


def save_model(path: Path) -> None:
    tensors = [numpy_helper.from_array(values, name) for name, values in WEIGHTS.items()]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    node = helper.make_node("Relu", ["x"], ["y"])
    graph = helper.make_graph([node], "g", values[:1], values[1:], tensors)
    onnx.save(helper.make_model(graph), path)


def with_arena(*arguments: Any, **options: Any) -> Attribution:
    """Take the X-ray of a child that has no arena of onnxruntime, and add one on the device."""
    arena = DeviceArena(
        device="Cuda",
        used_bytes=IN_USE[0][1] - IN_USE[0][0],
        slack_bytes=FREE[0][1] - FREE[0][0],
        used_ranges=IN_USE,
        slack_ranges=FREE,
    )
    return msgspec.structs.replace(take_xray(*arguments, **options), device_arenas=(arena,))


def region_lines() -> list[dict[str, str]]:
    """Return the log of the three regions, which follow each other without a gap."""
    lines = []
    for start in range(DEVICE_ADDRESS, DEVICE_ADDRESS + DEVICE_BYTES, REGION_BYTES):
        extends = "Extending BFCArena for Cuda. bin_num:13 (requested) num_bytes: 1 (actual)"
        grown = f"Allocated memory at {start:#x} to {start + REGION_BYTES:#x}"
        lines += [{"log": f"{extends} rounded_bytes: {REGION_BYTES}"}, {"log": grown}]
    return lines


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with libcudart, with allocations of one region, and with libcudnn."""
    folder = tmp_path_factory.mktemp("libraries")
    constants = {"DEVICE_ADDRESS": DEVICE_ADDRESS, "ALLOCATION_BYTES": REGION_BYTES}
    compiled(CUDART_WITH_CONTENTS, folder / "libcudart.so.13", **constants)
    compiled("int cudnnGetVersion(void) { return 9; }", folder / "libcudnn.so.9")
    return folder


ProfileDevice = Callable[..., Profile]


@pytest.fixture
def profile_device(
    libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ProfileDevice:
    """Return a function that profiles a session whose weights are on the device."""
    folder = tmp_path / "fake_runtime"
    folder.mkdir()
    (folder / "onnxruntime.py").write_text(RUNTIME)
    (tmp_path / "device").write_bytes(device_contents())
    save_model(tmp_path / "model.onnx")
    monkeypatch.setattr(memdiag.api.xray, "take_xray", with_arena)

    def run(xray: XrayTime = "steady", runtime: Path = libraries, **variables: str) -> Profile:
        loaded = [runtime / "libcudart.so.13", libraries / "libcudnn.so.9"]
        script = {
            "available": [CUDA, CPU],
            "providers": [CUDA, CPU],
            "create": [*({"load": str(path)} for path in loaded), *region_lines()],
        }
        return memdiag.profile(
            tmp_path / "model.onnx",
            providers=[CUDA, CPU],
            environment={
                "PYTHONPATH": str(folder),
                "FAKE_RUNTIME": json.dumps(script),
                "FAKE_DEVICE": str(tmp_path / "device"),
                **variables,
            },
            runs=2,
            xray=xray,
        )

    return run


def device_of(profile: Profile) -> DeviceMemory:
    assert profile.device is not None
    return profile.device


def assert_all_found(device: DeviceMemory) -> None:
    assert device.xray is not None
    assert [
        (copy.weights, copy.layout, copy.address, copy.bytes, copy.is_stale)
        for copy in device.xray.copies
    ] == [
        ((p.name,), p.layout, DEVICE_ADDRESS + p.offset, p.content.nbytes, p.is_stale)
        for p in PLACED
    ]
    assert all(copy.verified_bytes == copy.bytes for copy in device.xray.copies)
    assert device.xray.absent == (("nearly",),)
    assert [group.weights for group in device.xray.indistinct] == [("ones",)]


def test_each_copy_on_the_device_is_found_by_name(profile_device: ProfileDevice) -> None:
    profile = profile_device()
    device = device_of(profile)
    assert_all_found(device)
    assert device.xray is not None
    assert device.xray.searched_bytes == DEVICE_BYTES
    assert device.xray.copied_bytes > DEVICE_BYTES
    assert device.missing_reason("contents") == ""
    assert profile.attribution is not None
    assert not {copy.layout for copy in profile.attribution.copies} - {"original"}

    sizes = {placed.layout: placed.content.nbytes for placed in PLACED}
    weights = WEIGHTS["dense"].nbytes + WEIGHTS["half"].nbytes
    copies = sizes["transposed"] + sizes["cast"]
    assert device.ledger is not None
    rows = {row.owner: row for row in device.ledger.rows}
    assert (rows["weights"].bytes, rows["weights"].basis) == (weights, "exact")
    assert rows["weight_copies"].bytes == copies
    assert rows["values"].label == "values"
    assert rows["values"].bytes == IN_USE[0][1] - IN_USE[0][0] - weights - copies
    assert rows["empty_arena"].bytes == FREE[0][1] - FREE[0][0]

    (finding,) = (finding for finding in device.findings if finding.rule == "MD903")
    assert finding.bytes == sizes["transposed"]
    assert finding.message.startswith("dense is on the device twice, once transposed: ")

    text = rendering.printed(profile, detail=Detail.ALL)
    for words in ("transposed", "channels last", "stale", f"{DEVICE_ADDRESS + 4096:#x}", "nearly"):
        assert words in text
    assert "weights in another layout 2" in text.replace("\n", " ")


def test_memory_that_cannot_be_pinned_is_copied_all_the_same(profile_device: ProfileDevice) -> None:
    device = device_of(profile_device(FAKE_UNPINNABLE="1"))
    assert_all_found(device)
    # The error was taken from the runtime: the reading after it does not fail.
    assert device.phases[-1].name == "deleted"
    assert device.phases[-1].used_bytes == 512 * MIB


def test_allocations_that_cupti_reports_are_searched(
    profile_device: ProfileDevice, tmp_path: Path
) -> None:
    constants = {"DEVICE_ADDRESS": DEVICE_ADDRESS, "ALLOCATION_BYTES": DEVICE_BYTES}
    compiled(CUDART_WITH_CONTENTS, tmp_path / "other" / "libcudart.so.13", **constants)
    reported = CUPTI.replace("0x7f0000000000", hex(DEVICE_ADDRESS))
    reported = reported.replace("67108864", str(DEVICE_BYTES)).replace("libcublas", "libcudart")
    reported = reported.replace("size, 2 * sizeof memory", "size, sizeof memory")  # no release
    compiled(reported, tmp_path / "fake_runtime" / "nvidia" / "cu13" / "lib" / "libcupti.so.13")
    device = device_of(profile_device(runtime=tmp_path / "other"))
    assert device.missing_reason("CUPTI") == ""
    assert_all_found(device)


def test_without_an_xray_nothing_is_copied(profile_device: ProfileDevice) -> None:
    device = device_of(profile_device(xray="none", FAKE_DEVICE="/nothing"))
    assert device.xray is None
    assert device.missing_reason("contents") == ""


def test_a_copy_that_fails_is_a_missing_source(profile_device: ProfileDevice) -> None:
    device = device_of(profile_device(FAKE_DEVICE="/nothing"))
    assert device.xray is None
    assert device.missing_reason("contents") == "cudaMemcpy failed with error 1"
    assert device.ledger is not None
    assert [row.basis for row in device.ledger.rows if row.owner == "weights"] == ["computed"]
