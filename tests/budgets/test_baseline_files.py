from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memdiag.budgets.baselines import baseline_entry, baseline_path, read_baseline, update_baseline
from memdiag.errors import RecordError, ReportError
from memdiag.records.baseline import BaselineEntry
from tests.reports import profiles


def taken() -> BaselineEntry:
    profile = profiles.tied_if()
    return baseline_entry([profile])


def test_a_baseline_lies_as_its_model_does(tmp_path: Path) -> None:
    folder = tmp_path / "baselines"
    expected = folder / "models" / "a.onnx.json"
    assert baseline_path(folder, Path("models/a.onnx"), tmp_path) == expected
    assert baseline_path(folder, tmp_path / "models" / "a.onnx", tmp_path) == expected
    assert baseline_path(folder, Path("/elsewhere/a.onnx"), tmp_path) == folder / "a.onnx.json"


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "a.onnx.json"),
        ({"runs": 10, "providers": ["CPUExecutionProvider"], "session_options": {}}, "a.onnx.json"),
        ({"python": "other/python", "timeout_s": 5}, "a.onnx.json"),
        ({"dims": {"tokens": 128}}, "a.onnx.tokens=128.json"),
        ({"runs": 1, "dims": {"b": 2, "a": 1}}, "a.onnx.a=1,b=2,runs=1.json"),
        ({"dims": {"b": 2, "a": 1}, "runs": 1}, "a.onnx.a=1,b=2,runs=1.json"),
        ({"pinned": False, "run": False}, "a.onnx.pinned=False,run=False.json"),
        ({"inputs": {"x": np.zeros((2, 3)), "y": Path("in/y.npy")}}, "a.onnx.x=2x3,y=y.npy.json"),
        (
            {"providers": ["P"], "provider_options": {"P": {"k": "v", "l": "w"}}},
            "a.onnx.P=k=v+l=w,providers=P.json",
        ),
        (
            {"session_options": {"intra_op_num_threads": "1"}},
            "a.onnx.intra_op_num_threads=1.json",
        ),
        ({"disabled_optimizers": ["A", "B"]}, "a.onnx.disabled_optimizers=A+B.json"),
    ],
)
def test_a_configuration_is_in_the_name(tmp_path: Path, options: dict[str, Any], name: str) -> None:
    assert baseline_path(tmp_path, Path("a.onnx"), tmp_path, options) == tmp_path / name


def test_names_that_cannot_be_files_stay_different(tmp_path: Path) -> None:
    ways: list[dict[str, Any]] = [
        {"dims": {"x:0": 2}},
        {"dims": {"x/0": 2}},
        {"dims": {"x-0": 2}},
        {"environment": {"LONG": "a" * 300}},
        {"environment": {"LONG": "a" * 301}},
    ]
    paths = {baseline_path(tmp_path, Path("a.onnx"), tmp_path, each) for each in ways}
    assert len(paths) == len(ways)
    assert all(path.parent == tmp_path and len(path.name) < 150 for path in paths)


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
    with pytest.raises(
        RecordError, match=r"its schema is 'memdiag\.profile/1', not 'memdiag\.baseline/1'"
    ):
        update_baseline(path, "a.onnx", "one", taken(), None)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match="Choose another folder"):
        update_baseline(tmp_path / "file" / "a.json", "a.onnx", "one", taken(), None)
