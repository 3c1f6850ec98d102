import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from memdiag.model import equal_weights
from memdiag.model.equal_weights import identical_weights
from memdiag.model.model_file import open_model
from tests.builders import external_tensor, of_tensors, saved

MIB = 1 << 20
FEW_NUMBERS, MANY_NUMBERS = 10_000, 20_000
"""Of a byte each: as many as are held with the graph, and as are read where they lie."""

Floats = NDArray[np.float32]
Weights = Iterable[TensorProto] | Mapping[str, NDArray[Any]]


def groups(weights: Weights, folder: Path, *, external: bool = False) -> list[list[str]]:
    with open_model(saved(of_tensors(weights), folder, external=external)) as model:
        return [[weight.name for weight in group] for group in identical_weights(model)]


def external(
    name: str, shape: tuple[int, ...], offset: int = 0, file: str = "data.bin"
) -> TensorProto:
    length = 4 * int(np.prod(shape))
    return external_tensor(name, shape, location=file, offset=offset, length=length)


def random(count: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


def changed(values: Floats, place: int) -> Floats:
    other = values.copy()
    other[place] += 1
    return other


def typed(name: str, values: NDArray[np.int8]) -> TensorProto:
    return helper.make_tensor(name, TensorProto.INT8, [len(values)], values.tolist())


@pytest.mark.parametrize("place", [0, 1000, MIB // 4 - 1, MIB // 4, 3 * MIB // 4 - 1])
def test_a_single_different_element_is_seen_wherever_it_is(tmp_path: Path, place: int) -> None:
    values = random(3 * MIB // 4)
    weights = {"a": values, "b": changed(values, place), "c": values, "d": random(len(values), 1)}
    assert groups(weights, tmp_path) == [["a", "c"]]


VALUES = random(2048)
NAN, ZERO = np.full(2048, np.nan, np.float32), np.zeros(2048, np.float32)
NOTHING, WORD = np.zeros((0, 3), np.float32), np.array(["word"], object)
BYTES = (np.arange(MANY_NUMBERS) % 127).astype(np.int8)
OTHER_BYTES = np.where(np.arange(MANY_NUMBERS) == 1000, 99, BYTES).astype(np.int8)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (
            {
                "a": VALUES,
                "b": VALUES.reshape(32, 64),
                "c": VALUES.view(np.int32),
                "shorter": VALUES[:-1],
            },
            [["a", "b", "c"]],
        ),
        ({"a": NAN, "b": NAN, "plus": ZERO, "minus": -ZERO}, [["a", "b"]]),
        ({"empty": NOTHING, "empty too": NOTHING, "words": WORD, "words again": WORD}, []),
        (
            [
                numpy_helper.from_array(BYTES, "raw"),
                typed("typed", BYTES),
                typed("other", OTHER_BYTES),
            ],
            [["raw", "typed"]],
        ),
    ],
    ids=["other types and shapes", "NaN and two zeros", "empty weights and strings", "typed"],
)
def test_bytes_count(weights: Weights, expected: list[list[str]], tmp_path: Path) -> None:
    assert groups(weights, tmp_path) == expected


def test_one_range_of_a_file_is_the_same_without_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data.bin").write_bytes(random(MIB).tobytes())
    model = of_tensors(external(name, (MIB,)) for name in "abc")
    with open_model(saved(model, tmp_path)) as opened:
        monkeypatch.setattr(opened, "raw_bytes", None)
        [group] = identical_weights(opened)
        assert [weight.name for weight in group] == ["a", "b", "c"]


def test_weights_in_one_range_are_grouped_with_those_of_its_content_elsewhere(
    tmp_path: Path,
) -> None:
    block = random(64).tobytes()
    (tmp_path / "data.bin").write_bytes(block + bytes(256) + block)
    offsets = {"zeros": 256, "a": 512, "b": 0, "again": 512, "b again": 0}
    tensors = [external(name, (64,), offset) for name, offset in offsets.items()]
    tensors += [external(name, (32,)) for name in ("short", "short again")]
    expected = [["a", "b", "again", "b again"], ["short", "short again"]]
    assert groups(tensors, tmp_path) == expected


@pytest.mark.parametrize(("count", "compared"), [(FEW_NUMBERS, False), (MANY_NUMBERS, True)])
def test_what_would_have_to_be_made_as_a_whole_is_not_compared_where_it_is_large(
    count: int, compared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equal_weights, "MAX_DECODED_BYTES", FEW_NUMBERS - 1)
    tensors = [typed(name, BYTES[:count]) for name in "ab"]
    assert bool(groups(tensors, tmp_path)) == compared
    with open_model(tmp_path / "model.onnx") as model:
        assert {equal_weights.can_be_compared(model, one) for one in model.weights} == {compared}


def test_raw_typed_and_external_data_are_compared_with_each_other(tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(b"abc" + VALUES.tobytes())
    tensors = [
        numpy_helper.from_array(VALUES, "raw"),
        helper.make_tensor("typed", TensorProto.FLOAT, [len(VALUES)], VALUES),
        external("external", VALUES.shape, 3),
    ]
    assert groups(tensors, tmp_path) == [["raw", "typed", "external"]]


def test_ranges_that_overlap_but_are_not_one_are_compared(tmp_path: Path) -> None:
    block = random(1024).tobytes()
    (tmp_path / "data.bin").write_bytes(block * 3 + b"\1" + block)
    offsets = {"a": 0, "b": 4096, "c": 4097}
    tensors = [external(name, (2048,), offset) for name, offset in offsets.items()]
    assert groups(tensors, tmp_path) == [["a", "b"]]


def test_weights_that_overlap_beyond_measure_are_compared_only_so_far(tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(bytes(8 * MIB))
    tensors = [external(f"w{index}", (2 * MIB - 4096,), 4 * index) for index in range(2000)]
    assert sum(map(len, groups(tensors, tmp_path))) < 10


def sparse_file(path: Path, nbytes: int, content: bytes = b"", offset: int = 0) -> None:
    with path.open("wb") as file:
        file.truncate(nbytes)
        file.seek(offset)
        file.write(content)


def test_holes_of_a_sparse_file_equal_zeros_that_were_written(tmp_path: Path) -> None:
    sparse_file(tmp_path / "sparse.bin", 64 * MIB)
    sparse_file(tmp_path / "partly.bin", 16 * MIB, b"x", 9 * MIB + 5)
    (tmp_path / "zeros.bin").write_bytes(bytes(16 * MIB))
    tensors = [
        *(external(f"h{n}", (4 * MIB,), n * 16 * MIB, "sparse.bin") for n in range(4)),
        external("zeros", (4 * MIB,), 0, "zeros.bin"),
        external("partly", (4 * MIB,), 0, "partly.bin"),
    ]
    assert groups(tensors, tmp_path) == [["h0", "h1", "h2", "h3", "zeros"]]
    assert groups([tensors[0], tensors[5]], tmp_path) == []


def test_threads_may_map_many_files_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equal_weights, "read_thread_count", lambda: equal_weights.MAX_READ_THREADS)
    names = [f"w{number}" for number in range(200)]
    for name in names:
        sparse_file(tmp_path / name, MIB)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        found = groups([external(name, (MIB // 4,), 0, name) for name in names], tmp_path)
        assert found == [names]
    finally:
        sys.setswitchinterval(interval)


def test_large_weights_are_told_apart_in_every_part_that_is_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of weights of 5 MiB, a quarter as large.
    monkeypatch.setattr(equal_weights, "_SLICE_BYTES", 4 * MIB)
    values = random(5 * MIB // 4 + 3)
    places = [1000, 3 * MIB // 16, 3 * MIB // 4, 5 * MIB // 4 + 1]
    arrays = [values, *(changed(values, place) for place in places)]
    contents = [0, 1, 2, 0, 3, 3, 4, 2, 0]
    weights = {f"w{index}": arrays[number] for index, number in enumerate(contents)}
    assert groups(weights, tmp_path) == [["w0", "w3", "w8"], ["w2", "w7"], ["w4", "w5"]]


@given(
    contents=st.lists(st.integers(0, 4), min_size=1, max_size=12),
    size=st.sampled_from([1, 7, 511, 513, 4099, MIB + 3]),
    places=st.lists(st.integers(0, MIB + 2), min_size=5, max_size=5, unique=True),
    external=st.booleans(),
)
def test_the_groups_are_those_of_the_contents(
    tmp_path: Path, contents: list[int], size: int, places: list[int], external: bool
) -> None:
    base = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    arrays = []
    for place in places:
        array = base.copy()
        array[place % size] ^= 1  # contents that are as near to each other as can be
        arrays.append(array)
    weights = {f"w{index}": arrays[number] for index, number in enumerate(contents)}
    expected: dict[bytes, list[str]] = {}
    for index, number in enumerate(contents):
        expected.setdefault(arrays[number].tobytes(), []).append(f"w{index}")
    found = groups(weights, tmp_path, external=external)
    assert found == [names for names in expected.values() if len(names) > 1]


CHILD = """
import sys
from pathlib import Path
from memdiag.model.equal_weights import identical_weights
from memdiag.model.model_file import open_model
from memdiag.model.transposes import transposed_weight_pairs
with open_model(Path(sys.argv[1])) as model:
    groups = identical_weights(model)
    list(transposed_weight_pairs(model, model.weights))
status = Path("/proc/self/status").read_text().splitlines()
# The usage that the kernel reports to parents counts the parent's own pages as well.
peak = next(line.split()[1] for line in status if line.startswith("VmHWM"))
print([len(group) for group in groups], peak)
"""


def test_memory_stays_low_whatever_the_size_of_the_weights(tmp_path: Path) -> None:
    block = random(MIB // 4).tobytes()
    with (tmp_path / "data.bin").open("wb") as file:
        for _ in range(192):
            file.write(block)
        file.truncate(1 << 30)
    tensors = [external(f"w{index}", (4096, 4096), index * 64 * MIB) for index in range(16)]
    path = saved(of_tensors(tensors), tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(path)], capture_output=True, text=True, check=True
    )
    sizes, resident = done.stdout.rsplit(maxsplit=1)
    assert sizes == "[3, 13]"
    assert int(resident) * 1024 < 150 * MIB
