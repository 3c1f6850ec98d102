"""A process holds the measurement lock until it is done or dead."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from memdiag.api.measurement_lock import lock_file, measurement_lock
from memdiag.errors import MeasurementError

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
    monkeypatch.setattr("tempfile.tempdir", None)


def test_nobody_else_has_it_at_the_same_time() -> None:
    command = [sys.executable, "-c", STAY]
    waiting = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    times = sorted(tuple(map(float, each.communicate()[0].split())) for each in waiting)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(times))


def test_it_ends_with_the_process() -> None:
    command = [sys.executable, "-c", HOLD]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "has it\n"
        holder.kill()
    with measurement_lock():
        assert lock_file().exists()


def test_a_link_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("")
    lock_file().symlink_to(tmp_path / "target")
    with pytest.raises(MeasurementError, match="Remove this file"), measurement_lock():
        pass
