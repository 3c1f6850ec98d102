"""The page about sweeps: its columns are those of the store, and its programs run."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from memdiag.comparison.environments import cache_folder, provided_interpreter
from memdiag.sweeps.model_sources import find_sweep_models
from memdiag.sweeps.store import DATASET_COLUMNS, SweepStore
from tests.sweeps.results import job, result

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "sweeps.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_names_every_column() -> None:
    named = set(re.findall(r"`(\w+)`", PAGE))
    columns = {column for dataset in DATASET_COLUMNS.values() for column in dataset}
    assert columns - named == set()


def test_its_links_and_its_list_of_models_are_valid(tmp_path: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", PAGE)
    assert [link for link in links if not (DOCS / link).exists()] == []
    (listed,) = blocks("toml")
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
    python = provided_interpreter(
        cache_folder() / "environments" / "readers", ("duckdb", "pandas", "polars", "pyarrow")
    )
    programs = blocks("python")
    assert len(programs) == 3
    for program in programs:
        done = subprocess.run(
            [python, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "a.onnx" in done.stdout or "shared-weight-transposed" in done.stdout
