"""Baselines: what they keep of a profile, what counts as the same, and the files they are in."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from memdiag.budgets.baselines import (
    baseline_entry,
    baseline_path,
    condition_differences,
    matches_entry,
    read_baseline,
    update_baseline,
    with_entry,
)
from memdiag.errors import RecordError, ReportError
from tests.reports import profiles
from tests.reports.profiles import MIB

replace = msgspec.structs.replace
ENTRY = baseline_entry([profiles.tied_if()])


def test_the_setup_says_what_is_not_as_usual() -> None:
    assert ENTRY.setup == {
        "inputs": "ids int64[1, 16]",
        "runs": "10",
        "peaks": "exact",
        "options": "intra_op_num_threads=2, session.disable_prepacking=0",
        "environment": "MALLOC_ARENA_MAX=2",
    }


def test_the_same_setup_differs_in_nothing() -> None:
    profile = profiles.tied_if()
    assert condition_differences(ENTRY, profile) == ()
    wide = tuple(replace(each, shape=(1, 32)) for each in profile.inputs)
    assert condition_differences(ENTRY, replace(profile, inputs=wide)) == (
        "inputs ids int64[1, 32] instead of ids int64[1, 16]",
    )


@pytest.mark.parametrize(
    ("figure", "size", "changes", "is_same"),
    [
        ("peak", MIB, {}, True),
        ("peak", -100 * MIB, {}, False),
        ("peak", 0, {"onnxruntime": "1.24.4"}, False),
        ("peak", 0, {"setup": {}}, False),
        ("parse", 90 * MIB, {"late_bytes": 90 * MIB}, True),
        ("parse", 90 * MIB, {"late_bytes": MIB}, False),
    ],
)
def test_what_is_about_as_much_is_the_same(
    figure: str, size: int, changes: dict[str, Any], is_same: bool
) -> None:
    figures = {**ENTRY.figures, figure: ENTRY.figures[figure] + size}
    assert matches_entry(ENTRY, replace(ENTRY, figures=figures, **changes), None) is is_same


def test_other_machines_keep_what_they_have() -> None:
    first = with_entry(None, "m.onnx", "one", ENTRY)
    second = with_entry(first, "m.onnx", "two", ENTRY)
    assert second.machines.keys() == {"one", "two"}
    assert first.machines.keys() == {"one"}


def test_a_baseline_lies_as_its_model_does(tmp_path: Path) -> None:
    folder = tmp_path / "baselines"
    expected = folder / "models" / "a.onnx.json"
    assert baseline_path(folder, Path("models/a.onnx"), tmp_path) == expected
    assert baseline_path(folder, tmp_path / "models" / "a.onnx", tmp_path) == expected
    assert baseline_path(folder, Path("/elsewhere/a.onnx"), tmp_path) == folder / "a.onnx.json"


CPU = ["CPUExecutionProvider"]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, ""),
        ({"runs": 10, "providers": CPU, "session_options": {}}, ""),
        ({"python": "other/python", "timeout_s": 5}, ""),
        ({"dims": {"tokens": 128}}, ".tokens=128"),
        ({"runs": 1, "dims": {"b": 2, "a": 1}}, ".a=1,b=2,runs=1"),
        ({"dims": {"b": 2, "a": 1}, "runs": 1}, ".a=1,b=2,runs=1"),
        ({"pinned": False, "run": False}, ".pinned=False,run=False"),
        ({"inputs": {"x": np.zeros((2, 3)), "y": Path("in/y.npy")}}, ".x=2x3,y=y.npy"),
        (
            {"providers": ["P"], "provider_options": {"P": {"k": "v", "l": "w"}}},
            ".P=k=v+l=w,providers=P",
        ),
        ({"session_options": {"intra_op_num_threads": "1"}}, ".intra_op_num_threads=1"),
        ({"disabled_optimizers": ["A", "B"]}, ".disabled_optimizers=A+B"),
    ],
)
def test_a_configuration_is_in_the_name(tmp_path: Path, options: dict[str, Any], name: str) -> None:
    path = baseline_path(tmp_path, Path("a.onnx"), tmp_path, options)
    assert path == tmp_path / f"a.onnx{name}.json"


def test_names_that_cannot_be_files_stay_different(tmp_path: Path) -> None:
    ways: list[dict[str, Any]] = [{"dims": {name: 2}} for name in ("x:0", "x/0", "x-0")]
    ways += [{"environment": {"LONG": "a" * length}} for length in (300, 301)]
    paths = {baseline_path(tmp_path, Path("a.onnx"), tmp_path, each) for each in ways}
    assert len(paths) == len(ways)
    assert all(path.parent == tmp_path and len(path.name) < 150 for path in paths)


def test_what_is_written_is_read_sorted_and_ends_a_line(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.json"
    assert read_baseline(path) is None
    assert update_baseline(path, "a.onnx", "one", ENTRY, None) == "created"
    text = path.read_text()
    assert text.endswith("}\n")
    names = [line.split('"')[1] for line in text.splitlines() if line.startswith("  " * 4 + '"')]
    assert names[: len(ENTRY.figures)] == sorted(ENTRY.figures)
    assert update_baseline(path, "a.onnx", "two", ENTRY, None) == "updated"
    assert update_baseline(path, "a.onnx", "two", ENTRY, None) == "kept"
    saved = read_baseline(path)
    assert saved is not None
    assert [*saved.machines.items()] == [("one", ENTRY), ("two", ENTRY)]


def test_a_file_that_is_no_baseline_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"schema": "memdiag.profile/1"}')
    message = r"its schema is 'memdiag\.profile/1', not 'memdiag\.baseline/1'"
    with pytest.raises(RecordError, match=message):
        update_baseline(path, "a.onnx", "one", ENTRY, None)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match="Choose another folder"):
        update_baseline(tmp_path / "file" / "a.json", "a.onnx", "one", ENTRY, None)
