"""Where changed models lie: nothing half-written stays, and all files that are needed are named."""

import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import onnx
import pytest

from memdiag.errors import ReportError, UsageError
from memdiag.fixing.changes import Change
from memdiag.fixing.model_writer import BuiltModel, ModelWriter, SavedModel
from memdiag.model.model_file import ModelFile, open_model
from memdiag.rewrites.model_editor import ModelEditor, TargetStorage
from tests.fixing.renamed import COLUMNS, ROWS, finding, renaming, write

WEIGHT_BYTES = ROWS * COLUMNS * 4
EARLIER = "from an earlier time"
STORAGES = pytest.mark.parametrize("storage", [None, "external", "in_place"])
Open = Callable[..., ModelFile]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """A function that writes and opens a model, ``m.onnx`` unless another path is given."""
    with ExitStack() as files:

        def write_and_open(path: Path | None = None, *, external: bool = False) -> ModelFile:
            model = write(tmp_path / "m.onnx" if path is None else path, external=external)
            return files.enter_context(open_model(model))

        yield write_and_open


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def edited(files: ModelWriter, storage: TargetStorage | None = None, *suffixes: str) -> ModelEditor:
    """Return the model with `suffixes` in the name of its graph."""
    editor = files.editor([Change(renaming(one, one), (finding(),)) for one in suffixes or ("_1",)])
    editor.storage = storage
    return editor


def publish(files: ModelWriter, built: BuiltModel) -> SavedModel:
    """Stage and publish `built`; return it with its files at the target."""
    files.stage(built)
    targets = files.staged_targets
    files.publish_staged()
    return SavedModel(built, (*targets, *built.kept))


def published(file: ModelFile, target: Path, storage: TargetStorage | None = None) -> SavedModel:
    files = ModelWriter(file, target)
    with files.built(edited(files, storage)) as built:
        return publish(files, built)


def test_an_embedded_model_is_one_file(tmp_path: Path, opened: Open) -> None:
    target = tmp_path / "new" / "out.onnx"
    files = ModelWriter(opened(), target)
    with files.built(edited(files)) as built:
        assert not target.exists()
        output = publish(files, built)
    assert output.files == (target,)
    assert (output.built.kept, output.built.kept_bytes) == ((), 0)
    assert output.built.disk_bytes == target.stat().st_size
    assert names(tmp_path) == ["m.onnx", "new", "new/out.onnx"]
    assert onnx.load(target).graph.name == "g_1"


def test_external_data_goes_beside_the_model(tmp_path: Path, opened: Open) -> None:
    target = tmp_path / "out.onnx"
    output = published(opened(), target, "external")
    assert output.files == (target, tmp_path / "out.onnx.data")
    assert output.built.kept == ()
    assert output.built.disk_bytes == sum(path.stat().st_size for path in output.files)
    assert names(tmp_path) == ["m.onnx", "out.onnx", "out.onnx.data"]
    onnx.checker.check_model(target)


@pytest.mark.parametrize("name", ["out.onnx", "out.onnx.data"])
def test_a_target_that_another_process_has_written_stays(
    tmp_path: Path, opened: Open, name: str
) -> None:
    target = tmp_path / "out.onnx"
    target.write_bytes(b"earlier")
    writer = ModelWriter(opened(), target)
    with writer.built(edited(writer)) as built:
        (tmp_path / name).write_bytes(b"theirs")
        with pytest.raises(ReportError, match=r"out\.onnx: another process has written it"):
            publish(writer, built)
    writer.discard_staged()
    assert (tmp_path / name).read_bytes() == b"theirs"
    assert names(tmp_path) == sorted({"m.onnx", "out.onnx", name})


@pytest.mark.parametrize(("mode", "expected"), [(0o600, 0o600), (0o444, 0o644)])
def test_what_others_cannot_read_they_cannot_read_afterwards(
    tmp_path: Path, opened: Open, mode: int, expected: int
) -> None:
    file = opened()
    file.path.chmod(mode)  # the owner can replace the result
    output = published(file, tmp_path / "out.onnx", "external")
    assert [stat.S_IMODE(path.stat().st_mode) for path in output.files] == [expected] * 2


