"""Saving editors: the same bytes in every storage, the same results, and nothing half-written."""

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import get_args

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto

from memdiag.errors import ReportError, UsageError
from memdiag.model.model_file import open_model
from memdiag.rewrites import saving
from memdiag.rewrites.model_editor import ModelEditor, TargetStorage
from memdiag.rewrites.saving import (
    EXTERNAL_ALIGNMENT,
    can_refer_to_original,
    referenced_weight_bytes,
    write_rewritten_model,
)
from tests.model_text import text_model, with_weights
from tests.rewrites.rewriting import Feeds, run
from tests.rewrites.weights_everywhere import (
    BIG,
    RNG,
    contents,
    everywhere,
    external,
    moved,
    written,
)

STORAGES: tuple[TargetStorage, ...] = get_args(TargetStorage)


ON_STORAGES = pytest.mark.parametrize("storage", STORAGES)
FEEDS = [{"c": np.array(flag), "x": np.ones((2, 20), np.float32)} for flag in (True, False)]


def results(path: Path, *feeds: Feeds) -> list[bytes]:
    """Return the outputs of a model with `feeds`, or those of weights everywhere."""
    return [array.tobytes() for inputs in feeds or FEEDS for array in run(path, inputs).values()]


def saved(path: Path, storage: TargetStorage, target: Path | None = None) -> tuple[Path, ...]:
    """Save the unchanged model at `path` as ``saved.onnx`` next to it, and return the files."""
    with open_model(path) as file:
        target = target or path.with_name("saved.onnx")
        return write_rewritten_model(ModelEditor(file), target, storage)


@ON_STORAGES
@pytest.mark.parametrize("source", ["embedded", "external", "external in a folder"])
def test_weights_are_the_same_wherever_they_go(
    tmp_path: Path, source: str, storage: TargetStorage
) -> None:
    model = everywhere()
    if source == "embedded":
        path = written(model, tmp_path)
    else:
        location = "inner/model.data" if source.endswith("folder") else "model.data"
        path = moved(model, tmp_path, location)
    before = {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()}
    files = saved(path, storage)
    assert files[0] == tmp_path / "saved.onnx"
    assert contents(files[0]) == contents(path)
    assert results(files[0]) == results(path)
    onnx.checker.check_model(files[0])
    assert {each: each.read_bytes() for each in before} == before
    made = {each for each in tmp_path.rglob("*") if each.is_file()} - before.keys()
    assert made == set(files)
    assert len(files) == (2 if storage == "external" else 1)


def test_external_data_is_aligned_and_shared(tmp_path: Path) -> None:
    with open_model(moved(everywhere(), tmp_path)) as file:
        editor = ModelEditor(file)
        assert referenced_weight_bytes(editor) == 4 * BIG.nbytes
        model, data = write_rewritten_model(editor, tmp_path / "saved.onnx", "external")
    with open_model(model) as file:
        places = {one.name: one.offset for one in file.weights if one.storage == "external"}
    assert places["raw"] == places["typed"]
    assert all(
        offset is not None and offset % EXTERNAL_ALIGNMENT == 0 for offset in places.values()
    )
    assert data.stat().st_size < 8 * EXTERNAL_ALIGNMENT


@ON_STORAGES
def test_what_the_reference_leaves_out_is_known(tmp_path: Path, storage: TargetStorage) -> None:
    model = with_weights("g (float[2, 20] x) => (float[2, 30] y) { y = MatMul(x, w) }", w=BIG)
    external(model.graph.initializer[0], "w.bin", None, None)
    (tmp_path / "w.bin").write_bytes(BIG.tobytes() + b"more")
    with open_model(written(model, tmp_path)) as file:
        assert referenced_weight_bytes(ModelEditor(file)) == BIG.nbytes
    (path, *_) = saved(file.path, storage)
    assert contents(path) == [("", "w", BIG.tobytes())]


@ON_STORAGES
def test_a_weight_without_elements(tmp_path: Path, storage: TargetStorage) -> None:
    text = "g (float[2, 20] x) => (float[2, 20] y) { y = Concat <axis = 0> (x, none) }"
    model = with_weights(text, none=BIG[:0, :20])
    external(model.graph.initializer[0], "w.bin", 0, 0)
    (tmp_path / "w.bin").write_bytes(b"something")
    (path,) = saved(written(model, tmp_path), storage)
    x = BIG[:2, :20]
    assert results(path, {"x": x}) == [x.tobytes()]


