from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.rules.building import MIB, rows
from tests.rules.examining import findings, found
from tests.rules.measuring import NEWEST, above_baseline, xray

RULE = "external-data-unused"
SIZE = 4 * MIB


def external(folder: Path, ranges: list[tuple[int, int]], size: int, *, read: bool = True) -> Path:
    """Return a model with a weight of each (offset, bytes) in a file of `size` bytes, all a hole.

    The first weight is read, and the others too unless `read` is False.
    """
    proto = rows(np.zeros((2, 2), np.float32))
    del proto.graph.initializer[:]
    for index, (offset, nbytes) in enumerate(ranges):
        tensor = TensorProto(
            name=f"w{index or ''}", data_type=TensorProto.FLOAT, dims=[nbytes // 16, 4]
        )
        tensor.data_location = TensorProto.EXTERNAL
        for key, text in (("location", "w.data"), ("offset", offset), ("length", nbytes)):
            tensor.external_data.add(key=key, value=str(text))
        proto.graph.initializer.append(tensor)
        if index and read:
            proto.graph.node.append(
                onnx.helper.make_node("Gather", [tensor.name, "rows"], [f"y{index}"])
            )
            proto.graph.output.append(onnx.helper.make_empty_tensor_value_info(f"y{index}"))
    with open(folder / "w.data", "wb") as file:
        file.truncate(size)
    onnx.save(proto, folder / "model.onnx")
    return folder / "model.onnx"


def test_bytes_at_the_end(tmp_path: Path) -> None:
    model = external(tmp_path, [(0, SIZE)], SIZE + 64 * MIB)
    message = found(RULE, model, tmp_path, bytes=0, peak_bytes=0).message
    assert message.startswith("64 MiB of the 68 MiB in w.data ")
    assert "(64 MiB of them at the end)" in message


def test_holes_and_weights_that_nothing_reads(tmp_path: Path) -> None:
    ranges = [(40 * MIB, SIZE), (48 * MIB, 24 * MIB)]
    path = external(tmp_path, ranges, 72 * MIB, read=False)
    assert found(RULE, path, tmp_path).message.startswith("68 MiB of the 72 MiB")
    assert not findings(RULE, external(tmp_path, ranges, 72 * MIB), tmp_path)


def test_overlapping_ranges_count_once(tmp_path: Path) -> None:
    ranges = [(0, SIZE), (SIZE // 2, SIZE), (0, SIZE)]
    model = external(tmp_path, ranges, SIZE * 3 // 2 + 64 * MIB)
    assert found(RULE, model, tmp_path).message.startswith("64 MiB of the 70 MiB")


def test_near_misses(tmp_path: Path) -> None:
    large = 640 * MIB
    too_little = external(tmp_path, [(0, SIZE)], SIZE + 64 * MIB - 1)
    assert not findings(RULE, too_little, tmp_path)
    too_small_a_share = external(tmp_path, [(0, large)], large + 64 * MIB)
    assert not findings(RULE, too_small_a_share, tmp_path)
    assert not findings(RULE, rows(np.zeros((2, 2), np.float32)), tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", ["1.24.4", NEWEST])
def test_neither_holes_nor_odd_offsets_take_memory(tmp_path: Path, version: str) -> None:
    taken = []
    for offset, size in ((0, SIZE), (64 * MIB + 1, SIZE + 128 * MIB)):
        path = external(tmp_path, [(offset, SIZE)], size)
        taken.append(above_baseline(xray(path, version)))
    assert abs(taken[1] - taken[0]) < MIB
