"""A process holds the measurement lock until it is done or dead."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from memdiag.api.measurement_lock import lock_files, measurement_lock

STAY = (
    "import time; from memdiag.api.measurement_lock import measurement_lock\n"
    "with measurement_lock():\n"
    "    began = time.monotonic(); time.sleep(0.3); print(began, time.monotonic())\n"
)
HOLD = (
    "import time; from memdiag.api.measurement_lock import measurement_lock\n"
    "with measurement_lock():\n"
    "    print('has it', flush=True); time.sleep(100)\n"
)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("MEMDIAG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", None)


def test_nobody_else_has_it_at_the_same_time() -> None:
    command = [sys.executable, "-c", STAY]
    waiting = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    times = sorted(tuple(map(float, each.communicate()[0].split())) for each in waiting)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(times))


def test_it_ends_with_the_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "has it\n"
        holder.kill()
    with measurement_lock():
        assert next(lock_files()).exists()
        assert [path.name for path in tmp_path.iterdir()] == [next(lock_files()).name]


def put_link(path: Path) -> None:
    (path.parent / "target").write_text("theirs")
    path.symlink_to(path.parent / "target")


def put_file_that_others_can_open(path: Path) -> None:
    path.touch()
    path.chmod(0o644)


def put_folder(path: Path) -> None:
    path.mkdir()


def put_pipe(path: Path) -> None:
    os.mkfifo(path, 0o600)


@pytest.mark.parametrize("put", [put_link, put_file_that_others_can_open, put_folder, put_pipe])
def test_what_another_user_put_in_its_place_stops_nobody(put: Callable[[Path], None]) -> None:
    temporary, cached = lock_files()
    put(temporary)
    their_lock = os.open(temporary, os.O_RDONLY | os.O_NONBLOCK)
    fcntl.flock(their_lock, fcntl.LOCK_EX)
    with measurement_lock(), cached.open("ab") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    cached.unlink()
    put(cached)
    with measurement_lock():  # without any lock
        pass
    os.close(their_lock)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of other users")
def test_a_file_of_another_user_is_not_locked(tmp_path: Path) -> None:
    temporary, cached = lock_files()
    temporary.touch(0o600)
    os.chown(temporary, 12345, 12345)
    with measurement_lock():
        assert cached.exists()
