"""Where changed models lie: nothing half-written stays, and all files that are needed are named."""

import os
import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from memdiag.errors import ReportError, UsageError
from memdiag.fixing.changes import Change
from memdiag.fixing.model_writer import BuiltModel, ModelWriter, SavedModel
from memdiag.model.model_file import open_model
from memdiag.rewrites.model_editor import ModelEditor, TargetStorage
from tests.fixing.renamed import COLUMNS, ROWS, finding, renaming, write

WEIGHT_BYTES = ROWS * COLUMNS * 4


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def publish(files: ModelWriter, built: BuiltModel) -> SavedModel:
    """Stage and publish `built`; return it with its files at the target."""
    files.stage(built)
    targets = files.staged_targets
    files.publish_staged()
    return SavedModel(built, (*targets, *built.kept))


def published(model: Path, target: Path, storage: TargetStorage | None = None) -> SavedModel:
    with open_model(model) as file:
        files = ModelWriter(file, target)
        editor = files.editor([Change(renaming("one", "_1"), (finding(),))])
        editor.storage = storage
        with files.built(editor) as built:
            assert not target.exists()
            return publish(files, built)


def test_an_embedded_model_is_one_file(tmp_path: Path) -> None:
    target = tmp_path / "new" / "out.onnx"
    output = published(write(tmp_path / "m.onnx"), target)
    assert output.files == (target,)
    assert (output.built.kept, output.built.kept_bytes) == ((), 0)
    assert output.built.disk_bytes == target.stat().st_size
    assert names(tmp_path) == ["m.onnx", "new", "new/out.onnx"]
    assert onnx.load(target).graph.name == "g_1"


def test_external_data_goes_beside_the_model(tmp_path: Path) -> None:
    target = tmp_path / "out.onnx"
    output = published(write(tmp_path / "m.onnx"), target, "external")
    assert output.files == (target, tmp_path / "out.onnx.data")
    assert output.built.kept == ()
    assert output.built.disk_bytes == sum(path.stat().st_size for path in output.files)
    assert names(tmp_path) == ["m.onnx", "out.onnx", "out.onnx.data"]
    onnx.checker.check_model(target)


@pytest.mark.parametrize("name", ["out.onnx", "out.onnx.data"])
def test_a_target_that_another_process_has_written_stays(tmp_path: Path, name: str) -> None:
    model, target = write(tmp_path / "m.onnx"), tmp_path / "out.onnx"
    target.write_bytes(b"earlier")
    with open_model(model) as file:
        writer = ModelWriter(file, target)
        editor = writer.editor([Change(renaming("one", "_1"), (finding(),))])
        with writer.built(editor) as built:
            (tmp_path / name).write_bytes(b"theirs")
            with pytest.raises(ReportError, match=r"out\.onnx: another process has written it"):
                publish(writer, built)
        writer.discard_staged()
    assert (tmp_path / name).read_bytes() == b"theirs"
    assert names(tmp_path) == sorted({"m.onnx", "out.onnx", name})


