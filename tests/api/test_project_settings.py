from pathlib import Path

import pytest

from memdiag.api.project_settings import ProjectSettings, read_project_settings
from memdiag.errors import UsageError


def write(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(text)
    return folder


def test_the_nearest_table_counts(tmp_path: Path) -> None:
    write(tmp_path, '[tool.memdiag]\nselect = ["outer"]\n')
    write(tmp_path / "a", "[project]\nname = 'without a table'\n")
    inner = write(
        tmp_path / "a" / "b",
        '[tool.memdiag]\nignore = ["MD4"]\nmin-bytes = "1 MiB"\nfor-onnxruntime = "1.24.4"\n'
        "[tool.memdiag.dim]\nbatch = 8\n",
    )
    settings = read_project_settings(inner)
    assert settings.ignore == ("MD4",)
    assert settings.min_size == 1 << 20
    assert settings.for_onnxruntime == "1.24.4"
    assert settings.dim == {"batch": 8}
    assert read_project_settings(tmp_path / "a").select == ("outer",)


def test_nothing_is_set_without_a_table(tmp_path: Path) -> None:
    write(tmp_path, "[tool.other]\nx = 1\n[tool.memdiag]\n")
    assert read_project_settings(tmp_path) == ProjectSettings()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.memdiag]\nselct = []\n", "selct"),
        ("[tool.memdiag]\nselect = 3\n", "select"),
        ('[tool.memdiag]\nmin-bytes = "much"\n', "much"),
        ("[tool]\nmemdiag = 3\n", "not a table"),
        ("[tool.memdiag\n", "TOML"),
    ],
)
def test_what_means_nothing_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        read_project_settings(write(tmp_path, text))
    assert str(tmp_path / "pyproject.toml") in str(caught.value)
