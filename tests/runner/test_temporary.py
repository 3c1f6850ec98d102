import errno
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from memdiag.errors import MeasurementError
from memdiag.runner.temporary import ending_with_parent, remove_stale, temporary_folder
from memdiag.temporary_names import own_prefix


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device"), OSError("900 requested and 12 written")],
)
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


def test_only_what_ended_processes_left_is_removed(tmp_path: Path, ended: int) -> None:
    place = own_prefix().split("-")[2]
    stale = [
        f"memdiag-{ended}-{place}-ab_c1",
        f".memdiag-{ended}-0f",
        f"memdiag-{10**30}-x",
        f".memdiag-{os.getpid()}-00000000-old",  # of another container, not changed for a day
    ]
    kept = [
        f".memdiag-{ended}-00000000-new",
        f"{own_prefix()}new",
        f"memdiag-{os.getpid()}-abc",
        f".memdiag-{os.getppid()}-0f",
        f"memdiag-{ended}",
        "memdiag-root.lock",
        f"my-memdiag-{ended}-x",
        f"memdiag-{ended}x-y",
    ]
    for name in (*stale, *kept):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    os.utime(tmp_path / stale[-1], (0, 0))
    files = [f".memdiag-{ended}-1f.onnx", f"memdiag-{ended}-weight-1"]
    for name in files:
        (tmp_path / name).touch()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    (tmp_path / f"memdiag-{ended}-link").symlink_to(outside)
    remove_stale(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted([*kept, "outside"])
    assert (outside / "precious").exists()


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no owner")
def test_what_belongs_to_another_user_is_left_alone(
    tmp_path: Path, ended: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / f"memdiag-{ended}-x"
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


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
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
    deadline = time.monotonic() + 30
    while is_alive(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_alive(child)


def is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_command_says_and_returns_what_it_does_by_itself() -> None:
    words = [sys.executable, "-c", "import sys; print(sys.argv[1:]); sys.exit(7)", "a b", "--c"]
    done = subprocess.run(ending_with_parent(words), capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("['a b', '--c']\n", 7)
