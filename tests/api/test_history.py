"""The history's file: what is added is there, whoever adds, and other files are left alone."""

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
import pytest

from memdiag.api.history import add, show
from memdiag.budgets.figures import figures_of
from memdiag.errors import RecordError, UsageError
from memdiag.records.codec import encode
from memdiag.records.profile import Profile
from tests.reports import profiles

ROOT = Path(__file__).parents[2]


def named(model: str, peak: int = 0) -> Profile:
    profile = profiles.tied_if()
    facts = msgspec.structs.replace(profile.model, path=model)
    return msgspec.structs.replace(
        profile, model=facts, peak_rss_bytes=profile.peak_rss_bytes + peak
    )


def test_what_is_added_is_shown_in_order(tmp_path: Path) -> None:
    path = tmp_path / "new" / "h.sqlite"
    assert add(path, [named("a.onnx"), named("b.onnx")], label="first") == 2
    assert add(path, [named("a.onnx", 5)]) == 1
    history = show(path)
    assert [(each.model, each.label) for each in history.entries] == [
        ("a.onnx", "first"),
        ("b.onnx", "first"),
        ("a.onnx", ""),
    ]
    assert history.entries[2].figures == figures_of(named("a.onnx", 5))
    assert [each.model for each in show(path, model="b.onnx").entries] == ["b.onnx"]


def test_the_same_profile_is_there_once(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    assert add(path, [named("a.onnx")]) == 1
    assert add(path, [named("a.onnx"), named("a.onnx", 1)]) == 1
    assert len(show(path).entries) == 2


def test_a_run_that_failed_is_not_added_nor_what_came_with_it(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    with pytest.raises(UsageError, match="Add profiles of runs that completed"):
        add(path, [named("a.onnx"), profiles.failed()])
    add(path, [named("b.onnx")])
    assert len(show(path).entries) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
@pytest.mark.parametrize("room", [0, 4096, 8192, 16384, 32768])
def test_a_full_disk_leaves_no_file_behind(
    tmp_path: Path, room: int, file_size_limit: Callable[[int], AbstractContextManager[None]]
) -> None:
    path = tmp_path / "new" / "h.sqlite"
    with file_size_limit(room), pytest.raises(RecordError):
        add(path, [named("a.onnx")])
    assert [*path.parent.iterdir()] == []
    add(path, [named("a.onnx")])
    with file_size_limit(0), pytest.raises(RecordError):
        add(path, [named("b.onnx")])
    assert len(show(path).entries) == 1  # what was there before stays


def test_several_processes_append_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    count, each = 4, 5
    for number in range(count * each):
        (tmp_path / f"{number}.json").write_bytes(encode(named(f"m{number}.onnx")))
    program = (
        "import sys; from pathlib import Path; from memdiag import load_profile\n"
        "from memdiag.api.history import add\n"
        "for name in sys.argv[2:]: add(Path(sys.argv[1]), [load_profile(name)])"
    )
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(path)]
            + [str(tmp_path / f"{first + number}.json") for number in range(each)],
            cwd=ROOT,
        )
        for first in range(0, count * each, each)
    ]
    assert [writer.wait(100) for writer in writers] == [0] * count
    assert {entry.model for entry in show(path).entries} == {
        f"m{number}.onnx" for number in range(count * each)
    }


def test_an_unknown_model_names_those_there_are(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    add(path, [named("a.onnx")])
    with pytest.raises(UsageError, match=r"unknown model 'c\.onnx'. The history contains a\.onnx"):
        show(path, model="c.onnx")


def test_a_file_that_is_not_there_is_not_made_by_looking(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="there is no such history"):
        show(tmp_path / "h.sqlite")
    assert not (tmp_path / "h.sqlite").exists()


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    path.write_text("hello " * 100)
    with pytest.raises(RecordError, match="cannot be used as a history"):
        add(path, [named("a.onnx")])
    assert path.read_text() == "hello " * 100


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE theirs (x)")
    other.close()
    with pytest.raises(RecordError, match="not a history of memdiag"):
        add(path, [named("a.onnx")])


def test_a_newer_memdiags_history_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    add(path, [named("a.onnx")])
    with sqlite3.connect(path) as newer:
        newer.execute("PRAGMA user_version = 99")
    newer.close()
    with pytest.raises(RecordError, match="of a newer memdiag"):
        show(path)
