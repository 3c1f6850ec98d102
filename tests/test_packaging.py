"""What the built distributions hold, and that the dependencies are those that are imported."""

import ast
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def build(target: str, folder: Path) -> Path:
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return zipfile.ZipFile(build("wheel", tmp_path_factory.mktemp("wheel")))


@pytest.fixture(scope="module")
def sdist_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    with tarfile.open(build("sdist", tmp_path_factory.mktemp("sdist"))) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def test_the_wheel_holds_the_whole_package(wheel: zipfile.ZipFile) -> None:
    expected = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "memdiag").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == expected


def test_the_wheel_names_its_command_and_licence(wheel: zipfile.ZipFile) -> None:
    information = f"memdiag-{PROJECT['version']}.dist-info"
    entry_points = wheel.read(f"{information}/entry_points.txt").decode()
    assert "memdiag = memdiag.cli:main" in entry_points
    assert "[pytest11]\nmemdiag = memdiag.pytest_plugin" in entry_points
    metadata = wheel.read(f"{information}/METADATA").decode()
    assert "License-Expression: MIT" in metadata
    assert f"{information}/licenses/LICENSE" in wheel.namelist()


def test_the_source_distribution_can_be_tested(sdist_names: set[str]) -> None:
    needed = {"Makefile", "pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md", ".ci/run"}
    needed |= {"sample_models/recipes/tied_if.py", "tests/test_packaging.py"}
    needed |= {"benchmarks/real_models.py", "reports/README.md"}
    assert needed - sdist_names == set()
    assert [name for name in sdist_names if name.endswith((".onnx", ".pyc"))] == []


def test_dependencies_are_what_is_imported() -> None:
    imported = set()
    for path in (ROOT / "memdiag").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.partition(".")[0])
    extras = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *extras["compare"], *extras["uv"]]
    declared = {re.split(r"[<>=!~; ]", line)[0] for line in lines}
    # The loader runs by its path, where its files know each other by their bare names.
    # pytest is there where its plugin is loaded.
    ours = {"memdiag", "pytest"} | {
        path.stem for path in (ROOT / "memdiag" / "loader").glob("*.py")
    }
    distributions = {"google": "protobuf", "onnx_ir": "onnx-ir"}
    imported = {distributions.get(name, name) for name in imported}
    assert imported - sys.stdlib_module_names - ours == declared
