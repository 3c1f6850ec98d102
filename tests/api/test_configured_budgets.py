from pathlib import Path

import pytest

from memdiag.api.project_settings import read_project_settings
from memdiag.errors import UsageError

BUDGETS = """
[tool.memdiag.budgets."*"]
peak = "1 GB"
tolerance = "1%"
[tool.memdiag.budgets."models/*.onnx"]
peak = 800
copies = 1
"""


def test_later_patterns_come_before_earlier_ones(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(BUDGETS)
    settings = read_project_settings(tmp_path)
    inner = settings.budget_for("models/deep/a.onnx")
    assert inner.limits == {"peak": 800, "copies": 1}
    assert inner.tolerance == 0.01
    assert settings.budget_for("other.onnx").limits == {"peak": 10**9}


def test_nothing_matches_where_nothing_is_set(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.memdiag.budgets."a.onnx"]\npeak = 1\n')
    assert read_project_settings(tmp_path).budget_for("b.onnx").limits == {}


@pytest.mark.parametrize(
    ("line", "words"), [("peek = 1", "unknown figure 'peek'"), ('peak = "8"', "has no unit")]
)
def test_a_budget_that_means_nothing_is_refused_with_its_pattern(
    tmp_path: Path, line: str, words: str
) -> None:
    (tmp_path / "pyproject.toml").write_text(f'[tool.memdiag.budgets."a*"]\n{line}\n')
    with pytest.raises(UsageError, match=words) as caught:
        read_project_settings(tmp_path)
    assert 'budgets."a*"' in str(caught.value)