@ON_STORAGES
def test_a_large_new_weight(tmp_path: Path, storage: TargetStorage) -> None:
    large = RNG.standard_normal((30, 1000)).astype(np.float32)
    with open_model(written(everywhere(), tmp_path)) as file:
        editor = ModelEditor(file)
        graph = editor.model.graph
        value = ir.Value(name="new", const_value=ir.tensor(large, name="new"))
        graph.register_initializer(value)
        outputs = [each for each in graph.outputs if each.name == "f"]
        call = outputs[0].producer()
        assert call is not None
        editor.insert_before(call, "MatMul", [call.inputs[0], value], name="unread")
        files = write_rewritten_model(editor, tmp_path / "saved.onnx", storage)
    stored = {name: data for _, name, data in contents(files[0])}
    assert stored["new"] == large.tobytes()
    proto = onnx.load(files[0], load_external_data=False)
    new = next(tensor for tensor in proto.graph.initializer if tensor.name == "new")
    assert (new.data_location == TensorProto.EXTERNAL) == (storage == "external")


def test_weights_stay_only_in_their_folder(tmp_path: Path) -> None:
    with open_model(moved(everywhere(), tmp_path / "a")) as file:
        editor = ModelEditor(file)
        assert can_refer_to_original(editor, tmp_path / "a" / "saved.onnx")
        assert can_refer_to_original(editor, tmp_path / "saved.onnx")
        assert not can_refer_to_original(editor, tmp_path / "b" / "saved.onnx")
        with pytest.raises(UsageError, match="only be referenced from their own folder"):
            write_rewritten_model(editor, tmp_path / "b" / "saved.onnx", "in_place")
        below = write_rewritten_model(editor, tmp_path / "saved.onnx", "in_place")[0]
    assert contents(below) == contents(tmp_path / "a" / "model.onnx")


@pytest.fixture
def parted(tmp_path: Path) -> Path:
    """Return a model of three weights: `out` in external data at an odd place, two inside.

    Of those inside `even` lies at a multiple of 64, `odd` does not.
    """
    text = """g (float[2, 20] x) => (float[2, 30] y) {
        a = MatMul(x, out) b = MatMul(x, even) c = MatMul(x, odd) y = Sum(a, b, c) }"""
    model = with_weights(text, out=BIG, even=BIG, odd=BIG)
    external(model.graph.initializer[0], "w.bin", 3, BIG.nbytes)
    (tmp_path / "w.bin").write_bytes(b"abc" + BIG.tobytes())
    for _ in range(64):
        model.producer_name += "p"
        path = written(model, tmp_path)
        with open_model(path) as file:
            even, odd = ((one.offset or 0) % 64 for one in file.weights if one.name != "out")
        if not even and odd:
            return path
    raise AssertionError("no length of the name brings the weight there")


