"""What a session takes on a device, compared with sessions that were recorded on an H100."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper

from memdiag.device.ledger import context_bytes_after_deletion
from memdiag.device.recording import DeviceRecording
from memdiag.model.model_file import open_model
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.arena import ArenaStrategy, RegionSizes
from memdiag.ort.device_session import (
    CUBLAS_WORKSPACE_BYTES,
    RECORDED_CONTEXT_BYTES,
    SMALL_CUBLAS_WORKSPACE_BYTES,
    DeviceSession,
    DeviceSettings,
    convolution_copies,
)
from memdiag.ort.runtime import Runtime
from memdiag.ort.scratch import ScratchSizes
from memdiag.records.device import Ledger
from memdiag.units import KIB, MIB
from tests.device.raw_records import raw_mark
from tests.device.recorded_models import FLOAT, MODELS, Values, model_of, recorded_model
from tests.device.recorded_sessions import NAMES, RECORDED_WITHOUT_CUPTI, raw, recorded

RELEASE = Runtime.parse("1.31.1")
RETURNING_REGIONS = ("conv_shrink", "resnet50_best")  # with shrinkage the doubling begins again
NAMES_OF_GROWING = [name for name in NAMES if name not in RETURNING_REGIONS]
BY_REQUEST: ArenaStrategy = "kSameAsRequested"


def strategy_of(recording: DeviceRecording) -> Any:
    assert recording.session is not None
    options = recording.session.provider_options
    return options.get("arena_extend_strategy", "kNextPowerOfTwo")


@pytest.mark.parametrize("name", NAMES_OF_GROWING)
def test_regions_are_as_large_as_recorded(name: str) -> None:
    recording = recorded(name)
    sizes = RegionSizes(strategy_of(recording))
    regions = [sizes.size_for(region.requested_bytes or 0) for region in recording.device_regions]
    assert regions == [region.end - region.start for region in recording.device_regions]


@pytest.mark.parametrize("name", NAMES_OF_GROWING)
def test_the_arena_is_as_large_as_the_log_states_after_each_request(name: str) -> None:
    sizes = RegionSizes(strategy_of(recorded(name)))
    memory, requested, total = "", 0, 0
    compared = 0
    for _, line in raw(name)["log"]:
        if extends := re.search(r"Extending BFCArena for (\w+)\. .*num_bytes: ?(\d+) ", line):
            memory, requested = extends[1], int(extends[2])
        elif reserved := re.search(r"Reserving memory in BFCArena for Cuda size: (\d+)", line):
            total += int(reserved[1])
        elif memory == "Cuda" and (stated := re.search(r"Total allocated bytes: (\d+)", line)):
            total += sizes.size_for(requested)
            assert total == int(stated[1])
            compared += 1
    assert compared == len(recorded(name).device_regions) > 0


@contextmanager
def opened(path: Path) -> Iterator[DeviceSession]:
    with open_model(path) as model_file:
        yield DeviceSession(AnalysisContext(model_file, RELEASE, reads_weights=False))


def predicted(
    name: str,
    folder: Path,
    sizes: Sequence[int],
    settings: DeviceSettings,
    scratch: ScratchSizes | None = None,
) -> Ledger:
    """Return what the model of a recording takes after runs at these sizes."""
    with opened(recorded_model(name, folder)) as device:
        runs = [{"n": size} for size in sizes]
        if scratch is None:
            return device.ledger_after(runs, settings)
        return device.ledger_after(runs, settings, scratch)


def recorded_above_context(name: str) -> int:
    marks = raw(name)
    return int(
        raw_mark(marks, "steady")["mem_get_info_used"]
        - raw_mark(marks, "deleted")["mem_get_info_used"]
    )


def recorded_settings(name: str) -> DeviceSettings:
    return DeviceSettings(
        strategy=strategy_of(recorded(name)), has_own_weights=name.endswith("devalloc")
    )


@pytest.mark.parametrize("name", RECORDED_WITHOUT_CUPTI)
def test_the_context_is_that_of_a_process_without_cupti(name: str) -> None:
    context = context_bytes_after_deletion(recorded(name))
    assert context is not None
    assert pytest.approx(context, abs=MIB) == RECORDED_CONTEXT_BYTES


WITHOUT_CONVOLUTIONS = [
    name
    for name in NAMES
    if name.split("_")[0] in MODELS and not name.startswith(("conv", "resnet50"))
]


@pytest.mark.parametrize("name", WITHOUT_CONVOLUTIONS)
def test_without_convolutions_it_is_as_recorded(name: str, tmp_path: Path) -> None:
    """The issue asks for 3 % above the context."""
    sizes = list(dict.fromkeys(raw(name)["sizes"]))
    ledger = predicted(name, tmp_path, sizes, recorded_settings(name))
    above = ledger.used_bytes - ledger.bytes_of("context")
    assert above == pytest.approx(recorded_above_context(name), rel=0.01)
    assert ledger.bytes_of("weights") == sum(size for _, size in raw(name)["weights"])


WITH_CONVOLUTIONS = (
    *("conv_default", "conv_heur", "conv_same", "conv_ws0", "resnet50_default", "resnet50_same"),
)


@pytest.mark.parametrize("name", WITH_CONVOLUTIONS)
def test_with_convolutions_it_is_between_none_and_copies(name: str, tmp_path: Path) -> None:
    """The runtime takes weights in another order, which changes the regions by a few MiB."""
    sizes, settings = list(dict.fromkeys(raw(name)["sizes"])), recorded_settings(name)
    low = predicted(name, tmp_path, sizes, settings)
    high = predicted(name, tmp_path, sizes, settings, convolution_copies)
    above, above_high = recorded_above_context(name), high.used_bytes - high.bytes_of("context")
    assert low.used_bytes - low.bytes_of("context") < above
    assert above < 1.01 * above_high < 1.1 * above


MEASURED: dict[str, tuple[str, int, DeviceSettings, int]] = {
    "dense": ("dense", 64, DeviceSettings(), 931),
    "dense by request": ("dense", 64, DeviceSettings(strategy=BY_REQUEST), 805),
    "dense, small workspace": ("dense", 64, DeviceSettings(cublas_workspace_bytes=128 * KIB), 803),
    "dense, 2 × 4096": ("dense", 64, DeviceSettings(cublas_workspace_bytes=8 * MIB), 819),
    "dense, without pattern": ("dense", 64, DeviceSettings(has_pattern=False), 931),
    "dense, all": (
        "dense",
        64,
        DeviceSettings(
            strategy=BY_REQUEST,
            has_pattern=False,
            has_own_weights=True,
            cublas_workspace_bytes=128 * KIB,
        ),
        675,
    ),
    "dense16": ("dense16", 64, DeviceSettings(), 803),
    "dense16 by request, without pattern": (
        "dense16",
        64,
        DeviceSettings(strategy=BY_REQUEST, has_pattern=False),
        739,
    ),
    "conv": ("conv", 4, DeviceSettings(), 1193),
    "conv by request": ("conv", 4, DeviceSettings(strategy=BY_REQUEST), 979),
    "conv, without pattern": ("conv", 4, DeviceSettings(has_pattern=False), 937),
    "conv, small workspace": ("conv", 4, DeviceSettings(cublas_workspace_bytes=128 * KIB), 1065),
    "conv, all": (
        "conv",
        4,
        DeviceSettings(
            strategy=BY_REQUEST,
            has_pattern=False,
            has_own_weights=True,
            cublas_workspace_bytes=128 * KIB,
        ),
        751,
    ),
}
"""The model, the size of the batch, the configuration, and MiB that cudaMemGetInfo reported on an
H100 without CUPTI, where the context and code were 545 MiB."""


@pytest.mark.parametrize("case", MEASURED)
def test_each_option_changes_it_as_measured(case: str, tmp_path: Path) -> None:
    name, size, settings, measured = MEASURED[case]
    ledger = predicted(name, tmp_path, [size], settings, convolution_copies)
    above = ledger.used_bytes - ledger.bytes_of("context")
    assert above == pytest.approx((measured - 545) * MIB, abs=4 * MIB)


RESNET50: dict[str, tuple[DeviceSettings, int]] = {
    "as it comes": (DeviceSettings(), 1189),
    "by request": (DeviceSettings(strategy=BY_REQUEST), 1027),
    "without pattern": (DeviceSettings(has_pattern=False), 933),
    "by request, without pattern": (
        DeviceSettings(strategy=BY_REQUEST, has_pattern=False),
        941,
    ),
    "all": (
        DeviceSettings(
            strategy=BY_REQUEST,
            has_pattern=False,
            has_own_weights=True,
            cublas_workspace_bytes=128 * KIB,
        ),
        813,
    ),
}
"""The same for ResNet-50 at batch 8, for which cuDNN chose kernels that take less than copies."""


@pytest.mark.parametrize("case", RESNET50)
def test_each_option_changes_the_range_as_measured(case: str, tmp_path: Path) -> None:
    settings, measured = RESNET50[case]
    low = predicted("resnet50", tmp_path, [8], settings)
    high = predicted("resnet50", tmp_path, [8], settings, convolution_copies)
    above = (measured - 545) * MIB
    assert low.used_bytes - low.bytes_of("context") < above
    assert above < 1.02 * (high.used_bytes - high.bytes_of("context"))


@pytest.mark.parametrize("name", MODELS)
def test_the_rows_add_up_to_whole_pages(name: str, tmp_path: Path) -> None:
    ledger = predicted(name, tmp_path, [4], DeviceSettings())
    assert sum(row.bytes for row in ledger.rows) == ledger.used_bytes
    assert (ledger.used_bytes - ledger.bytes_of("context")) % (2 * MIB) == 0
    assert all(row.bytes >= 0 for row in ledger.rows)


def test_a_weight_that_nothing_reads_is_not_on_the_device(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    square = (FLOAT, (1024, 1024))
    values: Values = {"x": (FLOAT, ("n", 1024)), "y": (FLOAT, ("n", 1024))}
    path = recorded_model("dense", tmp_path)
    onnx.save(model_of(nodes, values, {"w": square, "unread": square}), path)
    with opened(path) as device:
        assert device.weight_bytes == 4 * MIB
        assert not device.has_convolutions


def test_a_value_of_unknown_size_is_counted(tmp_path: Path) -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["y"])]
    values: Values = {"x": (FLOAT, ("n", 8)), "y": (7, (2, "found"))}
    path = tmp_path / "nonzero.onnx"
    onnx.save(model_of(nodes, values, {}), path)
    with opened(path) as device:
        assert device.unknown_values({"n": 4}) == 1


def test_without_the_variable_a_handle_has_64_mib() -> None:
    assert DeviceSettings().cublas_workspace_bytes == CUBLAS_WORKSPACE_BYTES == 64 * MIB
    assert SMALL_CUBLAS_WORKSPACE_BYTES == 128 * KIB
