import fcntl
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from memdiag.errors import ReportError
from memdiag.records import file_lock
from memdiag.records.files import require_writable, save_bytes, save_files, unused_data_notes


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("before")
    save_bytes(b"after", path)
    assert path.read_text() == "after"
    assert list(tmp_path.iterdir()) == [path]


def test_weights_of_an_earlier_model_are_named(tmp_path: Path) -> None:
    model, data = str(tmp_path / "m.onnx"), str(tmp_path / "m.onnx.data")
    assert unused_data_notes([]) == unused_data_notes([model]) == ()
    Path(data).touch()
    assert unused_data_notes([model, data]) == ()
    assert unused_data_notes([model]) == (
        f"{data} was there before, and the new {model} does not use it",
    )


def test_a_file_that_cannot_be_written_is_an_error_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(ReportError, match="cannot be written"):
        save_bytes(b"x", tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("content", ["before", None])
def test_a_link_to_a_file_is_written_through(tmp_path: Path, content: str | None) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    if content is not None:
        file.write_text(content)
    link.symlink_to("file")
    save_bytes(b"after", link)
    assert (os.readlink(link), file.read_text()) == ("file", "after")
    assert sorted(tmp_path.iterdir()) == [file, link]


@pytest.mark.parametrize("through_link", [False, True])
def test_a_pipe_is_written_to_and_stays(tmp_path: Path, through_link: bool) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to("pipe")
    seen: list[bytes] = []
    reader = threading.Thread(target=lambda: seen.append(pipe.read_bytes()))
    reader.start()
    save_bytes(b"all of it", tmp_path / "link" if through_link else pipe)
    reader.join(10)
    assert seen == [b"all of it"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
@pytest.mark.parametrize(
    ("minor", "message"), [(3, ""), (7, "No space left")], ids=["null", "full"]
)
def test_a_device_is_written_to_and_stays(tmp_path: Path, minor: int, message: str) -> None:
    device, link = tmp_path / "device", tmp_path / "link"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, minor))
    except PermissionError:
        pytest.skip("devices cannot be made here")
    link.symlink_to(device)
    if message:
        with pytest.raises(ReportError, match=f"device: cannot be written .{message}"):
            save_bytes(b"x" * 10_000, device)
    else:
        save_bytes(b"x", link)
    with pytest.raises(ReportError, match=r"link: cannot be written \(it is a device\)"):
        save_files([(tmp_path / "other", b"x"), (link, b"x")])
    assert stat.S_ISCHR(device.stat().st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["device", "link"]


@pytest.mark.parametrize("redirected", ["pipe", "file"])
def test_standard_output_by_name_keeps_what_else_is_printed(
    tmp_path: Path, redirected: str
) -> None:
    script = (
        "import pathlib; from memdiag.records.files import save_bytes; print('before');"
        "save_bytes(b'record\\n', pathlib.Path('/dev/stdout')); print('after')"
    )
    file = tmp_path / "all.txt"
    with file.open("wb") as out:
        target = out if redirected == "file" else subprocess.PIPE
        done = subprocess.run([sys.executable, "-c", script], stdout=target, check=True)
    printed = file.read_bytes() if redirected == "file" else done.stdout
    assert printed.split() == [b"before", b"record", b"after"]


def test_a_full_disk_leaves_what_was_there_and_nothing_else(
    tmp_path: Path, file_size_limit: Callable[[int], AbstractContextManager[None]]
) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_text("before")
    message = r"b: cannot be written \(File too large\)\. "
    with file_size_limit(1000), pytest.raises(ReportError, match=message):
        save_files([(first, b"x"), (second, b"x" * 2000)])
    assert list(tmp_path.iterdir()) == [first]
    assert first.read_text() == "before"


def test_a_name_that_leaves_no_place_for_a_longer_one(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    save_bytes(b"x", path)
    assert path.read_bytes() == b"x"
    with pytest.raises(ReportError, match="cannot be written"):
        save_bytes(b"x", tmp_path / ("n" * 256))


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "old.json").touch()
    (tmp_path / "link.json").symlink_to(folder / "old.json")
    accessible = os.access

    def access(path: Path, mode: int) -> bool:
        return Path(path) != folder and accessible(path, mode)

    monkeypatch.setattr(os, "access", access)
    require_writable(tmp_path / "new" / "b.json")
    for path in (folder / "b.json", folder / "old.json", tmp_path / "link.json"):
        with pytest.raises(ReportError, match="cannot be written"):
            require_writable(path)


@pytest.fixture
def slow_first(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The first thread that renames a file waits after that for this event, or for a second."""
    renamed, replace = threading.Event(), os.replace
    waiting: list[int] = []

    def rename(source: Path, target: Path) -> None:
        replace(source, target)
        if not waiting:
            waiting.append(threading.get_ident())
            renamed.wait(1.0)

    monkeypatch.setattr(os, "replace", rename)
    return renamed


def test_files_of_two_writers_are_not_mixed(tmp_path: Path, slow_first: threading.Event) -> None:
    paths = [tmp_path / name for name in "abc"]

    def write(content: bytes) -> None:
        save_files([(path, content) for path in paths])
        slow_first.set()

    first = threading.Thread(target=write, args=[b"first"])
    first.start()
    while not paths[0].exists():
        time.sleep(0.001)
    write(b"second")
    first.join()
    assert [path.read_bytes() for path in paths] == [b"second"] * 3


def test_who_keeps_a_folder_locked_does_not_stop_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_lock, "MAX_FOLDER_WAIT_S", 0.05)
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        save_bytes(b"x", tmp_path / "a")
    finally:
        os.close(folder)
    assert (tmp_path / "a").read_bytes() == b"x"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
