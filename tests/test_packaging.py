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

import memdiag
from benchmarks.javascript_licences import LICENCES

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
def wheel_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def wheel(wheel_path: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(wheel_path)


def write_wheel(folder: Path, name: str, version: str, package: str = "") -> None:
    """Write a wheel of distribution `name` that has the import package `package`, if any."""
    stem = f"{name.replace('-', '_')}-{version}"
    information = f"{stem}.dist-info"
    files = {
        f"{information}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{information}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if package:
        files[f"{package}/__init__.py"] = f"__version__ = {version!r}\n"
    files[f"{information}/RECORD"] = "".join(f"{each},,\n" for each in files)
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)


@pytest.fixture(scope="module")
def sdist_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    with tarfile.open(build("sdist", tmp_path_factory.mktemp("sdist"))) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


@pytest.mark.slow
def test_the_wheel_holds_the_whole_package(wheel: zipfile.ZipFile) -> None:
    expected = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "memdiag").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == expected


@pytest.mark.slow
def test_the_wheel_names_its_command_and_licence(wheel: zipfile.ZipFile) -> None:
    information = f"memdiag-{memdiag.__version__}.dist-info"
    entry_points = wheel.read(f"{information}/entry_points.txt").decode()
    assert "memdiag = memdiag.cli:main" in entry_points
    assert "[pytest11]\nmemdiag = memdiag.pytest_plugin" in entry_points
    metadata = wheel.read(f"{information}/METADATA").decode()
    assert "License-Expression: MIT" in metadata
    assert f"{information}/licenses/LICENSE" in wheel.namelist()
    assert wheel.read(f"{information}/licenses/licenses/plotly.js.txt") == LICENCES.read_bytes()


@pytest.mark.slow
def test_the_source_distribution_can_be_tested(sdist_names: set[str]) -> None:
    needed = {"Makefile", "pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md", ".ci/run"}
    needed |= {"licenses/plotly.js.txt", "sample_models/recipes/tied_if.py"}
    needed |= {"tests/test_packaging.py", "benchmarks/real_models.py", "reports/README.md"}
    assert needed - sdist_names == set()
    assert [name for name in sdist_names if name.endswith((".onnx", ".pyc"))] == []


def test_dependencies_are_what_is_imported() -> None:
    imported = set()
    for path in (ROOT / "memdiag").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.partition(".")[0])
    extras = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"]]
    for name in ("cpu", "compare", "uv", "sweep", "dask", "nvidia"):
        lines += extras[name]
    declared = {re.split(r"[<>=!~; \[]", line)[0] for line in lines}
    # The scripts run by path, where their files import each other by their bare names.
    # pytest is there where its plugin is loaded.
    ours = {"memdiag", "pytest"} | {
        path.stem for path in (ROOT / "memdiag" / "runner" / "scripts").glob("*.py")
    }
    distributions = {"google": "protobuf", "onnx_ir": "onnx-ir", "pynvml": "nvidia-ml-py"}
    imported.add("nvidia-cuda-cupti")  # a library that the script of a child opens by its name
    imported = {distributions.get(name, name) for name in imported}
    assert imported - sys.stdlib_module_names - ours == declared


@pytest.mark.slow
def test_installing_leaves_the_runtime_that_is_there(wheel_path: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    index.mkdir()
    (index / wheel_path.name).write_bytes(wheel_path.read_bytes())
    for line in PROJECT["dependencies"]:
        write_wheel(index, re.split(r"[<>=!~; \[]", line)[0], "9999.0")
    write_wheel(index, "onnxruntime", "9999.0", "onnxruntime")
    write_wheel(index, "onnxruntime-vendor", "1.23.4", "onnxruntime")
    home = tmp_path / "environment"
    python = home / "bin/python"

    def install(*names: str) -> None:
        where = ("--offline", "--no-index", "--no-cache", "--find-links", index, "--python", python)
        uv("pip", "install", *where, *names)

    def uv(*words: str | Path) -> None:
        command = [sys.executable, "-m", "uv", "--no-config", *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def runtime() -> str:
        ask = "from memdiag.ort.runtime import Runtime; print(Runtime.installed())"
        command = [str(python), "-I", "-c", ask]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    uv("venv", "--python", sys.executable, home)
    install("onnxruntime-vendor")
    install("memdiag")
    assert runtime() == "1.23.4"
    install("memdiag[cpu]")
    assert runtime() == "9999.0.0"


@pytest.mark.slow
def test_only_the_extra_names_the_runtime(wheel: zipfile.ZipFile) -> None:
    metadata = wheel.read(f"memdiag-{memdiag.__version__}.dist-info/METADATA").decode()
    required = re.findall(r"^Requires-Dist: (onnxruntime\b.*)$", metadata, re.MULTILINE)
    assert len(required) == 2
    assert {each.partition("extra == ")[2] for each in required} == {"'cpu'", "'dev'"}
