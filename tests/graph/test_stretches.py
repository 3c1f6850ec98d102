"""Weights read through a stretch at a time: all of their bytes, once, wherever they lie."""

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from memdiag.errors import ModelError
from memdiag.graph.reader import ModelFile, open_model
from memdiag.graph.stretches import (
    MOST_PIECES,
    STRETCH_BYTES,
    Stretch,
    StretchReader,
    stretches,
)
from tests.graph.resident import resident_bytes

MIB = 1 << 20


def opened(path: Path, *tensors: TensorProto) -> ModelFile:
    onnx.save(helper.make_model(helper.make_graph([], "g", [], [], list(tensors))), path)
    return open_model(path)


def external(name: str, offset: int, length: int, file: str = "w.bin") -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.UINT8, dims=[length])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", file), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
    return tensor


def read(model: ModelFile, found: list[Stretch]) -> dict[str, bytes]:
    """The bytes of each weight, put together from its pieces, which must follow each other."""
    whole = {weight.name: b"" for weight in model.weights}
    for piece, octets in StretchReader().read(found):
        name = model.weights[piece.place].name
        assert (len(whole[name]), len(octets)) == (piece.begin, piece.end - piece.begin)
        whole[name] += octets.tobytes()
    return whole


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    ranges=st.lists(
        st.tuples(
            st.integers(0, 6 * MIB),
            st.sampled_from(
                [1, 7, 1024, 65_536, 65_537, STRETCH_BYTES, STRETCH_BYTES + 1, 3 * MIB]
            ),
        ),
        max_size=12,
    ),
    in_order=st.booleans(),
)
def test_all_bytes_are_read_once_wherever_they_lie(
    tmp_path: Path, ranges: list[tuple[int, int]], in_order: bool
) -> None:
    data = np.random.default_rng(len(ranges)).integers(0, 256, 9 * MIB + 1, np.uint8).tobytes()
    (tmp_path / "w.bin").write_bytes(data)
    if in_order:
        ranges = sorted(ranges)
    tensors = [external(f"w{n}", *place) for n, place in enumerate(ranges)]
    # Those below a kibibyte are read with the model, and so are numbers in a field of their own.
    tensors.append(helper.make_tensor("typed", TensorProto.FLOAT, [300], [1.5] * 300))
    tensors.append(helper.make_tensor("none", TensorProto.FLOAT, [0], []))
    tensors.append(numpy_helper.from_array(np.arange(3000, dtype=np.int16), "raw"))
    with opened(tmp_path / "m.onnx", *tensors) as model:
        found = list(stretches(model, model.weights))
        assert all(stretch.length <= STRETCH_BYTES for stretch in found)
        expected = {weight.name: bytes(model.raw_bytes(weight)) for weight in model.weights}
        assert read(model, found) == expected


def test_small_neighbours_are_read_together_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(MIB))
    (tmp_path / "v.bin").write_bytes(bytes(MIB))
    places = [(0, 4096), (4096, 4096), (10_000, 4096), (200_000, 4096), (204_096, 70_000)]
    tensors = [external(f"w{n}", *place) for n, place in enumerate(places)]
    tensors.append(external("v", 274_096, 4096, "v.bin"))
    with opened(tmp_path / "m.onnx", *tensors) as model:
        found = list(stretches(model, model.weights))
        together = [[piece.place for piece, _ in stretch.pieces] for stretch in found]
        assert together == [[0, 1, 2], [3], [4], [5]]
        assert found[0].length == 14_096


def test_many_tiny_neighbours_are_read_in_several_stretches(tmp_path: Path) -> None:
    count = 2 * MOST_PIECES + 1
    data = np.arange(count, dtype=np.uint8).tobytes()
    (tmp_path / "w.bin").write_bytes(data)
    with opened(tmp_path / "m.onnx", *(external(f"w{n}", n, 1) for n in range(count))) as model:
        found = list(stretches(model, model.weights))
        assert [len(stretch.pieces) for stretch in found] == [MOST_PIECES, MOST_PIECES, 1]
        assert b"".join(read(model, found).values()) == data


def test_a_large_weight_is_aligned_wherever_it_lies(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(3 * MIB))
    with opened(tmp_path / "m.onnx", external("w", 13, 2 * MIB + 77)) as model:
        for _, octets in StretchReader().read(stretches(model, model.weights)):
            assert octets.ctypes.data % 64 == 0


@pytest.mark.parametrize("change", ["shorter", "gone"])
def test_a_file_that_changes_meanwhile_is_an_error(tmp_path: Path, change: str) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(2 * MIB))
    with opened(tmp_path / "m.onnx", external("w", 0, 2 * MIB)) as model:
        found = list(stretches(model, model.weights))
        if change == "shorter":
            (tmp_path / "w.bin").write_bytes(bytes(MIB))
        else:
            (tmp_path / "w.bin").unlink()
        with pytest.raises(ModelError, match=r"w\.bin: it .* (shorter|no longer)"):
            list(StretchReader().read(found))


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")
def test_nothing_is_mapped(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(8 * MIB))
    with opened(tmp_path / "m.onnx", external("w", 0, 8 * MIB)) as model:
        for _, octets in StretchReader().read(stretches(model, model.weights)):
            assert not octets.any()
            assert resident_bytes(tmp_path / "w.bin") == 0
