"""The rules about the code itself: who imports whom, who prints, how long a file is."""

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = {
    "jinja2",
    "matplotlib",
    "msgspec",
    "numpy",
    "onnx",
    "onnxruntime",
    "psutil",
    "rich",
}
# Paths that exist on one machine only: folders of users, of a checkout, of temporary files.
PRIVATE = re.compile(r"(?<![\w.~*<>-])/(?:home|root|Users|work|tmp)/\w")


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    program = (
        "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    )
    return subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False
    )


def prints(source: str) -> list[int]:
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]


def loaded(program: str) -> set[str]:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"{program}\nimport json, sys; print(json.dumps(list(sys.modules)))",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(done.stdout))


def tracked_files() -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode:
        pytest.skip("this is no git checkout, so nothing tells the project's files from others")
    return [path for name in listing.stdout.split("\0") if name and (path := ROOT / name).is_file()]


@pytest.mark.slow  # `make lint` looks at the layers themselves
@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("units.py", "import memdiag.records", "Packages import only packages below them"),
        (
            "runner/scripts/__init__.py",
            "import memdiag.errors",
            "Scripts import the",
        ),
        ("records/__init__.py", "import rich", "Nothing below the reports"),
        ("cli/__init__.py", "import sample_models", "memdiag works without its sample models"),
    ],
)
def test_a_layer_that_is_broken_is_noticed(
    tmp_path: Path, module: str, line: str, contract: str
) -> None:
    for name in ("memdiag", "sample_models"):
        shutil.copytree(
            ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.onnx*")
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / "memdiag" / module).open("a") as file:
        file.write(f"\n{line}\n")
    done = lint_imports(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(rf"{re.escape(contract)}.*BROKEN", done.stdout), done.stdout


def test_only_the_command_line_prints() -> None:
    printing = {
        str(path.relative_to(ROOT)): lines
        for path in (ROOT / "memdiag").rglob("*.py")
        if "cli" not in path.relative_to(ROOT).parts and (lines := prints(path.read_text()))
    }
    assert printing == {}


def test_prints_are_seen() -> None:
    assert prints("def f():\n    print(1)\n") == [2]
    assert prints("# print(1)\nconsole.print(1)\nfingerprint(1)\n") == []


def shadowed_submodules(package: Path) -> set[str]:
    """Return the submodules of `package` whose name a function or class in its __init__ has."""
    submodules = {path.stem for path in package.iterdir() if path.suffix == ".py"}
    submodules |= {path.parent.name for path in package.glob("*/__init__.py")}
    names = set()
    for node in ast.parse((package / "__init__.py").read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom) and node.module:
            source = ROOT.joinpath(*node.module.split("."))
            if source != package:  # `from package import submodule` is the submodule itself
                names |= {alias.asname or alias.name for alias in node.names}
    return names & submodules


def test_no_function_has_the_name_of_a_module_beside_it() -> None:
    # memdiag itself is exempt: its names are the public API.
    packages = [path.parent for path in (ROOT / "memdiag").glob("*/**/__init__.py")]
    assert packages
    assert {path: names for path in packages if (names := shadowed_submodules(path))} == {}


@pytest.mark.parametrize(
    ("source", "shadowed"),
    [
        ("def page(): ...", {"page"}),
        ("from package.page import page", {"page"}),
        ("from package.page import show as page", {"page"}),
        ("from package import page", set()),
        ("from package.page import show", set()),
        ("def draw(): ...", set()),
    ],
)
def test_shadowed_modules_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, shadowed: set[str]
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text(source)
    (package / "page.py").touch()
    assert shadowed_submodules(package) == shadowed


def test_importing_memdiag_loads_nothing_else_of_it() -> None:
    modules = loaded("import memdiag")
    assert modules & HEAVY == set()
    assert {name for name in modules if name.startswith("memdiag")} == {"memdiag"}


@pytest.mark.parametrize("words", [["--help"], ["profile", "--help"], ["--version"]])
def test_help_loads_the_parsers_of_the_command_line_only(words: list[str]) -> None:
    modules = loaded(
        "import sys; from memdiag.cli.app import parse_command_line\n"
        f"sys.argv = ['memdiag', *{words!r}]; sys.stdout = open('/dev/null', 'w')\n"
        "try: parse_command_line()\nexcept SystemExit: sys.stdout = sys.__stdout__\n"
    )
    assert modules & (HEAVY | {"pkgutil", "inspect", "dataclasses", "subprocess"}) == set()
    own = {name for name in modules if name.startswith("memdiag.")}
    commands = {name for name in own if name.startswith("memdiag.cli.commands.")}
    assert own - commands <= {
        "memdiag.api",
        "memdiag.api.options",
        "memdiag.cli",
        "memdiag.cli.app",
        "memdiag.cli.commands",
        "memdiag.cli.options",
        "memdiag.cli.worker",
        "memdiag.defaults",
        "memdiag.detail",
        "memdiag.errors",
    }
    if words[0] == "profile":
        assert commands == {"memdiag.cli.commands.profile"}


@pytest.mark.parametrize("name", ["check", "profile", "compare"])
def test_what_rewrites_nothing_loads_nothing_that_rewrites(name: str) -> None:
    assert loaded(f"import memdiag.api.{name}") & {"onnx_ir", "sympy", "matplotlib"} == set()


def test_a_heavy_import_is_seen() -> None:
    assert loaded("import memdiag.records.profile") & HEAVY == {"msgspec"}


def test_files_name_no_private_path() -> None:
    found = {}
    for path in tracked_files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:  # pictures
            continue
        if match := PRIVATE.search(text):
            found[str(path.relative_to(ROOT))] = text[match.start() :].split("\n")[0][:60]
    assert found == {}


def test_private_paths_are_told_from_others() -> None:
    for folder in ("home", "root", "Users", "work", "tmp"):
        assert PRIVATE.search(f'open("/{folder}/someone/model.onnx")')
        assert not PRIVATE.search(f"https://example.org/{folder}/page")
        assert not PRIVATE.search(f"<cache>/{folder}/model.onnx")
