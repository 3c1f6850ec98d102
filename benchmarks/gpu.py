"""What memdiag says of a GPU, compared with its driver: ``python -m benchmarks.gpu``.

It needs one NVIDIA GPU, onnxruntime-gpu and what ``memdiag[nvidia]`` installs; elsewhere it ends
with a sentence. Models like those of the recorded sessions are made with random weights. Each is
profiled by the command while a thread reads NVML. What being watched costs is measured in
interleaved rounds. The tables are printed in Markdown. All is meant to take below eight minutes.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

import memdiag
from benchmarks.readme import table
from benchmarks.statistics import interleave, spread
from memdiag.defaults import CUDA_PROVIDER
from memdiag.records.profile import Profile, creation_s
from memdiag.runner.nvml import DeviceReader, open_device_reader
from memdiag.units import MIB

SAMPLE_S = 0.001
RUNS = 20
COST_MODELS = ("dense", "conv")
RANDOM = np.random.default_rng(0)

# What a user would write without any tool; it prints its seconds of creation and of the median run.
PLAIN = """
import sys, time
import numpy, onnxruntime
model, size, runs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
started = time.perf_counter()
session = onnxruntime.InferenceSession(
    model, providers=["CUDAExecutionProvider", "CPUExecutionProvider"]
)
created = time.perf_counter()
value = session.get_inputs()[0]
shape = [side if isinstance(side, int) else size for side in value.shape]
feeds = {value.name: numpy.ones(shape, "float32")}
seconds = []
for _ in range(runs + 1):
    before = time.perf_counter()
    session.run(None, feeds)
    seconds.append(time.perf_counter() - before)
