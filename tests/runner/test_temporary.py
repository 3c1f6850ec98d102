import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memdiag import temporary_names
from memdiag.errors import MeasurementError
from memdiag.runner.temporary import ending_with_parent, remove_stale, temporary_folder
from memdiag.temporary_names import own_prefix, temporary_file_owner
from tests.runner.conftest import is_alive
from tests.user_names import user_names
from tests.waiting import wait_until

FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("error", [FULL, OSError("900 requested and 12 written")])
def test_a_full_temporary_folder_is_one_sentence(error: OSError) -> None:
    with (
        pytest.raises(MeasurementError, match=r"^temporary folder .+: No space left .+ TMPDIR"),
        temporary_folder(),
    ):
        raise error


def test_another_error_in_the_block_is_raised_as_it_is() -> None:
    with pytest.raises(FileNotFoundError), temporary_folder() as folder:
        (folder / "missing").read_bytes()


def test_no_temporary_folder_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with (
        pytest.raises(MeasurementError, match="no temporary folder can be created"),
        temporary_folder(),
    ):
        pass


@pytest.fixture
def ended() -> int:
    """The number of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def names_of(process: int, monkeypatch: pytest.MonkeyPatch, place: str | None = None) -> str:
    """Return the prefix of the files that `process` makes here, or in another `place`."""
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: process)
        if place is not None:
            patched.setattr(temporary_names, "_own_place", lambda: place)
        return own_prefix()


def test_only_what_ended_processes_left_is_removed(
    tmp_path: Path, ended: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = names_of(ended, monkeypatch)
    elsewhere = names_of(os.getpid(), monkeypatch, "00000000")
    stale = [f"{here}ab_c1", f".{here}0f", f".{elsewhere}old"]  # not changed for a week
    kept = [
        f".{elsewhere}new",
        f"{own_prefix()}new",
        f".{names_of(os.getppid(), monkeypatch)}0f",
        f"{here}0f.bak",
        f"{here}",
        f"my-{here}0f",
        here.replace(str(ended), str(ended + 1)) + "0f",
        f"memdiag-{ended}-ab_c1",
        f"memdiag-{10**30}-x",
        "memdiag-root.lock",
    ]
    for name in (*stale, *kept):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    os.utime(tmp_path / stale[-1], (0, 0))
    for name in (f".{here}1f.onnx", f".{here}1f.data", f"{here}weight-1"):
        (tmp_path / name).touch()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    (tmp_path / f"{here}link").symlink_to(outside)
    remove_stale(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted([*kept, "outside"])
    assert (outside / "precious").exists()


def test_no_name_of_a_user_is_taken_for_one_of_memdiag() -> None:
    names = [*user_names(20_000), "memdiag-2024-results", "memdiag-20261127-notes.txt"]
    assert [name for name in names if temporary_file_owner(name) is not None] == []


@settings(max_examples=200)
@given(st.from_regex(r"\A\.?memdiag-[0-9]{1,10}-[0-9a-f]{8}-[0-9a-f]{16}-[0-9a-z_-]{1,9}\Z"))
def test_a_name_of_the_same_form_has_another_mark(name: str) -> None:
    assert temporary_file_owner(name) is None


def test_what_belongs_to_another_user_is_left_alone(
    tmp_path: Path, ended: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / f"{names_of(ended, monkeypatch)}x"
    theirs.mkdir()
    own = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: own + 1)
    remove_stale(tmp_path)
    assert theirs.exists()


def test_a_folder_that_cannot_be_listed_is_no_error(tmp_path: Path) -> None:
    remove_stale(tmp_path / "missing")


def test_a_scratch_folder_is_ours_and_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with temporary_folder() as folder:
        assert folder.name.startswith(own_prefix())
        remove_stale(tmp_path)
        assert folder.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_a_command_ends_with_us() -> None:
    code = (
        "import subprocess, sys\n"
        "from memdiag.runner.temporary import ending_with_parent\n"
        "words = [sys.executable, '-c', 'import time; print(1, flush=True); time.sleep(600)']\n"
        "child = subprocess.Popen(ending_with_parent(words), stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert psutil.pid_exists(child)
        parent.kill()
    wait_until(lambda: not is_alive(child))


def test_a_command_says_and_returns_what_it_does_by_itself() -> None:
    words = [sys.executable, "-c", "import sys; print(sys.argv[1:]); sys.exit(7)", "a b", "--c"]
    done = subprocess.run(ending_with_parent(words), capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("['a b', '--c']\n", 7)