def test_what_cannot_be_referred_to_goes_into_the_model(
    tmp_path: Path, parted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_model(parted) as file:
        editor = ModelEditor(file)
        assert can_refer_to_original(editor, tmp_path / "saved.onnx")
        (path,) = write_rewritten_model(editor, tmp_path / "saved.onnx", "in_place")
        monkeypatch.setattr(saving, "MAX_EMBEDDED_BYTES", BIG.nbytes - 1)
        assert not can_refer_to_original(editor, tmp_path / "saved.onnx")
        with pytest.raises(UsageError, match="not aligned and too large"):
            write_rewritten_model(editor, tmp_path / "again.onnx", "in_place")
        assert not (tmp_path / "again.onnx").exists()
    stored = onnx.load(path, load_external_data=False).graph.initializer
    places = {one.name: {each.key: each.value for each in one.external_data} for one in stored}
    assert places["out"] == {"location": "w.bin", "offset": "3", "length": str(BIG.nbytes)}
    assert places["even"]["location"] == parted.name
    assert places["odd"] == {}
    assert contents(path) == contents(parted)
    x = {"x": BIG[:2, :20]}
    assert results(path, x) == results(parted, x)


@ON_STORAGES
def test_a_model_behind_a_link(tmp_path: Path, storage: TargetStorage) -> None:
    real = moved(everywhere(), tmp_path / "blobs")
    (tmp_path / "snapshot").mkdir()
    for name, target in (("model.onnx", "model.onnx"), ("model.data", "model.data")):
        renamed = tmp_path / "blobs" / f"hash-of-{target}"
        (tmp_path / "blobs" / target).rename(renamed)
        (tmp_path / "snapshot" / name).symlink_to(renamed)
    path = tmp_path / "snapshot" / real.name
    folder = tmp_path / ("blobs" if storage == "in_place" else "snapshot")
    (copy, *_) = saved(path, storage, folder / "saved.onnx")
    assert contents(copy) == contents(path)


@ON_STORAGES
def test_what_was_there_is_replaced_as_a_whole(tmp_path: Path, storage: TargetStorage) -> None:
    path = written(everywhere(), tmp_path)
    for _ in range(2):
        files = saved(path, storage)
    assert {path, *files} == set(tmp_path.iterdir())
    assert contents(files[0]) == contents(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_no_permission_is_told(tmp_path: Path) -> None:
    path = written(everywhere(), tmp_path)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    with pytest.raises(ReportError, match="Permission denied"):
        saved(path, "embedded", closed / "saved.onnx")


def test_a_path_through_a_file_is_told(tmp_path: Path) -> None:
    path = written(everywhere(), tmp_path)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ReportError, match="hoose another output"):
        saved(path, "embedded", tmp_path / "file" / "saved.onnx")


def test_weights_that_are_too_many_are_not_embedded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "_MAX_PROTO_BYTES", 5000)
    path = written(everywhere(), tmp_path)
    with pytest.raises(UsageError, match="2 GB and more"):
        saved(path, "embedded")
    assert [each.name for each in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize(
    ("storage", "room"),
    [
        ("embedded", 3000),
        ("external", 3000),
        ("external", EXTERNAL_ALIGNMENT + 100),
        ("in_place", 500),
    ],
)
def test_a_full_disk_leaves_what_was_there(
    tmp_path: Path,
    storage: TargetStorage,
    room: int,
    file_size_limit: Callable[[int], AbstractContextManager[None]],
) -> None:
    path = written(everywhere(), tmp_path)
    target = tmp_path / "saved.onnx"
    old = {target: b"the old model", tmp_path / "saved.onnx.data": b"the old weights"}
    for each, data in old.items():
        each.write_bytes(data)
    problem = r"saved\.onnx: cannot be written \(File too large\)\. Free"
    with file_size_limit(room), pytest.raises(ReportError, match=problem):
        saved(path, storage, target)
    assert {each: each.read_bytes() for each in old} == old
    assert set(tmp_path.iterdir()) == {path, *old}


@pytest.mark.parametrize("storage", ["external", "embedded"])
def test_a_file_that_became_shorter_is_told(tmp_path: Path, storage: TargetStorage) -> None:
    path = moved(everywhere(), tmp_path)
    with open_model(path) as file:
        editor = ModelEditor(file)
        os.truncate(tmp_path / "model.data", EXTERNAL_ALIGNMENT + 100)
        with pytest.raises(ReportError, match="cannot be written"):
            write_rewritten_model(editor, tmp_path / "saved.onnx", storage)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model.data", "model.onnx"]


@contextmanager
def memory_limit(nbytes: int) -> Iterator[None]:
    """Let the process map only so much more of private memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    with open("/proc/self/status") as status:
        used = next(int(line.split()[1]) for line in status if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (used * 1024 + nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["in_place", "external"])
def test_large_weights_are_never_in_memory(tmp_path: Path, storage: TargetStorage) -> None:
    model = text_model("g (float[2, 20] x) => (float[2, 4194304] y) { y = MatMul(x, w) }", 9)
    tensor = model.graph.initializer.add(name="w", data_type=1, dims=[20, 1 << 22])
    external(tensor, "w.bin", 0, 20 << 24)
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(20 << 24)  # 320 MiB of zeros, that take no room
    with open_model(written(model, tmp_path)) as opened, memory_limit(64 << 20):
        files = write_rewritten_model(ModelEditor(opened), tmp_path / "saved.onnx", storage)
    size = sum(each.stat().st_size for each in files)
    assert size - (0 if storage == "in_place" else 20 << 24) < 1000