print(created - started, sorted(seconds[1:])[runs // 2])
"""

Weights = Mapping[str, NDArray[Any]]


class Model(NamedTuple):
    """A model, and the size of its free dimension ``n`` with which it is run."""

    build: Callable[[], onnx.ModelProto]
    size: int


class Cost(NamedTuple):
    """Seconds of a session's creation, and of its median run."""

    creation_s: float
    run_s: float


def chain_of_products(count: int, width: int, dtype: str = "float32") -> onnx.ModelProto:
    """Return a model of `count` products with square weights, each with a Relu."""
    nodes = []
    for index in range(count):
        nodes.append(helper.make_node("MatMul", [f"r{index}", f"w{index}"], [f"m{index}"]))
        nodes.append(helper.make_node("Relu", [f"m{index}"], [f"r{index + 1}"]))
    weights = {f"w{index}": random_weight(width, width, dtype=dtype) for index in range(count)}
    return model_of(nodes, {"r0": ("n", width)}, {f"r{count}": ("n", width)}, weights)


def convolutions(count: int, channels: int, side: int) -> onnx.ModelProto:
    """Return a model of `count` convolutions of 3 × 3, each with a Relu."""
    nodes = []
    for index in range(count):
        inputs = [f"r{index}", f"k{index}"]
        nodes.append(helper.make_node("Conv", inputs, [f"c{index}"], pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{index}"], [f"r{index + 1}"]))
    weights = {
        f"k{index}": random_weight(channels, channels if index else 3, 3, 3)
        for index in range(count)
    }
    shape = ("n", channels, side, side)
    return model_of(nodes, {"r0": ("n", 3, side, side)}, {f"r{count}": shape}, weights)


def tied_embedding(words: int, width: int) -> onnx.ModelProto:
    """Return a model whose weight is multiplied with as it is, and transposed."""
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["h"]),
        helper.make_node("Transpose", ["W"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["h", "t"], ["y"]),
    ]
    weights = {"W": random_weight(words, width)}
    return model_of(nodes, {"x": ("n", words)}, {"y": ("n", words)}, weights)


def four_bit_product(width: int, block: int = 32) -> onnx.ModelProto:
    """Return a product with a weight in 4 bits, which has a scale for each `block` numbers."""
    sizes: Any = {"K": width, "N": width, "bits": 4, "block_size": block}
    node = helper.make_node("MatMulNBits", ["x", "q", "s"], ["y"], domain="com.microsoft", **sizes)
    packed = RANDOM.integers(0, 256, (width, width // block, block // 2))
    weights = {"q": packed.astype(np.uint8), "s": random_weight(width * width // block)}
    return model_of([node], {"x": ("n", width)}, {"y": ("n", width)}, weights)


def random_weight(*shape: int, dtype: str = "float32") -> NDArray[Any]:
    """Return the next weight, which equals no earlier one."""
    return (0.01 * RANDOM.standard_normal(shape, np.float32)).astype(dtype)


def model_of(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Mapping[str, Sequence[int | str]],
    weights: Weights,
) -> onnx.ModelProto:
    """Return a model whose inputs and outputs are float16 if its first weight is, else float32."""
    first = next(iter(weights.values()))
    dtype = TensorProto.FLOAT16 if first.dtype == np.float16 else TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info(name, dtype, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, dtype, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(values, name) for name, values in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


MODELS = {
    "dense": Model(lambda: chain_of_products(8, 2048), 64),
    "dense16": Model(lambda: chain_of_products(8, 2048, "float16"), 64),
    "many": Model(lambda: chain_of_products(40, 700), 64),
    "conv": Model(lambda: convolutions(10, 64, 224), 4),
    "tied": Model(lambda: tied_embedding(30_000, 512), 16),
    "nbits": Model(lambda: four_bit_product(4096), 16),
}


class PeakSampler:
    """Reads the memory in use on the device all the time, as a context manager.

    Args:
        reader: reads it.

    Attributes:
        peak_bytes: the most that was in use above the start.
    """

    def __init__(self, reader: DeviceReader) -> None:
        self._reader = reader
        self._before = used_bytes(reader)
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self.peak_bytes = 0

    def __enter__(self) -> "PeakSampler":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_done.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._is_done.wait(SAMPLE_S):
            self.peak_bytes = max(self.peak_bytes, used_bytes(self._reader) - self._before)


def used_bytes(reader: DeviceReader) -> int:
    """Return what is in use on the device, by all processes."""
    used = reader.read().used_bytes
    if used is None:
        sys.exit("NVML does not say what is in use on the GPU.")
    return used


def usable_reader() -> DeviceReader:
    """Return a reader of the one GPU of this machine; end with a sentence if there is none."""
    reader = open_device_reader(os.getpid())
    if reader is None or reader.read().used_bytes is None:
        sys.exit("This benchmark needs one NVIDIA GPU that nvidia-ml-py can read: there is none.")
    import onnxruntime

    if CUDA_PROVIDER not in onnxruntime.get_available_providers():
        sys.exit(f"This benchmark needs onnxruntime-gpu: this onnxruntime lacks {CUDA_PROVIDER}.")
    return reader


def profiled(model: Path, size: int, folder: Path, *options: str) -> Profile:
    """Return the profile that the command writes."""
    command = [sys.executable, "-m", "memdiag", "profile", str(model), "--provider", CUDA_PROVIDER]
    command += ["--dim", f"n={size}", "--runs", str(RUNS), "--out", str(folder), *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return memdiag.load_profile(folder)


def agreement_row(
    name: str, profile: Profile, weights: Mapping[str, int], sampled_peak_bytes: int
) -> list[str]:
    """Return how the profile of a model agrees with the driver.

    Args:
        name: the model.
        profile: its profile.
        weights: the bytes of its weights by name.
        sampled_peak_bytes: the peak by NVML.
    """
    device = profile.device
    if device is None or device.ledger is None:
        return [name, *["not read"] * (len(AGREEMENT_HEADER) - 1)]
    ledger, peak = device.ledger, device.peak_bytes
    unexplained = ledger.bytes_of("unexplained")
    return [
        name,
        f"{ledger.used_bytes / MIB:,.0f}",
        f"{sum(row.bytes for row in ledger.rows) / MIB:,.0f}",
        f"{100 * abs(unexplained) / ledger.used_bytes:.2f} %",
        f"{100 * found_share(profile, weights):.1f} %",
        "not known" if peak is None else f"{peak / MIB:,.0f}",
        f"{sampled_peak_bytes / MIB:,.0f}",
        "" if peak is None else f"{(peak - sampled_peak_bytes) / MIB:+,.0f}",
    ]


AGREEMENT_HEADER = [
    "model",
    "cudaMemGetInfo, MiB",
    "ledger, MiB",
    "not explained",
    "weights found",
    "exact peak, MiB",
    "NVML's peak, MiB",
    "difference, MiB",
]


def found_share(profile: Profile, weights: Mapping[str, int]) -> float:
    """Return the share of the bytes of `weights` of which a copy in use was found by contents."""
    xray = None if profile.device is None else profile.device.xray
    copies = () if xray is None else xray.copies
    found = {name for copy in copies if not copy.is_stale for name in copy.weights}
    return sum(size for name, size in weights.items() if name in found) / sum(weights.values())


def weight_sizes(model: onnx.ModelProto) -> dict[str, int]:
    """Return the bytes of the weights by name."""
    return {weight.name: numpy_helper.to_array(weight).nbytes for weight in model.graph.initializer}


def plain_cost(model: Path, size: int) -> Cost:
    """Return what a session costs that nobody watches."""
    command = [sys.executable, "-c", PLAIN, str(model), str(size), str(RUNS)]
    finished = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    created, run = map(float, finished.stdout.split()[-2:])
    return Cost(created, run)


def profile_cost(profile: Profile) -> Cost:
    """Return what a session costs that memdiag watched."""
    return Cost(creation_s(profile.phases), median(run.latency_s for run in profile.runs))


def cost_rows(name: str, costs: Mapping[str, Sequence[Cost]]) -> list[list[str]]:
    """Return the medians of each way to watch, and the ratios to *plain* in the same round."""
    rows = []
    for watcher, watched in costs.items():
        cells = [name if watcher == "plain" else "", watcher]
        for field in Cost._fields:
            seconds = [getattr(cost, field) for cost in watched]
            plain = [getattr(cost, field) for cost in costs["plain"]]
            ratios = [mine / base for mine, base in zip(seconds, plain, strict=True)]
            cells.append(spread([1000 * each for each in seconds]).text(digits=2))
            cells.append("" if watcher == "plain" else spread(ratios).text(digits=3))
        rows.append(cells)
    return rows


COST_HEADER = ["model", "watched by", "creation, ms", "ratio", "median run, ms", "ratio"]


def measured_rows(reader: DeviceReader, names: Iterable[str], folder: Path) -> Iterable[list[str]]:
    """Make, save and profile the models `names`; yield a row of the agreement of each."""
    for name in names:
        model = MODELS[name].build()
        path = folder / f"{name}.onnx"
        onnx.save(model, path)
        with PeakSampler(reader) as sampler:
            profile = profiled(path, MODELS[name].size, folder / name)
        yield agreement_row(name, profile, weight_sizes(model), sampler.peak_bytes)


def measured_costs(model: Path, size: int, folder: Path, rounds: int) -> dict[str, list[Cost]]:
    """Return the costs of a session, plain and watched, in interleaved rounds."""

    def watched(*options: str) -> Cost:
        return profile_cost(profiled(model, size, folder, *options))

    return interleave(
        {
            "plain": partial(plain_cost, model, size),
            "memdiag --xray none": partial(watched, "--xray", "none"),
            "memdiag": watched,
        },
        rounds,
    )


def main() -> None:
    """Measure everything and print the tables."""
    parser = argparse.ArgumentParser(
        description="Compare what memdiag says of a GPU with its driver."
    )
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default 5)")
    rounds = parser.parse_args().rounds
    reader = usable_reader()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [*measured_rows(reader, MODELS, folder)]
        print(f"{reader.name} (driver {reader.driver}), memdiag {memdiag.__version__}.\n")
        print(table(AGREEMENT_HEADER, rows), end="\n\n")
        costs = []
        for model in COST_MODELS:
            measured = measured_costs(
                folder / f"{model}.onnx", MODELS[model].size, folder / "cost", rounds
            )
            costs += cost_rows(model, measured)
        print(table(COST_HEADER, costs))


if __name__ == "__main__":
    main()
