"""Services with inputs of other sizes: ``python -m benchmarks.leak_services --seeds 0..19``.

Each seed makes a model and a service around it: its kind, sizes, lengths of inputs, threads and
options are random. With ``--leak`` the service also leaks, which must be found; without, a verdict
of ``leak`` or ``kept`` is false.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from memdiag.api.leak_program import leak_program

SERVICE = """
import ctypes, json, sys, threading, time
import numpy as np
import onnxruntime

plan = json.loads(sys.argv[1])
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = plan["intra_op"]
options.enable_cpu_mem_arena = plan["arena"]
session = onnxruntime.InferenceSession(plan["model"], options, providers=["CPUExecutionProvider"])
kept, states = [], {}

def feeds_of(number, sizes):
    random = np.random.default_rng([plan["seed"], number])
    feeds = {}
    for name, kind, shape in plan["inputs"]:
        shape = [sizes.get(size, size) for size in shape]
        if kind == "id":
            feeds[name] = random.integers(0, 100, shape)
        elif kind == "one":
            feeds[name] = np.ones(shape, np.int64)
        else:
            feeds[name] = random.standard_normal(shape, np.float32)
    return feeds

def serve(request):
    number, sizes = request
    feeds = feeds_of(number, sizes)
    if plan["state"] and plan["workers"] == 1 and states:
        feeds.update(states)
    leak = plan["leak"]
    if leak == "ortvalues":
        values = {k: onnxruntime.OrtValue.ortvalue_from_numpy(v) for k, v in feeds.items()}
        kept.append(session.run_with_ort_values(None, values)[0])
    elif plan["binding"]:
        binding = session.io_binding()
        for name, value in feeds.items():
            binding.bind_cpu_input(name, value)
        for output in session.get_outputs():
            binding.bind_output(output.name)
        session.run_with_iobinding(binding)
        outputs = binding.copy_outputs_to_cpu()
    else:
        outputs = session.run(None, feeds)
        states.update(zip(plan["state"], outputs[1:]))
    if leak == "malloc":
        ctypes.memset(libc.malloc(500), 1, 500)
    elif leak == "list":
        kept.append({"request": number, "embedding": np.zeros(96, np.float32), "text": "t" * 600})
    time.sleep(plan["pause_s"])

queue = iter(enumerate(plan["requests"]))
lock = threading.Lock()

def work():
    while True:
        with lock:
            request = next(queue, None)
        if request is None:
            return
        serve(request)

