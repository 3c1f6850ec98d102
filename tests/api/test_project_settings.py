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


BUDGETS = """
[tool.memdiag.budgets."*"]
peak = "1 GB"
tolerance = "1%"
[tool.memdiag.budgets."models/*.onnx"]
peak = 800
copies = 1
"""


def test_later_patterns_come_before_earlier_ones(tmp_path: Path) -> None:
    settings = read_project_settings(write(tmp_path, BUDGETS))
    inner = settings.budget_for("models/deep/a.onnx")
    assert inner.limits == {"peak": 800, "copies": 1}
    assert inner.tolerance == 0.01
    assert settings.budget_for("other.onnx").limits == {"peak": 10**9}


def test_nothing_matches_where_nothing_is_set(tmp_path: Path) -> None:
    folder = write(tmp_path, '[tool.memdiag.budgets."a.onnx"]\npeak = 1\n')
    assert read_project_settings(folder).budget_for("b.onnx").limits == {}


@pytest.mark.parametrize(
    ("line", "words"), [("peek = 1", "unknown figure 'peek'"), ('peak = "8"', "has no unit")]
)
def test_a_budget_that_means_nothing_is_refused_with_its_pattern(
    tmp_path: Path, line: str, words: str
) -> None:
    write(tmp_path, f'[tool.memdiag.budgets."a*"]\n{line}\n')
    with pytest.raises(UsageError, match=words) as caught:
        read_project_settings(tmp_path)
    assert 'budgets."a*"' in str(caught.value)
