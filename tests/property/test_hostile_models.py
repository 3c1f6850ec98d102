"""Whatever a file says, opening and examining it ends soon: with findings or with an error of ours.

Every rule is run in this process on models that were damaged, or built to be as bad as the format
lets them be.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import GraphProto, ModelProto, helper

from memdiag.errors import MemdiagError
from memdiag.model.model_file import open_model
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.runtime import Runtime
from memdiag.rules import model_detectors
from tests.property.hostile import (
    bomb,
    calling,
    chained,
    circular,
    doubled,
    exploding,
    external,
    nested,
    rich,
    sparse,
    value,
    wide,
)

resource = pytest.importorskip("resource")

SECONDS = 10.0
"""What one model may take; all of them here are small, so that most take milliseconds."""

MIB = 1024 * 1024
MOST_MEMORY = 500 * MIB
"""What examining one of them may add, most of it address space that is never used."""

RUNTIMES = [Runtime(1, 24, 4), Runtime(1, 31, 1)]

NEVER_LONG = settings(deadline=SECONDS * 1000)


@contextmanager
def limited() -> Iterator[None]:
    """Refuse this process more than `MOST_MEMORY` beyond what it has, so that no test takes all."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MOST_MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def examine(path: Path, runtime: Runtime = RUNTIMES[-1]) -> str:
    """Examine the model at `path` with all rules; return the error's text, if there is one."""
    started = time.process_time()
    message = ""
    try:
        with limited(), open_model(path) as model:
            ctx = AnalysisContext(model, runtime, sizes={"N": 4})
            for detector in model_detectors():
                for finding in detector.detect(ctx):
                    assert finding.rule == detector.rule.code
                    assert finding.bytes >= 0
                    assert finding.peak_bytes >= 0
    except MemdiagError as error:
        message = str(error)
        assert message
    assert time.process_time() - started < SECONDS
    return message


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "w.bin").write_bytes(np.arange(4096, dtype=np.float32).tobytes())
    return folder


RICH = rich()
BYTES: bytes = RICH.SerializeToString()


def test_the_undamaged_model_is_examined(folder: Path) -> None:
    path = folder / "whole.onnx"
    path.write_bytes(BYTES)
    onnx.checker.check_model(path)
    for runtime in RUNTIMES:
        assert examine(path, runtime) == ""


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Return the rich model's bytes with a few of them cut off, changed, doubled or taken out."""
    data = bytearray(BYTES)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(len(data) - 1, 0)))
        kind = draw(st.sampled_from(["cut", "flip", "length", "insert", "remove", "repeat"]))
        if kind == "cut":
            del data[place:]
        elif kind == "flip":
            data[place : place + 1] = bytes([draw(st.integers(0, 255))])
        elif kind == "length":
            data[place : place + 1] = b"\xff" * draw(st.integers(1, 9)) + b"\x7f"
        elif kind == "insert":
            data[place:place] = draw(st.binary(max_size=12))
        elif kind == "remove":
            del data[place : place + draw(st.integers(1, 50))]
        else:
            data[place:place] = data[place : place + draw(st.integers(1, 300))]
    return bytes(data)


def graphs_of(graph: GraphProto) -> list[GraphProto]:
    """Return `graph` and its subgraphs."""
    inner = [one.g for node in graph.node for one in node.attribute if one.HasField("g")]
    return [graph, *(found for one in inner for found in graphs_of(one))]


def names_of(graph: GraphProto) -> set[str]:
    """Return the names of values in `graph`."""
    stored = {value.name for value in (*graph.initializer, *graph.input)}
    return stored.union(*((*node.input, *node.output) for node in graph.node))


NAMES = sorted(set().union(*map(names_of, graphs_of(RICH.graph))))
OPERATORS = sorted(
    {
        *(node.op_type for node in RICH.graph.node),
        *("Reshape", "Expand", "Range", "Split", "Concat", "Loop", "Scan", "SequenceAt", "Einsum"),
        *("MatMulNBits", "LSTM", "QLinearConv", "Squeeze", "Slice", "Pad", "Identity", "NoSuch"),
    }
)
NUMBERS = [-(2**63), -1, 0, 1, 3, 31, 2**31, 2**40, 2**62, 2**63 - 1]
NUMBER_KEYS = st.sampled_from(["perm", "axis", "axes", "to", "transB", "value", "block_size"])
LIST_KEYS = st.sampled_from(["perm", "axes", "shape", "pads", "group", "value_ints", "to"])


