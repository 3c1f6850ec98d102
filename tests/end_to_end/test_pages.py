"""What the README and the pages on budgets and sweeps say works as it stands there."""

import re
import subprocess
import tomllib
from pathlib import Path
from pkgutil import iter_modules

import pytest

from memdiag.budgets.figures import FIGURES_BY_NAME
from memdiag.cli import commands
from memdiag.comparison.environments import cache_folder, provided_interpreter
from memdiag.sweeps.model_sources import find_sweep_models
from memdiag.sweeps.store import DATASET_COLUMNS, SweepStore
from tests.end_to_end.conftest import RunMemdiag, SampleModel
from tests.sweeps.results import job, result

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BUDGETS = (ROOT / "docs" / "pytest.md").read_text()
SWEEPS = (ROOT / "docs" / "sweeps.md").read_text()
OPTION = r"(?<![\w-])--[a-z][a-z-]+"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def test_options_exist(memdiag: RunMemdiag, pytester: pytest.Pytester) -> None:
    names = [module.name for module in iter_modules(commands.__path__)]
    helps = [memdiag(command, "--help", COLUMNS="200").stdout for command in names]
    helps.append(pytester.runpytest_inprocess("--help").stdout.str())
    known = set(re.findall(OPTION, "\n".join(helps)))
    workflow = (ROOT / "docs" / "github-workflow.yml").read_text()
    for text in (README, BUDGETS.replace("git rev-parse --short", ""), workflow):
        named = set(re.findall(OPTION, text))
        assert named
        assert named - known == set()


@pytest.mark.parametrize(
    "words",
    re.findall(r"`memdiag ((?:check|estimate) [^`]*)`", README.replace("batch=", "tokens=")),
)
def test_commands_of_the_readme_that_run_nothing_work(
    memdiag: RunMemdiag, tmp_path: Path, sample_model: SampleModel, words: str
) -> None:
    (tmp_path / "model.onnx").symlink_to(sample_model("tied_if"))
    quick = ["--no-run"] if "--fit" in words else []
    finished = memdiag(*words.split(), *quick)
    assert finished.returncode == (1 if words.startswith("check") else 0)


@pytest.mark.usefixtures("measured_once")
def test_the_budget_of_the_readme_is_a_test(
    pytester: pytest.Pytester, sample_model: SampleModel
) -> None:
    (marker,) = re.findall(r"`(@pytest[^`]+)`", README)
    (pytester.path / "model.onnx").symlink_to(sample_model("tied_if"))
    pytester.makepyfile(test_memory=f"import pytest\n\n{marker}\ndef test_it(): ...\n")
    pytester.runpytest_inprocess("-q").assert_outcomes(passed=1)


def test_make_targets_and_links_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"(?:^|`)make ([a-z-]+)", README, re.MULTILINE)
    assert set(targets) == {"demo", "docs", "test"}
    assert [target for target in targets if f"\n{target}:" not in makefile] == []
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_pages_name_every_figure_and_every_column() -> None:
    assert [name for name in FIGURES_BY_NAME if f"`{name}`" not in BUDGETS] == []
    columns = {column for dataset in DATASET_COLUMNS.values() for column in dataset}
    assert columns - set(re.findall(r"`(\w+)`", SWEEPS)) == set()


def test_the_tests_of_the_page_on_budgets_can_be_collected(pytester: pytest.Pytester) -> None:
    tests = blocks(BUDGETS, "python")
    assert len(tests) == 6
    pytester.makepyfile("\n".join(tests))
    collected = pytester.runpytest_inprocess("--collect-only", "-q", "--strict-markers")
    collected.stdout.fnmatch_lines(["7 tests collected*"])


def test_the_hook_runs_a_command_that_there_is(memdiag: RunMemdiag) -> None:
    hooks = (ROOT / ".pre-commit-hooks.yaml").read_text()
    (hook,) = re.findall(r"- id: (\S+)", hooks)
    assert f"- id: {hook}\n" in BUDGETS
    (command,) = re.findall(r"entry: memdiag (\S+)", hooks)
    assert memdiag(command, "--help").returncode == 0


def test_the_list_of_models_of_the_page_on_sweeps_is_read(tmp_path: Path) -> None:
    (listed,) = blocks(SWEEPS, "toml")
    entries = tomllib.loads(listed)["models"]
    (tmp_path / "list.toml").write_text(f"models = {entries[:1]!r}")
    (model,) = find_sweep_models([str(tmp_path / "list.toml")])
    assert model.name == "model.onnx"
    assert entries[2] == {"path": "gpt.onnx", "name": "GPT", "dims": {"batch": 4}}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_duckdb_pandas_and_polars_read_the_store_as_it_is(tmp_path: Path) -> None:
    store = SweepStore(tmp_path / "sweep")
    for release in ("1.24.4", "1.32.0"):
        store.add(result(job(onnxruntime=release)))
    store.flush()
    readers = ("duckdb", "pandas", "polars", "pyarrow")
    python = provided_interpreter(cache_folder() / "environments" / "readers", readers)
    programs = blocks(SWEEPS, "python")
    assert len(programs) == 3
    for program in programs:
        command = [str(python), "-c", program]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "a.onnx" in done.stdout or "shared-weight-transposed" in done.stdout