threads = [threading.Thread(target=work) for _ in range(plan["workers"] - 1)]
[thread.start() for thread in threads]
work()
[thread.join() for thread in threads]
"""

MIN_SERVICE_S = 15.0

Sizes = dict[str, tuple[int, int]]
"""Ranges of the sizes of free dimensions, by name."""


class Model(NamedTuple):
    """A model for a service.

    Attributes:
        proto: the model.
        inputs: name, kind and shape of each input: kinds are ``id``, ``one`` and ``float``.
        sizes: the ranges of its free dimensions.
        state: the inputs that receive the outputs after the first, in order.
    """

    proto: onnx.ModelProto
    inputs: list[tuple[str, str, list[Any]]]
    sizes: Sizes
    state: tuple[str, ...] = ()


class _Graph:
    """A graph under construction, with random weights."""

    def __init__(self, random: np.random.Generator) -> None:
        self.random = random
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, *shape: int) -> str:
        values = (self.random.standard_normal(shape) * 0.05).astype(np.float32)
        return self.constant(values)

    def constant(self, values: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def add(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        names = [f"v{len(self.nodes)}_{number}" for number in range(outputs)]
        self.nodes.append(helper.make_node(operator, inputs, names, **attributes))
        return names[0] if outputs == 1 else names

    def model(
        self,
        inputs: list[tuple[str, str, list[Any]]],
        outputs: list[str],
        sizes: Sizes,
        **more: Any,
    ) -> Model:
        types = {"id": TensorProto.INT64, "one": TensorProto.INT64, "float": TensorProto.FLOAT}
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            "service",
            [value(name, types[kind], shape) for name, kind, shape in inputs],
            [value(name, TensorProto.FLOAT, None) for name in outputs],
            self.weights,
        )
        proto = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)])
        return Model(onnx.shape_inference.infer_shapes(proto), inputs, sizes, **more)


def _voice(random: np.random.Generator) -> Model:
    g = _Graph(random)
    channels = int(random.choice([32, 64, 96]))
    x = g.add("Transpose", g.add("Gather", g.weight(100, channels), "text"), perm=[0, 2, 1])
    for _ in range(int(random.integers(1, 4))):
        up = g.add("ConvTranspose", x, g.weight(channels, channels, 8), strides=[4], pads=[2, 2])
        branches = [
            g.add(
                "Conv",
                g.add("LeakyRelu", up),
                g.weight(channels, channels, size),
                pads=[size // 2] * 2,
            )
            for size in (3, 7)
        ]
        x = g.add("Add", *branches)
    return g.model([("text", "id", ["b", "n"])], [g.add("Tanh", x)], {"b": (1, 1), "n": (5, 200)})


def _encoder(random: np.random.Generator) -> Model:
    g = _Graph(random)
    width = int(random.choice([64, 128, 256]))
    x = g.add("Gather", g.weight(100, width), "ids")
    mask = g.add(
        "Unsqueeze", g.add("Cast", "mask", to=TensorProto.FLOAT), g.constant(np.array([1]))
    )
    for _ in range(int(random.integers(1, 5))):
        q, k, v = (g.add("MatMul", x, g.weight(width, width)) for _ in range(3))
        scores = g.add("MatMul", q, g.add("Transpose", k, perm=[0, 2, 1]))
        weights = g.add("Softmax", g.add("Mul", scores, mask), axis=-1)
        x = g.add("Add", x, g.add("MatMul", weights, v))
        hidden = g.add("Relu", g.add("MatMul", x, g.weight(width, 4 * width)))
        x = g.add("Add", x, g.add("MatMul", hidden, g.weight(4 * width, width)))
    inputs = [("ids", "id", ["b", "n"]), ("mask", "one", ["b", "n"])]
    return g.model(inputs, [g.add("ReduceMean", x, axes=[1])], {"b": (1, 8), "n": (4, 256)})


def _streaming(random: np.random.Generator) -> Model:
    g = _Graph(random)
    size, features = int(random.choice([64, 128, 256])), 40
    sequence = g.add("Transpose", "frames", perm=[1, 0, 2])
    y, h, c = g.add(
        "LSTM", sequence, g.weight(1, 4 * size, features), g.weight(1, 4 * size, size), "", "",
        "h", "c", outputs=3, hidden_size=size,
    )  # fmt: skip
    scores = g.add("MatMul", g.add("Squeeze", y, g.constant(np.array([1]))), g.weight(size, 50))
    inputs = [("frames", "float", ["b", "n", features]), ("h", "float", [1, "b", size])]
    inputs.append(("c", "float", [1, "b", size]))
    return g.model(inputs, [scores, h, c], {"b": (1, 1), "n": (1, 300)}, state=("h", "c"))


def _images(random: np.random.Generator) -> Model:
    g = _Graph(random)
    x, channels = "image", 3
    for _ in range(int(random.integers(2, 6))):
        wide = int(random.choice([8, 16, 32]))
        x = g.add(
            "Relu", g.add("Conv", x, g.weight(wide, channels, 3, 3), pads=[1] * 4, strides=[2, 2])
        )
        channels = wide
    x = g.add("Flatten", g.add("GlobalAveragePool", x))
    x = g.add("MatMul", x, g.weight(channels, 10))
    return g.model([("image", "float", [1, 3, "h", "w"])], [x], {"h": (64, 480), "w": (64, 640)})


def _segmentation(random: np.random.Generator) -> Model:
    g = _Graph(random)
    wide = int(random.choice([8, 16, 24]))
    low = g.add("Conv", "image", g.weight(wide, 3, 3, 3), pads=[1] * 4, strides=[2, 2])
    for _ in range(int(random.integers(1, 4))):
        low = g.add("Relu", g.add("Conv", low, g.weight(wide, wide, 3, 3), pads=[1] * 4))
    size = g.add("Shape", "image")
    head = g.add("Slice", size, *(g.constant(np.array([k])) for k in (0, 2, 0)))
    tail = g.add("Slice", size, *(g.constant(np.array([k])) for k in (2, 4, 0)))
    del head
    sizes = g.add("Concat", g.constant(np.array([1, wide])), tail, axis=0)
    up = g.add("Resize", low, "", "", sizes, mode="linear")
    x = g.add("Sigmoid", g.add("Conv", up, g.weight(2, wide, 1, 1)))
    return g.model([("image", "float", [1, 3, "h", "w"])], [x], {"h": (64, 400), "w": (64, 400)})


def _batches(random: np.random.Generator) -> Model:
    g = _Graph(random)
    x, width = "rows", 64
    for _ in range(int(random.integers(2, 9))):
        wide = int(random.choice([64, 128, 512]))
        x = g.add("Relu", g.add("Gemm", x, g.weight(width, wide), g.weight(wide)))
        width = wide
    return g.model([("rows", "float", ["b", 64])], [g.add("Softmax", x)], {"b": (1, 2000)})


def _pairs(random: np.random.Generator) -> Model:
    g = _Graph(random)
    width = int(random.choice([32, 64, 128]))
    table = g.weight(100, width)
    left, right = g.add("Gather", table, "left"), g.add("Gather", table, "right")
    scores = g.add("MatMul", left, g.add("Transpose", right, perm=[0, 2, 1]))
    aligned = g.add("MatMul", g.add("Softmax", scores, axis=-1), right)
    x = g.add("ReduceMax", g.add("Mul", left, aligned), axes=[1])
    inputs = [("left", "id", ["b", "n"]), ("right", "id", ["b", "m"])]
    return g.model(inputs, [x], {"b": (1, 4), "n": (4, 300), "m": (4, 300)})


def _branches(random: np.random.Generator) -> Model:
    """A model with an If whose branches have memory patterns of their own."""
    g = _Graph(random)
    width = int(random.choice([64, 128]))
    x = g.add("Gather", g.weight(100, width), "ids")
    length = g.add("Gather", g.add("Shape", "ids"), g.constant(np.array(1)))
    is_long = g.add("Greater", length, g.constant(np.array(64)))
    branches = []
    for name in ("short", "long"):
        b = _Graph(random)
        y = b.add("Tanh", b.add("MatMul", x, b.weight(width, width)))
        y = b.add("Sigmoid", b.add("MatMul", y, b.weight(width, width)))
        for node in b.nodes:
            node.input[:] = [n if n == x else f"{name}_{n}" for n in node.input]
            node.output[:] = [f"{name}_{n}" for n in node.output]
        for weight in b.weights:
            weight.name = f"{name}_{weight.name}"
        result = helper.make_tensor_value_info(f"{name}_{y}", TensorProto.FLOAT, None)
        branches.append(helper.make_graph(b.nodes, name, [], [result], b.weights))
    y = g.add("If", is_long, then_branch=branches[1], else_branch=branches[0])
    return g.model([("ids", "id", ["b", "n"])], [g.add("Relu", y)], {"b": (1, 2), "n": (4, 200)})


FAMILIES: dict[str, Callable[[np.random.Generator], Model]] = {
    "voice": _voice,
    "encoder": _encoder,
    "streaming": _streaming,
    "images": _images,
    "segmentation": _segmentation,
    "batches": _batches,
    "pairs": _pairs,
    "branches": _branches,
}


def _requests(
    random: np.random.Generator, sizes: Sizes, min_count: int
) -> tuple[str, list[dict[str, int]]]:
    """Return how the sizes of the requests differ, and their sizes."""
    count = max(min_count, int(random.choice([60, 120, 200, 400, 800])))
    how = str(random.choice(["uniform", "skewed", "one long", "growing", "few long"]))
    found = []
    for number in range(count):
        request = {}
        for name, (low, high) in sizes.items():
            span = high - low
            if how == "uniform":
                part = random.random()
            elif how == "skewed":
                part = min(1.0, random.lognormal(-2.5, 0.8))
            elif how == "growing":
                part = random.random() * (0.3 + 0.7 * number / count)
            else:
                part = random.random() * 0.3
            request[name] = low + round(span * part)
        found.append(request)
    longest = {
        name: 4 * high if name not in ("b", "h", "w") else high for name, (_, high) in sizes.items()
    }
    if how == "one long":
        found[int(random.integers(count // 10, count // 2))] = longest
    elif how == "few long":
        for number in random.integers(0, count, 5).tolist():
            found[number] = longest
    return f"{how}, {count} requests", found


def service(seed: int, folder: Path, leak: str = "") -> tuple[str, list[str]]:
    """Return the description and the command of a service, whose files are in `folder`."""
    random = np.random.default_rng(seed)
    family = str(random.choice(list(FAMILIES)))
    model = FAMILIES[family](random)
    path = folder / f"{family}-{seed}.onnx"
    onnx.save(model.proto, path)
    # Of fewer requests a leak of 500 bytes is not distinguished from blocks that malloc caches.
    how, requests = _requests(random, model.sizes, min_count=120 if leak else 60)
    plan: dict[str, Any] = {
        "seed": seed,
        "model": str(path),
        "inputs": model.inputs,
        "state": model.state,
        "requests": requests,
        "workers": int(random.choice([1, 1, 1, 2, 4])),
        "intra_op": int(random.choice([1, 2])),
        "arena": bool(random.random() < 0.8),
        "binding": bool(random.random() < 0.15) and not model.state,
        "leak": leak,
    }
    # A service of some seconds has too few readings for a verdict.
    plan["pause_s"] = MIN_SERVICE_S * plan["workers"] / len(requests)
    program = folder / "service.py"
    program.write_text(SERVICE)
    text = f"{family}, {how}, {plan['workers']} callers" + "".join(
        f", {name}"
        for name, holds in (("no arena", not plan["arena"]), ("binding", plan["binding"]))
        if holds
    )
    return text, [sys.executable, str(program), json.dumps(plan)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0..19", help="one, or a range (default 0..19)")
    parser.add_argument("--leak", default="", choices=["", "malloc", "list", "ortvalues"])
    options = parser.parse_args()
    first, _, last = options.seeds.partition("..")
    wrong = 0
    for seed in range(int(first), int(last or first) + 1):
        with tempfile.TemporaryDirectory() as folder:
            text, command = service(seed, Path(folder), options.leak)
            started = time.monotonic()
            growth = leak_program(command).growth
        is_right = growth.is_leak_or_kept == bool(options.leak)
        wrong += not is_right
        sentence = growth.sentence
        print(
            f"{seed} | {text} | {options.leak or 'clean'} | {growth.verdict} | {sentence} |"
            f" {time.monotonic() - started:.0f} s{'' if is_right else '  <-- WRONG'}",
            flush=True,
        )
    print(f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
