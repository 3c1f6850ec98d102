from pathlib import Path

import pytest

from memdiag.errors import ReportError
from memdiag.records.files import save_bytes


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("before")
    save_bytes(b"after", path)
    assert path.read_text() == "after"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_is_an_error_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(ReportError, match="cannot be written"):
        save_bytes(b"x", tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