def test_a_file_system_without_modes_is_written_to(
    tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    file = opened()
    monkeypatch.setattr(Path, "chmod", refused)
    assert published(file, tmp_path / "out.onnx").files == (tmp_path / "out.onnx",)


def test_weights_that_stay_are_counted_with_the_files_they_stay_in(
    tmp_path: Path, opened: Open
) -> None:
    data, target = tmp_path / "m.onnx.bin", tmp_path / "out.onnx"
    output = published(opened(external=True), target)
    assert output.files == (target, data)
    assert (output.built.kept, output.built.kept_bytes) == ((data,), WEIGHT_BYTES)
    assert output.built.disk_bytes == target.stat().st_size + data.stat().st_size
    assert target.stat().st_size < 1000
    onnx.checker.check_model(target)


def test_from_another_folder_weights_are_copied(tmp_path: Path, opened: Open) -> None:
    file = opened(tmp_path / "here" / "m.onnx", external=True)
    output = published(file, tmp_path / "there" / "out.onnx")
    assert output.built.kept == ()
    assert [path.name for path in output.files] == ["out.onnx", "out.onnx.data"]


def test_a_file_of_several_names_is_not_referred_to(tmp_path: Path, opened: Open) -> None:
    file = opened()
    os.link(file.path, tmp_path / "other name")
    files = ModelWriter(file, tmp_path / "out.onnx")
    with files.built(edited(files, "in_place")) as built:
        assert built.kept == ()
        onnx.checker.check_model(built.path)


@STORAGES
def test_a_staged_model_leaves_the_target_until_it_is_published(
    tmp_path: Path, opened: Open, storage: TargetStorage | None
) -> None:
    """It can be loaded in that time, from its hidden name."""
    target = tmp_path / "out.onnx"
    target.write_text(EARLIER)
    files = ModelWriter(opened(external=True), target)
    before = names(tmp_path)
    for _ in range(2):  # the second takes the place of the first
        with files.built(edited(files, storage)) as built:
            staged, *_ = files.stage(built).files
    onnx.checker.check_model(staged)
    assert target.read_text() == EARLIER
    expected = files.staged_targets
    files.publish_staged()
    files.discard_staged()  # nothing is left to discard
    assert expected == (target, *([tmp_path / "out.onnx.data"] if storage == "external" else []))
    assert names(tmp_path) == sorted({*before, *(path.name for path in expected)})
    onnx.checker.check_model(target)


@STORAGES
def test_a_staged_model_that_is_discarded_leaves_nothing(
    tmp_path: Path, opened: Open, storage: TargetStorage | None
) -> None:
    files = ModelWriter(opened(external=True), tmp_path / "new" / "out.onnx")
    before = names(tmp_path)
    with files.built(edited(files, storage)) as built:
        files.stage(built)
    assert names(tmp_path) != before
    files.discard_staged()
    assert names(tmp_path) == before


@pytest.fixture(params=[True, False], ids=["to a file", "to nothing"])
def link(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A link to ``there/real.onnx``, which is there or not."""
    real = tmp_path / "there" / "real.onnx"
    real.parent.mkdir()
    if request.param:
        real.write_text(EARLIER)
    made = tmp_path / "out.onnx"
    made.symlink_to(real)
    return made


def test_a_copied_model_goes_where_a_link_points(tmp_path: Path, opened: Open, link: Path) -> None:
    file = opened()
    files = ModelWriter(file, link)
    assert files.target.name == "real.onnx"
    (tmp_path / "made").mkdir()
    made = tmp_path / "made" / files.target.name
    location = f"{files.target.name}.data"
    onnx.save(onnx.load(file.path), made, save_as_external_data=True, location=location)
    files.publish_copy(made)
    real = Path(os.readlink(link))
    assert files.copy_targets(made) == (real, real.with_name(location))
    assert names(real.parent) == ["real.onnx", location]
    onnx.checker.check_model(real)


@pytest.mark.parametrize("storage", [None, "external"])
def test_a_link_stays_and_the_model_goes_where_it_points(
    opened: Open, storage: TargetStorage | None, link: Path
) -> None:
    output = published(opened(), link, storage)
    real = Path(os.readlink(link))
    data = [f"{real}.data"] if storage == "external" else []
    assert [*map(str, output.files)] == [str(real), *data]
    assert onnx.load(real).graph.name == "g_1"


def interrupt(files: ModelWriter, editor: ModelEditor) -> None:
    """Have Ctrl-C come when the model is written."""
    with files.built(editor) as built:
        assert built.path.exists()
        raise KeyboardInterrupt


@pytest.mark.parametrize("storage", [None, "external"])
@pytest.mark.parametrize("external", [False, True])
def test_what_is_not_published_leaves_nothing(
    tmp_path: Path, opened: Open, storage: TargetStorage | None, external: bool
) -> None:
    target = tmp_path / "out.onnx"
    target.write_text(EARLIER)
    files = ModelWriter(opened(external=external), target)
    before = names(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        interrupt(files, edited(files, storage))
    assert names(tmp_path) == before
    assert target.read_text() == EARLIER


def test_ctrl_c_between_two_files_comes_when_both_are_there(
    tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = (tmp_path / "out.onnx", tmp_path / "out.onnx.data")
    for path in targets:
        path.write_text(EARLIER)
    replace = os.replace

    def interrupted(source: Path, to: Path) -> None:
        replace(source, to)
        signal.raise_signal(signal.SIGINT)

    files = ModelWriter(opened(external=True), targets[0])
    with files.built(edited(files, "external")) as built:
        files.stage(built)
        monkeypatch.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            files.publish_staged()
    assert not any(EARLIER.encode() in path.read_bytes() for path in targets)
    with pytest.raises(KeyboardInterrupt):  # as before
        signal.raise_signal(signal.SIGINT)


def test_the_same_changes_give_the_same_model(tmp_path: Path, opened: Open) -> None:
    files = ModelWriter(opened(), tmp_path / "out.onnx")

    def digest(*suffixes: str, storage: TargetStorage | None = None) -> bytes:
        with files.built(edited(files, storage, *suffixes)) as built:
            return built.digest

    assert digest("_1") == digest("_1")
    assert len({digest("_1"), digest("_2"), digest("_1", "_2")}) == 3
    assert digest("_1") != digest("_1", storage="external")


@pytest.mark.parametrize(
    ("ir_version", "newer", "oldest"),
    [(9, None, "1.20.0"), (11, "version 11 of the IR instead of 9", "1.23.0")],
)
def test_what_a_model_declares_is_held_against_the_original(
    tmp_path: Path, opened: Open, ir_version: int, newer: str | None, oldest: str
) -> None:
    files = ModelWriter(opened(), tmp_path / "out.onnx")
    editor = edited(files)
    editor.model.ir_version = ir_version
    with files.built(editor) as built:
        assert built.newer == newer
        assert str(built.oldest.runtime) == oldest


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("m.onnx", "the original's own file"),
        ("m.onnx.bin", "the original's own file"),
        ("folder", r"folder: cannot be written \(it is a folder\)"),
        ("x.onnx", r"x.onnx.data: cannot be written \(it is a folder\)"),
        ("y.onnx", r"y.onnx.data: cannot be written \(it is a link\)"),
        ("pipe", r"pipe: cannot be written \(it is a pipe\)"),
        ("to_pipe", r"to_pipe: cannot be written \(it is a pipe\)"),
    ],
)
def test_the_original_and_folders_are_never_overwritten(
    tmp_path: Path, opened: Open, target: str, message: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "x.onnx.data").mkdir()
    (tmp_path / "y.onnx.data").symlink_to("elsewhere")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to_pipe").symlink_to("pipe")
    with pytest.raises((UsageError, ReportError), match=message):
        ModelWriter(opened(external=True), tmp_path / target)


def test_a_data_file_is_not_put_over_the_original_s(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", external=True)
    proto = onnx.load(model, load_external_data=False)
    (tmp_path / "m.onnx.bin").rename(tmp_path / "out.onnx.data")
    proto.graph.initializer[0].external_data[0].value = "out.onnx.data"
    onnx.save(proto, model)
    problem = "contains the original's weights"
    with open_model(model) as file, pytest.raises(UsageError, match=problem):
        ModelWriter(file, tmp_path / "out.onnx")


def test_a_place_that_cannot_be_written_is_told_at_once(tmp_path: Path, opened: Open) -> None:
    (tmp_path / "file").write_text("")
    file = opened()
    ModelWriter(file, tmp_path / "new" / "folder" / "out.onnx").check_writable()
    with pytest.raises(ReportError, match="cannot be written"):
        ModelWriter(file, tmp_path / "file" / "out.onnx").check_writable()
    assert names(tmp_path) == ["file", "m.onnx"]


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_no_permission_is_told_at_once(tmp_path: Path, opened: Open) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(ReportError, match="Permission denied"):
        ModelWriter(opened(), folder / "out.onnx").check_writable()


@pytest.mark.parametrize("storage", ["in_place", "external"])
def test_hidden_names_are_not_shown(tmp_path: Path, opened: Open, storage: TargetStorage) -> None:
    files = ModelWriter(opened(external=True), tmp_path / "out.onnx")
    with files.built(edited(files, storage)) as built:
        told = f"it ends: {built.path}: no such\n operator"
        assert files.without_hidden_names(told) == "it ends: no such operator"
    assert files.without_hidden_names(f"{tmp_path}/out.onnx: no") == f"{tmp_path}/out.onnx: no"


_BUILD = """
import signal, sys
from pathlib import Path
from memdiag.errors import ReportError
from memdiag.model.model_file import open_model
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.fixing.model_writer import ModelWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with open_model(Path(sys.argv[1])) as file:
    editor = ModelEditor(file)
    editor.storage = "external"
    try:
        with ModelWriter(file, Path(sys.argv[2])).built(editor):
            print("written")
    except ReportError as error:
        print(error)
"""


@pytest.mark.parametrize(("limit", "message"), [(1 << 30, "written"), (1 << 18, "File too large")])
def test_a_full_disk_leaves_no_half_written_file(tmp_path: Path, limit: int, message: str) -> None:
    model, target = write(tmp_path / "m.onnx"), tmp_path / "out.onnx"
    done = subprocess.run(
        [sys.executable, "-c", _BUILD, str(model), str(target)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert message in done.stdout
    assert ".memdiag" not in done.stdout
    assert names(tmp_path) == ["m.onnx"]
