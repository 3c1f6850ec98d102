"""The file that is written piece by piece is the one protobuf itself would mean."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from onnx import helper

from memdiag.errors import UsageError
from sample_models import writing
from sample_models.weights import RandomWeight
from sample_models.writing import write_model

SHARED = RandomWeight(name="shared", shape=(4, 64), seed=1)
INNER = RandomWeight(name="inner", shape=(64, 32), seed=2)


def nested_graph() -> onnx.GraphProto:
    """Return an If with a weight outside, one inside, a small tensor that stays, and texts."""
    branch = "{0} () => (float[4, 32] {0}) {{ {0} = MatMul(shared, {1}) }}"
    graph: onnx.GraphProto = onnx.parser.parse_graph(f"""nested (bool flag) => (float[4, 32] y)
        <float[64, 32] small = {{{", ".join(["0.5"] * 2048)}}}> {{ y = If(flag) <
            else_branch = {branch.format("else", "small")},
            then_branch = {branch.format("then", "inner")}> }}""")
    graph.initializer.insert(0, SHARED.tensor())
    then = graph.node[0].attribute[1].g
    then.initializer.append(INNER.tensor())
    then.doc_string = "a branch"
    return graph


def content(weight: RandomWeight) -> bytes:
    return b"".join(weight.chunks())


def filled(model: onnx.ModelProto) -> onnx.ModelProto:
    """`model` with the content put in by protobuf's own means."""
    model.graph.initializer[0].raw_data = content(SHARED)
    model.graph.node[0].attribute[1].g.initializer[0].raw_data = content(INNER)
    return model


def test_embedded_is_what_protobuf_would_write(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    write_model(nested_graph(), [SHARED, INNER], path, False)
    written = onnx.load_model(path)
    expected = onnx.ModelProto()
    expected.CopyFrom(written)
    expected.graph.CopyFrom(nested_graph())
    assert written == filled(expected)
    assert path.stat().st_size == written.ByteSize()


def test_external_is_embedded_in_two_files(tmp_path: Path) -> None:
    write_model(nested_graph(), [SHARED, INNER], tmp_path / "embedded.onnx", False)
    write_model(nested_graph(), [SHARED, INNER], tmp_path / "external.onnx", True)
    external = onnx.load_model(tmp_path / "external.onnx", load_external_data=False)
    data = (tmp_path / "external.onnx.data").read_bytes()
    inner = external.graph.node[0].attribute[1].g.initializer[0]
    for tensor, weight in ((external.graph.initializer[0], SHARED), (inner, INNER)):
        where = {entry.key: entry.value for entry in tensor.external_data}
        offset, length = int(where["offset"]), int(where["length"])
        assert where["location"] == "external.onnx.data"
        assert offset % 65536 == 0
        assert data[offset : offset + length] == content(weight)
    one, other = (onnx.load_model(tmp_path / f"{name}.onnx") for name in ("external", "embedded"))
    assert one.graph.initializer[1] == other.graph.initializer[1]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**31, "8080808008")],
)
def test_varints_are_protobufs(value: int, expected: str) -> None:
    assert writing._varint(value).hex() == expected


def test_a_file_at_the_limit_is_written_and_one_above_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(nested_graph(), [SHARED, INNER], tmp_path / "model.onnx", False)
    size = (tmp_path / "model.onnx").stat().st_size
    monkeypatch.setattr(writing, "EMBEDDED_LIMIT", size)
    write_model(nested_graph(), [SHARED, INNER], tmp_path / "fits.onnx", False)
    monkeypatch.setattr(writing, "EMBEDDED_LIMIT", size - 1)
    with pytest.raises(UsageError, match="--external"):
        write_model(nested_graph(), [SHARED, INNER], tmp_path / "large.onnx", False)
    write_model(nested_graph(), [SHARED, INNER], tmp_path / "large-external.onnx", True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "fits.onnx",
        "large-external.onnx",
        "large-external.onnx.data",
        "model.onnx",
    ]


@pytest.mark.parametrize("external", [False, True])
def test_a_failure_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, external: bool
) -> None:
    def full(self: RandomWeight) -> Iterator[bytes]:
        yield b"begun"
        raise OSError(28, "No space left on device")

    path = tmp_path / "model.onnx"
    path.write_bytes(b"the one before")
    monkeypatch.setattr(RandomWeight, "chunks", full)
    with pytest.raises(UsageError, match=r"model\.onnx: cannot be written \(No space left"):
        write_model(nested_graph(), [SHARED, INNER], path, external)
    assert [found.name for found in tmp_path.iterdir()] == ["model.onnx"]
    assert path.read_bytes() == b"the one before"


@pytest.mark.parametrize("external", [False, True])
def test_memory_does_not_grow_with_the_size(tmp_path: Path, external: bool) -> None:
    weight = RandomWeight(name="shared", shape=(40, 256, 1024), seed=1)
    graph = helper.make_graph([], "weight", [], [], [weight.tensor()])
    tracemalloc.start()
    try:
        write_model(graph, [weight], tmp_path / "model.onnx", external)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert weight.nbytes > 40e6
    assert peak < 20e6
