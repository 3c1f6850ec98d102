"""The tables of the benchmark of a GPU, from recorded profiles; its models; its refusals."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from benchmarks import gpu
from benchmarks.gpu import Cost, PeakSampler
from memdiag.runner.nvml import DeviceReading
from memdiag.units import MIB
from tests.device.raw_records import raw_mark
from tests.device.recorded_sessions import raw
from tests.reports import gpus, profiles
from tests.reports.rendering import replaced


class ScriptedReader:
    """A device whose memory in use is what the test says, the last figure for ever."""

    name, driver, missing_reason = "Scripted", "1", ""

    def __init__(self, *used_bytes: int | None) -> None:
        self.used_bytes = [*used_bytes]

    def read(self) -> DeviceReading:
        used = self.used_bytes.pop(0) if len(self.used_bytes) > 1 else self.used_bytes[0]
        return DeviceReading(None, used)

    def close(self) -> None:
        pass


def row_of(profile: Any, weights: dict[str, int], sampled: int = 0) -> dict[str, str]:
    row = gpu.agreement_row("a", profile, weights, sampled)
    return dict(zip(gpu.AGREEMENT_HEADER, row, strict=True))


def test_a_row_has_the_figures_of_the_profile_and_of_nvml() -> None:
    row = row_of(gpus.recorded_profile("conv_shrink"), {"k0": 1}, 1100 * MIB)
    used = round(raw_mark(raw("conv_shrink"), "steady")["mem_get_info_used"] / MIB)
    assert row["cudaMemGetInfo, MiB"] == row["ledger, MiB"] == f"{used:,}"
    assert float(row["not explained"].removesuffix(" %")) < 1
    assert row["exact peak, MiB"] == f"{used + 400:,}"
    assert row["NVML's peak, MiB"] == "1,100"
    assert row["difference, MiB"] == f"+{used + 400 - 1100}"


def test_without_cupti_the_peak_is_not_known() -> None:
    row = row_of(gpus.recorded_profile("dense_nocupti"), {"w0": 1})
    assert (row["exact peak, MiB"], row["difference, MiB"]) == ("not known", "")


def test_a_ledger_that_does_not_explain_all_says_how_much() -> None:
    profile = gpus.recorded_profile()
    assert profile.device is not None
    assert profile.device.ledger is not None
    rest = replaced(
        profile.device.ledger.rows[0], owner="unexplained", bytes=-50 * MIB, label="not explained"
    )
    ledger = replaced(
        profile.device.ledger, used_bytes=1000 * MIB, rows=(*profile.device.ledger.rows, rest)
    )
    row = row_of(replaced(profile, device=replaced(profile.device, ledger=ledger)), {"w0": 1})
    assert row["not explained"] == "5.00 %"


def test_a_profile_without_a_gpu_is_not_read() -> None:
    assert set(gpu.agreement_row("a", profiles.tied_if(), {"w": 1}, 0)) == {"a", "not read"}


def test_weights_count_once_each_and_stale_copies_do_not() -> None:
    profile = gpus.compared_profile()
    # W and tied have two copies, filter has one that is stale.
    assert gpu.found_share(profile, {"W": 60, "tied": 60, "filter": 30}) == 0.8
    assert gpu.found_share(gpus.recorded_profile(), {"w0": 1}) == 0


def test_the_peak_is_the_most_above_the_start() -> None:
    reader = ScriptedReader(100, 100, 700, 300)
    with PeakSampler(reader) as sampler:
        while len(reader.used_bytes) > 1:
            pass
    assert sampler.peak_bytes == 600


def test_ratios_are_of_the_same_round() -> None:
    plain = [Cost(1.0, 0.010), Cost(2.0, 0.010), Cost(4.0, 0.020)]
    watched = [Cost(1.1, 0.011), Cost(2.2, 0.010), Cost(4.0, 0.020)]
    of_plain, of_memdiag = gpu.cost_rows("dense", {"plain": plain, "memdiag": watched})
    assert of_plain == [
        "dense",
        "plain",
        "2000.00 (1000.00–4000.00)",
        "",
        "10.00 (10.00–20.00)",
        "",
    ]
    assert of_memdiag[:2] == ["", "memdiag"]
    assert of_memdiag[3] == "1.100 (1.000–1.100)"
    assert of_memdiag[5] == "1.000 (1.000–1.100)"


SMALL = {
    "products": lambda: gpu.chain_of_products(2, 8),
    "half": lambda: gpu.chain_of_products(2, 8, "float16"),
    "convolutions": lambda: gpu.convolutions(2, 4, 6),
    "tied": lambda: gpu.tied_embedding(12, 8),
    "nbits": lambda: gpu.four_bit_product(64),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_model_runs_with_any_batch(name: str) -> None:
    model = SMALL[name]()
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (value,) = session.get_inputs()
    shape = [side if isinstance(side, int) else 3 for side in value.shape]
    dtype = np.float16 if "float16" in value.type else np.float32
    (output,) = session.run(None, {value.name: np.ones(shape, dtype)})
    assert output.shape[0] == 3
    sizes = gpu.weight_sizes(model)
    assert sum(sizes.values()) == sum(
        len(onnx.numpy_helper.to_array(weight).tobytes()) for weight in model.graph.initializer
    )


def test_no_weight_equals_another() -> None:
    model = gpu.chain_of_products(3, 4)
    contents = {onnx.numpy_helper.to_array(weight).tobytes() for weight in model.graph.initializer}
    assert len(contents) == 3


@pytest.mark.parametrize("reader", [None, ScriptedReader(None)])
def test_without_one_gpu_it_ends_with_a_sentence(
    reader: ScriptedReader | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu, "open_device_reader", lambda pid: reader)
    with pytest.raises(SystemExit, match=r"needs one NVIDIA GPU .*: there is none\.$"):
        gpu.usable_reader()


def test_without_the_provider_it_ends_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "open_device_reader", lambda pid: ScriptedReader(1))
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(SystemExit) as ended:
        gpu.usable_reader()
    assert re.fullmatch(r"This benchmark needs onnxruntime-gpu: .*\.", str(ended.value))
