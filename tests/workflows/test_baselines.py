from pathlib import Path

import pytest

from memdiag.budgets.baselines import take
from memdiag.errors import RecordError, ReportError
from memdiag.records.baseline import Taken
from memdiag.workflows.baselines import baseline_path, read_baseline, update_baseline
from tests.reporters import profiles


def taken() -> Taken:
    profile = profiles.tied_if()
    return take([profile])


def test_a_baseline_lies_as_its_model_does(tmp_path: Path) -> None:
    folder = tmp_path / "baselines"
    expected = folder / "models" / "a.onnx.json"
    assert baseline_path(folder, Path("models/a.onnx"), tmp_path) == expected
    assert baseline_path(folder, tmp_path / "models" / "a.onnx", tmp_path) == expected
    assert baseline_path(folder, Path("/elsewhere/a.onnx"), tmp_path) == folder / "a.onnx.json"


def test_what_is_written_is_read_sorted_and_ends_a_line(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.json"
    assert read_baseline(path) is None
    assert update_baseline(path, "a.onnx", "machine", taken(), None) == "created"
    saved = read_baseline(path)
    assert saved is not None
    assert saved.machines == {"machine": taken()}
    text = path.read_text()
    assert text.endswith("}\n")
    names = [line.split('"')[1] for line in text.splitlines() if line.startswith("  " * 4 + '"')]
    figures = names[: len(taken().figures)]
    assert figures == sorted(figures)


def test_another_machine_is_added(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    update_baseline(path, "a.onnx", "one", taken(), None)
    assert update_baseline(path, "a.onnx", "two", taken(), None) == "updated"
    assert update_baseline(path, "a.onnx", "two", taken(), None) == "kept"
    saved = read_baseline(path)
    assert saved is not None
    assert list(saved.machines) == ["one", "two"]


def test_a_file_that_is_no_baseline_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"schema": "memdiag.profile/1"}')
    with pytest.raises(RecordError, match="not a valid baseline"):
        update_baseline(path, "a.onnx", "one", taken(), None)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match="choose another folder"):
        update_baseline(tmp_path / "file" / "a.json", "a.onnx", "one", taken(), None)
