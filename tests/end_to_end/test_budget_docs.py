"""What the page on budgets and the workflow to copy say works as it stands there."""

import re
from pathlib import Path
from pkgutil import iter_modules

import pytest

from memdiag.api.project_settings import read_project_settings
from memdiag.budgets.figures import FIGURES_BY_NAME
from memdiag.cli import commands
from tests.end_to_end.conftest import RunMemdiag

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "pytest.md").read_text()
WORKFLOW = (DOCS / "github-workflow.yml").read_text()
HOOKS = (DOCS.parent / ".pre-commit-hooks.yaml").read_text()
OPTION = r"(?<![\w-])--[a-z][a-z-]+"


def test_its_options_exist(memdiag: RunMemdiag, pytester: pytest.Pytester) -> None:
    names = [module.name for module in iter_modules(commands.__path__)]
    helps = [memdiag(command, "--help", COLUMNS="200").stdout for command in names]
    helps.append(pytester.runpytest_inprocess("--help").stdout.str())
    known = set(re.findall(OPTION, "\n".join(helps)))
    named = set(re.findall(OPTION, PAGE.replace("git rev-parse --short", "") + WORKFLOW))
    assert len(named) > 10
    assert named - known == set()


def test_its_settings_are_known(tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "pyproject.toml").write_text(block)
    assert read_project_settings(tmp_path).budget_for("models/a_int8.onnx").tolerance == 0.02


def test_it_names_every_figure() -> None:
    assert [name for name in FIGURES_BY_NAME if f"`{name}`" not in PAGE] == []


def test_its_tests_can_be_collected(pytester: pytest.Pytester) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 6
    pytester.makepyfile("\n".join(blocks))
    result = pytester.runpytest_inprocess("--collect-only", "-q", "--strict-markers")
    result.stdout.fnmatch_lines(["7 tests collected*"])


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", PAGE)
    assert links
    assert [link for link in links if not (DOCS / link).exists()] == []


def test_the_hook_runs_a_command_that_there_is(memdiag: RunMemdiag) -> None:
    (hook,) = re.findall(r"- id: (\S+)", HOOKS)
    assert f"- id: {hook}\n" in PAGE
    (command,) = re.findall(r"entry: memdiag (\S+)", HOOKS)
    assert memdiag(command, "--help").returncode == 0