@st.composite
def rewired(draw: st.DrawFn) -> ModelProto:
    """Return the rich model with names, shapes and attributes that make no sense."""
    model = ModelProto()
    model.CopyFrom(RICH)
    number, name = st.sampled_from(NUMBERS), st.sampled_from([*NAMES, "", "nowhere"])
    for _ in range(draw(st.integers(1, 5))):
        graph = draw(st.sampled_from(graphs_of(model.graph)))
        node = draw(st.sampled_from(list(graph.node) or [graph.node.add()]))
        tensor = draw(st.sampled_from(list(graph.initializer) or [graph.initializer.add()]))
        kind = draw(st.integers(0, 12))
        if kind == 0 and node.input:
            node.input[draw(st.integers(0, len(node.input) - 1))] = draw(name)
        elif kind == 1 and node.output:
            node.output[draw(st.integers(0, len(node.output) - 1))] = draw(name)
        elif kind == 2:
            node.op_type = draw(st.sampled_from(OPERATORS))
        elif kind == 3:
            del node.input[draw(st.integers(0, len(node.input))) :]
        elif kind == 4:
            node.input.extend([draw(name)] * draw(st.sampled_from([1, 3, 500])))
        elif kind == 5:
            del node.attribute[:]
        elif kind == 6:
            node.attribute.append(helper.make_attribute(draw(NUMBER_KEYS), draw(number)))
        elif kind == 7:
            numbers = [draw(number), draw(number)]
            node.attribute.append(helper.make_attribute(draw(LIST_KEYS), numbers))
        elif kind == 8:
            tensor.name = draw(name)
        elif kind == 9:
            # Shapes of values are claims that nobody checks; those of weights must fit their data.
            target = draw(st.sampled_from([*graph.input, *graph.output] or [graph.input.add()]))
            shape = [draw(number) for _ in range(draw(st.integers(0, 6)))]
            target.CopyFrom(value(draw(name), *shape, kind=draw(st.integers(0, 30))))
        elif kind == 10:
            size = draw(number)
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.array([size, size]), draw(name)))
        elif kind == 11:
            graph.node.append(node)
        else:
            model.opset_import[0].version = draw(st.sampled_from([-1, 0, 1, 6, 9, 25, 2**31]))
    return model


@NEVER_LONG
@given(data=damaged(), runtime=st.sampled_from(RUNTIMES))
def test_damaged_bytes(folder: Path, data: bytes, runtime: Runtime) -> None:
    (folder / "damaged.onnx").write_bytes(data)
    examine(folder / "damaged.onnx", runtime)


@NEVER_LONG
@given(model=rewired(), runtime=st.sampled_from(RUNTIMES))
def test_models_that_make_no_sense(folder: Path, model: ModelProto, runtime: Runtime) -> None:
    (folder / "rewired.onnx").write_bytes(model.SerializeToString())
    examine(folder / "rewired.onnx", runtime)


@NEVER_LONG
@given(
    offset=st.one_of(st.integers(-10, 20_000), st.sampled_from(NUMBERS)),
    length=st.one_of(st.integers(-10, 20_000), st.sampled_from(NUMBERS)),
    other=st.integers(0, 16_384),
    location=st.sampled_from(["w.bin", "./w.bin", "nowhere", "../w.bin", "/etc/passwd", "", "\0"]),
    size=st.sampled_from([*NUMBERS, 16, 1024]),
)
def test_external_ranges_that_overlap_or_lie_anywhere(
    folder: Path, offset: int, length: int, other: int, location: str, size: int
) -> None:
    model = ModelProto()
    model.CopyFrom(RICH)
    model.graph.initializer.extend(
        [
            external("e", [size], location=location, offset=offset, length=length),
            external("o", [1024], offset=min(other, 12_288), length=4096),
        ]
    )
    (folder / "external.onnx").write_bytes(model.SerializeToString())
    examine(folder / "external.onnx")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_great_many(folder: Path) -> None:
    @settings(NEVER_LONG, max_examples=3000)
    @given(data=st.one_of(damaged(), rewired().map(ModelProto.SerializeToString)))
    def run(data: bytes) -> None:
        (folder / "many.onnx").write_bytes(data)
        examine(folder / "many.onnx")

    run()


HOSTILE: dict[str, Callable[[], ModelProto]] = {
    "subgraphs 30 deep": lambda: nested(30),
    "functions that call each other": lambda: calling(2, 2, circle=True),
    "a function that calls itself": lambda: calling(1, 3, circle=True),
    "two to the power of forty calls": lambda: calling(40, 2, circle=False),
    "functions 200 deep": lambda: calling(200, 1, circle=False),
    "ten thousand transposes": lambda: chained("Transpose", length=10_000),
    "ten thousand steps": lambda: chained("Identity", "Cast", "Reshape", length=10_000),
    "ten thousand activations": lambda: chained("Relu", length=10_000, first="x"),
    "a folded exabyte": lambda: bomb("Expand", 2**30, 2**30),
    "a folded size of no end": lambda: bomb("ConstantOfShape", *[2**62] * 20),
    "negative sizes": lambda: bomb("Expand", -5, 2**40),
    "tiled to the end": lambda: bomb("Tile", 2**62, 2**62),
    "circles": circular,
    "one name for all": doubled,
    "a sparse exabyte": lambda: sparse(2**30, 2**30),
    "a sparse constant of 64 GiB": lambda: sparse(2**17, 2**17, attribute=True),
    "twenty thousand readers": lambda: wide(20_000),
}


@pytest.mark.slow  # it takes all memory that the inference may; see also tests/model/test_shapes.py
def test_a_value_that_doubles_80_times(tmp_path: Path) -> None:
    path = tmp_path / "doubling.onnx"
    path.write_bytes(exploding("Concat", 80).SerializeToString())
    # In a process of its own: with the heap of a long test run it takes thirty times as long.
    program = (
        "import sys; from pathlib import Path;"
        " from tests.property.test_hostile_models import examine; examine(Path(sys.argv[1]))"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", program, path], cwd=root, check=True, timeout=100)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_model_built_to_be_hostile(tmp_path: Path, name: str) -> None:
    path = tmp_path / "hostile.onnx"
    path.write_bytes(HOSTILE[name]().SerializeToString())
    examine(path)
