import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from memdiag.model import equal_weights
from memdiag.model.equal_weights import identical_weights
from memdiag.model.model_file import open_model

MIB = 1 << 20
FEW_NUMBERS, MANY_NUMBERS = 10_000, 20_000
"""Of a byte each: as many as are held with the graph, and as are read where they lie."""


def _save(path: Path, tensors: list[TensorProto]) -> Path:
    inner = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "main",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None])],
        tensors,
    )
    model = helper.make_model(inner, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path


def _groups(path: Path) -> list[list[str]]:
    with open_model(path) as model:
        return [[weight.name for weight in group] for group in identical_weights(model)]


def _external(name: str, shape: tuple[int, ...], offset: int, file: str) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
    tensor.data_location = TensorProto.EXTERNAL
    length = 4 * int(np.prod(shape))
    for key, value in (("location", file), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
    return tensor


def _random(count: int, seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


def _changed(
    values: np.ndarray[tuple[int], np.dtype[np.float32]], place: int
) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    other = values.copy()
    other[place] += 1
    return other


def test_equal_bytes_are_a_group_and_one_other_element_is_none(tmp_path: Path) -> None:
    values = _random(3 * MIB // 4)
    # Between two probes, where only reading all of it tells.
    arrays = {"a": values, "b": _changed(values, 1000), "c": values, "d": _random(len(values), 1)}
    path = _save(tmp_path / "m.onnx", [numpy_helper.from_array(v, k) for k, v in arrays.items()])
    assert _groups(path) == [["a", "c"]]


@pytest.mark.parametrize("place", [0, 1000, MIB // 4 - 1, MIB // 4, 3 * MIB // 4 - 1])
def test_a_single_different_element_is_seen_wherever_it_is(tmp_path: Path, place: int) -> None:
    values = _random(3 * MIB // 4)
    tensors = [
        numpy_helper.from_array(values, "a"),
        numpy_helper.from_array(_changed(values, place), "b"),
    ]
    assert _groups(_save(tmp_path / "m.onnx", tensors)) == []


def test_bytes_count_and_not_type_or_shape(tmp_path: Path) -> None:
    values = _random(64)
    tensors = [
        numpy_helper.from_array(values, "a"),
        numpy_helper.from_array(values.reshape(8, 8), "b"),
        numpy_helper.from_array(values.view(np.int32), "c"),
        numpy_helper.from_array(values[:63], "shorter"),
    ]
    assert _groups(_save(tmp_path / "m.onnx", tensors)) == [["a", "b", "c"]]


def test_nan_equals_itself_and_the_two_zeros_differ(tmp_path: Path) -> None:
    nan = np.full(2048, np.nan, np.float32)
    zero = np.zeros(2048, np.float32)
    tensors = [
        numpy_helper.from_array(value, name)
        for name, value in {"a": nan, "b": nan, "plus": zero, "minus": -zero}.items()
    ]
    assert _groups(_save(tmp_path / "m.onnx", tensors)) == [["a", "b"]]


def _typed(name: str, values: Sequence[int]) -> TensorProto:
    return helper.make_tensor(name, TensorProto.INT8, [len(values)], values)


def test_numbers_in_typed_fields_are_compared_as_the_bytes_that_they_stand_for(
    tmp_path: Path,
) -> None:
    values = np.random.default_rng().integers(-128, 127, 20_000).astype(np.int8)
    other = values.copy()
    other[1000] += 1
    tensors = [
        numpy_helper.from_array(values, "raw"),
        _typed("typed", values.tolist()),
        _typed("other", other.tolist()),
    ]
    assert _groups(_save(tmp_path / "m.onnx", tensors)) == [["raw", "typed"]]


def test_one_range_of_a_file_is_the_same_without_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data.bin").write_bytes(_random(MIB).tobytes())
    tensors = [_external(name, (MIB,), 0, "data.bin") for name in ("a", "b", "c")]
    with open_model(_save(tmp_path / "m.onnx", tensors)) as model:
        monkeypatch.setattr(model, "raw_bytes", None)
        [group] = identical_weights(model)
        assert [weight.name for weight in group] == ["a", "b", "c"]


def test_weights_in_one_range_are_grouped_with_those_of_its_content_elsewhere(
    tmp_path: Path,
) -> None:
    block = _random(64).tobytes()
    (tmp_path / "data.bin").write_bytes(block + bytes(256) + block)
    offsets = {"zeros": 256, "a": 512, "b": 0, "again": 512, "b again": 0}
    tensors = [_external(name, (64,), offset, "data.bin") for name, offset in offsets.items()]
    tensors += [_external(name, (32,), 0, "data.bin") for name in ("short", "short again")]
    expected = [["a", "b", "again", "b again"], ["short", "short again"]]
    assert _groups(_save(tmp_path / "m.onnx", tensors)) == expected


@pytest.mark.parametrize(("count", "compared"), [(FEW_NUMBERS, False), (MANY_NUMBERS, True)])
def test_what_would_have_to_be_made_as_a_whole_is_not_compared_where_it_is_large(
    count: int, compared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equal_weights, "MAX_DECODED_BYTES", FEW_NUMBERS - 1)
    values = np.random.default_rng().integers(0, 127, count).tolist()
    path = _save(tmp_path / "m.onnx", [_typed(name, values) for name in "ab"])
    assert bool(_groups(path)) == compared
    with open_model(path) as model:
        assert {equal_weights.can_be_compared(model, one) for one in model.weights} == {compared}


def test_raw_typed_and_external_data_are_compared_with_each_other(tmp_path: Path) -> None:
    values = _random(1024)
    (tmp_path / "data.bin").write_bytes(b"abc" + values.tobytes())
    tensors = [
        numpy_helper.from_array(values, "raw"),
        helper.make_tensor("typed", TensorProto.FLOAT, [1024], values),
        _external("external", (1024,), 3, "data.bin"),
    ]
    assert _groups(_save(tmp_path / "m.onnx", tensors)) == [["raw", "typed", "external"]]


def test_empty_weights_and_strings_are_in_no_group(tmp_path: Path) -> None:
    tensors = [
        numpy_helper.from_array(np.zeros((0, 3), np.float32), "empty"),
        numpy_helper.from_array(np.zeros((0, 3), np.float32), "empty too"),
        numpy_helper.from_array(np.array(["word"], object), "words"),
        numpy_helper.from_array(np.array(["word"], object), "words again"),
    ]
    assert _groups(_save(tmp_path / "m.onnx", tensors)) == []


def test_ranges_that_overlap_but_are_not_one_are_compared(tmp_path: Path) -> None:
    block = _random(1024).tobytes()
    (tmp_path / "data.bin").write_bytes(block * 3 + b"\1" + block)
    tensors = [
        _external("a", (2048,), 0, "data.bin"),
        _external("b", (2048,), 4096, "data.bin"),
        _external("c", (2048,), 4097, "data.bin"),
    ]
    assert _groups(_save(tmp_path / "m.onnx", tensors)) == [["a", "b"]]


def test_weights_that_overlap_beyond_measure_are_compared_only_so_far(tmp_path: Path) -> None:
    size = 8 * MIB
    with (tmp_path / "data.bin").open("wb") as file:
        file.write(b"\0" * size)
    count = size // 4 - 4096
    tensors = [_external(f"w{index}", (count,), 4 * index, "data.bin") for index in range(2000)]
    path = _save(tmp_path / "m.onnx", tensors)
    with open_model(path) as model:
        assert sum(map(len, identical_weights(model))) < 10


def test_holes_of_a_sparse_file_equal_zeros_that_were_written(tmp_path: Path) -> None:
    with (tmp_path / "sparse.bin").open("wb") as file:
        file.truncate(64 * MIB)
    (tmp_path / "zeros.bin").write_bytes(bytes(16 * MIB))
    with (tmp_path / "partly.bin").open("wb") as file:
        file.truncate(16 * MIB)
        file.seek(9 * MIB + 5)
        file.write(b"x")
    tensors = [
        *(_external(f"h{n}", (4 * MIB,), n * 16 * MIB, "sparse.bin") for n in range(4)),
        _external("zeros", (4 * MIB,), 0, "zeros.bin"),
        _external("partly", (4 * MIB,), 0, "partly.bin"),
    ]
    path = _save(tmp_path / "m.onnx", tensors)
    assert _groups(path) == [["h0", "h1", "h2", "h3", "zeros"]]
    path = _save(tmp_path / "pair.onnx", [tensors[0], tensors[5]])
    assert _groups(path) == []


def test_threads_may_map_many_files_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equal_weights, "read_thread_count", lambda: equal_weights.MAX_READ_THREADS)
    names = [f"w{number}" for number in range(200)]
    for name in names:
        with (tmp_path / name).open("wb") as file:
            file.truncate(MIB)
    path = _save(tmp_path / "m.onnx", [_external(name, (MIB // 4,), 0, name) for name in names])
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        assert _groups(path) == [names]
    finally:
        sys.setswitchinterval(interval)


def test_large_weights_are_told_apart_in_every_part_that_is_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        equal_weights, "_SLICE_BYTES", 4 * MIB
    )  # of weights of 5 MiB, a quarter as large
    values = _random(5 * MIB // 4 + 3)
    places = [1000, 3 * MIB // 16, 3 * MIB // 4, 5 * MIB // 4 + 1]
    arrays = [values, *(_changed(values, place) for place in places)]
    tensors = [
        numpy_helper.from_array(arrays[number], f"w{index}")
        for index, number in enumerate([0, 1, 2, 0, 3, 3, 4, 2, 0])
    ]
    groups = _groups(_save(tmp_path / "m.onnx", tensors))
    assert groups == [["w0", "w3", "w8"], ["w2", "w7"], ["w4", "w5"]]


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
    tensors = [numpy_helper.from_array(arrays[n], f"w{i}") for i, n in enumerate(contents)]
    path = _save(tmp_path / "m.onnx", tensors)
    if external:
        onnx.save(
            onnx.load(path), path, save_as_external_data=True, location="data", size_threshold=0
        )
    expected: dict[bytes, list[str]] = {}
    for index, number in enumerate(contents):
        expected.setdefault(arrays[number].tobytes(), []).append(f"w{index}")
    assert _groups(path) == [names for names in expected.values() if len(names) > 1]


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
    written = 192 * MIB
    block = _random(MIB).tobytes()
    with (tmp_path / "data.bin").open("wb") as file:
        for _ in range(written // len(block)):
            file.write(block)
        file.truncate(1 << 30)
    shape, size = (4096, 4096), 64 * MIB
    count = (1 << 30) // size
    tensors = [_external(f"w{index}", shape, index * size, "data.bin") for index in range(count)]
    path = _save(tmp_path / "m.onnx", tensors)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(path)], capture_output=True, text=True, check=True
    )
    groups, resident = done.stdout.rsplit(maxsplit=1)
    assert groups == "[3, 13]"
    assert int(resident) * 1024 < 150 * MIB