def test_what_others_cannot_read_they_cannot_read_afterwards(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx")
    model.chmod(0o600)
    output = published(model, tmp_path / "out.onnx", "external")
    assert [stat.S_IMODE(path.stat().st_mode) for path in output.files] == [0o600, 0o600]
    model.chmod(0o444)  # the owner can replace the result
    output = published(model, tmp_path / "other.onnx", "external")
    assert [stat.S_IMODE(path.stat().st_mode) for path in output.files] == [0o644, 0o644]


def test_a_file_system_without_modes_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    model = write(tmp_path / "m.onnx")
    monkeypatch.setattr(Path, "chmod", refused)
    assert published(model, tmp_path / "out.onnx").files == (tmp_path / "out.onnx",)


def test_weights_that_stay_are_counted_with_the_files_they_stay_in(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", external=True)
    data = tmp_path / "m.onnx.bin"
    target = tmp_path / "out.onnx"
    output = published(model, target)
    assert output.files == (target, data)
    assert output.built.kept == (data,)
    assert output.built.kept_bytes == WEIGHT_BYTES
    assert output.built.disk_bytes == target.stat().st_size + data.stat().st_size
    assert target.stat().st_size < 1000
    onnx.checker.check_model(target)


def test_from_another_folder_weights_are_copied(tmp_path: Path) -> None:
    model = write(tmp_path / "here" / "m.onnx", external=True)
    output = published(model, tmp_path / "there" / "out.onnx")
    assert output.built.kept == ()
    assert [path.name for path in output.files] == ["out.onnx", "out.onnx.data"]


def test_a_file_of_several_names_is_not_referred_to(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx")
    os.link(model, tmp_path / "other name")
    with open_model(model) as file:
        editor = ModelEditor(file)
        editor.storage = "in_place"
        with ModelWriter(file, tmp_path / "out.onnx").built(editor) as built:
            assert built.kept == ()
            onnx.checker.check_model(built.path)


@pytest.mark.parametrize("storage", [None, "external", "in_place"])
def test_a_staged_model_leaves_the_target_until_it_is_published(
    tmp_path: Path, storage: TargetStorage | None
) -> None:
    """It can be loaded meanwhile, from its hidden name."""
    target, model = tmp_path / "out.onnx", write(tmp_path / "m.onnx", external=True)
    target.write_text("from an earlier time")
    before = names(tmp_path)
    with open_model(model) as file:
        files = ModelWriter(file, target)
        editor = files.editor([Change(renaming("one", "_1"), (finding(),))])
        editor.storage = storage
        for _ in range(2):  # the second takes the place of the first
            with files.built(editor) as built:
                staged, *_ = files.stage(built).files
        onnx.checker.check_model(staged)
        assert target.read_text() == "from an earlier time"
        expected = files.staged_targets
        files.publish_staged()
        files.discard_staged()  # nothing is left to discard
    assert expected == (target, *([tmp_path / "out.onnx.data"] if storage == "external" else []))
    assert names(tmp_path) == sorted({*before, *(path.name for path in expected)})
    onnx.checker.check_model(target)


@pytest.mark.parametrize("storage", [None, "external", "in_place"])
def test_a_staged_model_that_is_discarded_leaves_nothing(
    tmp_path: Path, storage: TargetStorage | None
) -> None:
    with open_model(write(tmp_path / "m.onnx", external=True)) as file:
        before = names(tmp_path)
        files = ModelWriter(file, tmp_path / "new" / "out.onnx")
        editor = ModelEditor(file)
        editor.storage = storage
        with files.built(editor) as built:
            files.stage(built)
        assert names(tmp_path) != before
        files.discard_staged()
    assert names(tmp_path) == before


@pytest.mark.parametrize("exists", [True, False])
def test_a_copied_model_goes_where_a_link_points(tmp_path: Path, exists: bool) -> None:
    real, link = tmp_path / "there" / "real.onnx", tmp_path / "out.onnx"
    real.parent.mkdir()
    if exists:
        real.write_text("from an earlier time")
    link.symlink_to(real)
    with open_model(write(tmp_path / "m.onnx")) as file:
        files = ModelWriter(file, link)
        assert files.target.name == "real.onnx"
        (tmp_path / "made").mkdir()
        made = tmp_path / "made" / files.target.name
        location = f"{files.target.name}.data"
        onnx.save(onnx.load(file.path), made, save_as_external_data=True, location=location)
        files.publish_copy(made)
        assert files.copy_targets(made) == (real, real.with_name(location))
    assert sorted(names(real.parent)) == ["real.onnx", location]
    assert os.readlink(link) == str(real)
    onnx.checker.check_model(real)


@pytest.mark.parametrize("storage", [None, "external"])
@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_and_the_model_goes_where_it_points(
    tmp_path: Path, storage: TargetStorage | None, exists: bool
) -> None:
    model = write(tmp_path / "m.onnx")
    real = tmp_path / "there" / "real.onnx"
    real.parent.mkdir()
    if exists:
        real.write_text("from an earlier time")
    link = tmp_path / "out.onnx"
    link.symlink_to(real)
    with open_model(model) as file:
        files = ModelWriter(file, link)
        editor = files.editor([Change(renaming("one", "_1"), (finding(),))])
        editor.storage = storage
        with files.built(editor) as built:
            output = publish(files, built)
    data = [f"{real}.data"] if storage == "external" else []
    assert [*map(str, output.files)] == [str(real), *data]
    assert os.readlink(link) == str(real)
    assert onnx.load(real).graph.name == "g_1"


def interrupt(files: ModelWriter, editor: ModelEditor) -> None:
    """Have Ctrl-C come when the model is written."""
    with files.built(editor) as built:
        assert built.path.exists()
        raise KeyboardInterrupt


@pytest.mark.parametrize("storage", [None, "external"])
@pytest.mark.parametrize("external", [False, True])
def test_what_is_not_published_leaves_nothing(
    tmp_path: Path, storage: TargetStorage | None, external: bool
) -> None:
    target = tmp_path / "out.onnx"
    target.write_text("from an earlier time")
    before = names(write(tmp_path / "m.onnx", external=external).parent)
    with open_model(tmp_path / "m.onnx") as file:
        files = ModelWriter(file, target)
        editor = ModelEditor(file)
        editor.storage = storage
        with pytest.raises(KeyboardInterrupt):
            interrupt(files, editor)
    assert names(tmp_path) == before
    assert target.read_text() == "from an earlier time"


def test_ctrl_c_between_two_files_comes_when_both_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out.onnx"
    data = tmp_path / "out.onnx.data"
    for path in (target, data):
        path.write_text("from an earlier time")
    replace = os.replace

    def interrupted(source: Path, to: Path) -> None:
        replace(source, to)
        signal.raise_signal(signal.SIGINT)

    with open_model(write(tmp_path / "m.onnx", external=True)) as file:
        files = ModelWriter(file, target)
        editor = ModelEditor(file)
        editor.storage = "external"
        with files.built(editor) as built:
            files.stage(built)
            monkeypatch.setattr(os, "replace", interrupted)
            with pytest.raises(KeyboardInterrupt):
                files.publish_staged()
    assert b"from an earlier time" not in target.read_bytes() + data.read_bytes()
    with pytest.raises(KeyboardInterrupt):  # as before
        signal.raise_signal(signal.SIGINT)


def test_the_same_changes_give_the_same_model(tmp_path: Path) -> None:
    with open_model(write(tmp_path / "m.onnx")) as file:
        files = ModelWriter(file, tmp_path / "out.onnx")

        def digest(*suffixes: str, storage: TargetStorage | None = None) -> bytes:
            changes = [Change(renaming(suffix, suffix), (finding(),)) for suffix in suffixes]
            editor = files.editor(changes)
            editor.storage = storage
            with files.built(editor) as built:
                return built.digest

        assert digest("_1") == digest("_1")
        assert len({digest("_1"), digest("_2"), digest("_1", "_2")}) == 3
        assert digest("_1") != digest("_1", storage="external")


def test_what_a_model_declares_is_held_against_the_original(tmp_path: Path) -> None:
    with open_model(write(tmp_path / "m.onnx")) as file:
        files = ModelWriter(file, tmp_path / "out.onnx")

        def built(editor: ModelEditor) -> BuiltModel:
            with files.built(editor) as made:
                return made

        assert built(ModelEditor(file)).newer is None
        assert str(built(ModelEditor(file)).oldest.runtime) == "1.20.0"
        newer = ModelEditor(file)
        newer.model.ir_version = 11
        assert built(newer).newer == "version 11 of the IR instead of 9"
        assert str(built(newer).oldest.runtime) == "1.23.0"


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
    tmp_path: Path, target: str, message: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "x.onnx.data").mkdir()
    (tmp_path / "y.onnx.data").symlink_to("elsewhere")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to_pipe").symlink_to("pipe")
    with (
        open_model(write(tmp_path / "m.onnx", external=True)) as file,
        pytest.raises((UsageError, ReportError), match=message),
    ):
        ModelWriter(file, tmp_path / target)


def test_a_data_file_is_not_put_over_the_original_s(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", external=True)
    proto = onnx.load(model, load_external_data=False)
    (tmp_path / "m.onnx.bin").rename(tmp_path / "out.onnx.data")
    proto.graph.initializer[0].external_data[0].value = "out.onnx.data"
    onnx.save(proto, model)
    with (
        open_model(model) as file,
        pytest.raises(UsageError, match=r"contains the original's weights"),
    ):
        ModelWriter(file, tmp_path / "out.onnx")


def test_a_place_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with open_model(write(tmp_path / "m.onnx")) as file:
        ModelWriter(file, tmp_path / "new" / "folder" / "out.onnx").check_writable()
        with pytest.raises(ReportError, match="cannot be written"):
            ModelWriter(file, tmp_path / "file" / "out.onnx").check_writable()
    assert names(tmp_path) == ["file", "m.onnx"]


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_no_permission_is_told_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with (
        open_model(write(tmp_path / "m.onnx")) as file,
        pytest.raises(ReportError, match="Permission denied"),
    ):
        ModelWriter(file, folder / "out.onnx").check_writable()


def test_hidden_names_are_not_shown(tmp_path: Path) -> None:
    with open_model(write(tmp_path / "m.onnx", external=True)) as file:
        files = ModelWriter(file, tmp_path / "out.onnx")
        for storage in ("in_place", "external"):
            editor = ModelEditor(file)
            editor.storage = storage
            with files.built(editor) as built:
                assert files.without_hidden_names(f"it ends: {built.path}: no such\n operator") == (
                    "it ends: no such operator"
                )
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
