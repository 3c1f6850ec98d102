"""The rules about the code itself: what an import loads, and no path of one machine."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = {"jinja2", "matplotlib", "msgspec", "numpy", "onnx", "onnxruntime", "psutil", "rich"}
# Paths that exist on one machine only: folders of users, of a checkout, of temporary files.
PRIVATE = re.compile(r"(?<![\w.~*<>-])/(?:home|root|Users|work|tmp)/\w")


def loaded(program: str) -> set[str]:
    """Return the modules that a new interpreter has loaded after `program`."""
    program += "\nimport json, sys; print(json.dumps(list(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout))


def tracked_files() -> list[Path]:
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip("this is no git checkout, so nothing tells the project's files from others")
    return [path for name in listing.stdout.split("\0") if name and (path := ROOT / name).is_file()]


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
    light = "api api.options cli cli.app cli.commands cli.options cli.worker defaults detail errors"
    light += " process_end"
    assert own - commands <= {f"memdiag.{name}" for name in light.split()}
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
