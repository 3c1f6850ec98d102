"""A model that changes while a command works with it: an error sentence, or a note of a profile."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import memdiag
from memdiag.errors import ModelError
from memdiag.model.file_state import FileStates

SampleModel = Callable[..., Path]
SENTENCE = r"tied\.onnx: changed during the command\. Run the command again"


@pytest.fixture
def tied(sample_model: SampleModel, tmp_path: Path) -> Path:
    path = tmp_path / "tied.onnx"
    path.write_bytes(sample_model("tied_if", 1).read_bytes())
    return path


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.replace(path)


def append(path: Path) -> None:
    before = path.stat()
    with path.open("ab") as file:
        file.write(b"\0")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def rewrite(path: Path) -> None:
    os.utime(path, ns=(0, 0))


CHANGES = [replace, append, rewrite, Path.unlink]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("changed", [0, 1], ids=["own file", "external file"])
def test_every_change_is_noticed(
    changed: int, change: Callable[[Path], None], tmp_path: Path
) -> None:
    files = [tmp_path / "m.onnx", tmp_path / "m.data"]
    for file in files:
        file.write_bytes(b"model")
    states = FileStates(files[0], files)
    files[0].read_bytes()
    assert not states.changed
    change(files[changed])
    assert states.changed


@pytest.mark.parametrize(
    ("change", "error", "raised"),
    [
        (Path.touch, KeyError, ModelError),
        (lambda path: None, KeyError, KeyError),
        (Path.touch, KeyboardInterrupt, KeyboardInterrupt),
    ],
    ids=["changed", "unchanged", "interrupted"],
)
def test_an_error_in_the_block_is_replaced_only_where_a_file_changed(
    change: Callable[[Path], None],
    error: type[BaseException],
    raised: type[BaseException],
    tmp_path: Path,
) -> None:
    path = tmp_path / "tied.onnx"
    path.write_bytes(b"model")
    os.utime(path, ns=(0, 0))

    def work() -> None:
        with FileStates(path, [path]):
            change(path)
            raise error

    with pytest.raises(raised):
        work()


@pytest.mark.usefixtures("two_rewrites", "halved_memory")
@pytest.mark.parametrize("change", [rewrite, pytest.param(Path.unlink, marks=pytest.mark.slow)])
def test_a_fix_of_a_changed_model_is_not_written(
    tied: Path, change: Callable[[Path], None]
) -> None:
    with pytest.raises(ModelError, match=SENTENCE):
        memdiag.fix(tied, sizes=[], only=["rewrites"], on_progress=once(change, tied))
    assert not list(tied.parent.glob("*.fixed.onnx*"))


@pytest.mark.usefixtures("one_process_each")
def test_a_search_for_options_of_a_changed_model_is_an_error(tied: Path) -> None:
    with pytest.raises(ModelError, match=SENTENCE):
        memdiag.fix(tied, only=["arena-off"], sizes=[], on_progress=once(Path.unlink, tied))


@pytest.mark.usefixtures("equal_latency")
@pytest.mark.parametrize("change", [pytest.param(rewrite, marks=pytest.mark.slow), Path.unlink])
def test_a_comparison_with_a_changed_model_is_an_error(
    tied: Path, change: Callable[[Path], None]
) -> None:
    other = tied.with_name("other.onnx")
    other.write_bytes(tied.read_bytes())
    with pytest.raises(ModelError, match=SENTENCE):
        memdiag.compare(tied, other, repeats=1, runs=1, xray=False, on_progress=once(change, tied))


@pytest.mark.parametrize("change", [None, rewrite, Path.unlink])
def test_a_profile_of_a_changed_model_has_a_note_and_no_findings(
    tied: Path, change: Callable[[Path], None] | None
) -> None:
    on_progress = once(change, tied) if change else None
    profile = memdiag.profile(tied, runs=1, xray="none", on_progress=on_progress)
    assert (profile.findings == ()) == (change is not None)
    assert any("changed during the command" in note for note in profile.notes) == bool(change)


def once(change: Callable[[Path], None], path: Path) -> Callable[[object], None]:
    """Return a receiver of progress that changes the file at the first call."""
    pending = [path]

    def receive(progress: object) -> None:
        while pending:
            change(pending.pop())

    return receive
