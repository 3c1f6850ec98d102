"""Commands on the pages of the documentation exist, and their outputs are those of real runs."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import docs_examples
from memdiag.api.project_settings import read_project_settings
from memdiag.cli.app import command_module, command_parser, parse_options
from memdiag.cli.commands import COMMAND_NAMES
from tests.decoders import decoder, saved

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
BLOCK = re.compile(r"^```(?:console)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[str]:
    """Return the commands of memdiag in the blocks of a Markdown page."""
    lines = [line for block in BLOCK.findall(text) for line in block.splitlines()]
    return [
        line.removeprefix("$ ") for line in lines if re.match(r"(\$ )?memdiag [a-z]+( |$)", line)
    ]


def check_command(command: str) -> None:
    """Parse a command of memdiag as the command line does; end the process if it is wrong."""
    words = shlex.split(command.replace("$PID", "1").replace(" PID", " 1"), comments=True)
    if "|" in words:
        words = words[: words.index("|")]
    _, name, *arguments = words
    assert name in COMMAND_NAMES, command
    parse_options(command_parser(name, command_module(name)), arguments)


def id_of(path: Path) -> str:
    return path.relative_to(DOCS).with_suffix("").as_posix()


PAGES_WITH_COMMANDS = [page for page in PAGES if commands(page.read_text())]


def test_every_task_has_a_command() -> None:
    assert set(PAGES_WITH_COMMANDS) >= {DOCS / "start.md", *(DOCS / "tasks").glob("*.md")}


@pytest.mark.parametrize("page", PAGES_WITH_COMMANDS, ids=id_of)
def test_commands_of_a_page_parse(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in commands(page.read_text()):
        try:
            check_command(command)
        except SystemExit:
            pytest.fail(f"{command}: {capsys.readouterr().err}")


def test_a_command_with_an_unknown_option_is_found() -> None:
    (good, bad) = commands(
        "```\nmemdiag check a.onnx # words\nmemdiag check a.onnx --gone 1\n```\n"
    )
    check_command(good)
    with pytest.raises(SystemExit):
        check_command(bad)


def test_options_in_sentences_exist(pytester: pytest.Pytester) -> None:
    known = {"--jobs", "--help", "--version", "--workers"}  # those of make and gunicorn, too
    for name in COMMAND_NAMES:
        parser = command_parser(name, command_module(name))
        known |= {each for action in parser._actions for each in action.option_strings}
    known |= set(re.findall(r"--[a-z-]+", pytester.runpytest_inprocess("--help").stdout.str()))
    pages = (*(DOCS / "tasks").glob("*.md"), DOCS / "start.md", DOCS / "privacy.md")
    prose = "\n".join(docs_examples.without_blocks(page.read_text()) for page in pages)
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", prose))
    assert len(named) > 10
    assert named - known == set()


def test_every_command_shows_its_output() -> None:
    assert len(docs_examples.pages()) >= 10
    for page in docs_examples.pages():
        for example in docs_examples.examples(page.read_text()):
            assert example.output.strip(), f"{page}: {example.command}"


def test_no_output_names_a_folder_of_the_machine_that_made_it() -> None:
    for path in (*PAGES, *docs_examples.notebooks()):
        found = re.findall(r"(?<![\w.])/(?:tmp|root|work|home/\w+)/[\w./-]*", path.read_text())
        assert found == [], path


def test_settings_of_a_page_are_known(tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", (DOCS / "tasks/check.md").read_text(), re.DOTALL)
    (tmp_path / "pyproject.toml").write_text(block)
    assert read_project_settings(tmp_path).min_size == 1 << 20


def test_python_of_the_reference_runs(tmp_path: Path, sample_model: Callable[..., Path]) -> None:
    page = (DOCS / "reference/python.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "model.onnx").symlink_to(sample_model("tied_if"))
    finished = subprocess.run(
        [sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert finished.returncode == 0, finished.stderr
    *found, last = finished.stdout.splitlines()
    assert any(line.startswith("shared-weight-transposed: ") for line in found)
    assert re.fullmatch(r"\d+ MiB in [a-z_]+ \((exact|sampled)\)", last)


def options_in_tables() -> list[tuple[str, str]]:
    """Return the options in tables with the command that they are for."""
    found = []
    for command, page in (("profile", "tasks/too_much.md"), ("estimate", "tasks/batch.md")):
        options = re.findall(r"^\|.*`(--[^`]+)`", (DOCS / page).read_text(), re.MULTILINE)
        found += [(command, each) for each in options]
    return found


def test_tables_name_options() -> None:
    assert {command for command, _ in options_in_tables()} == {"profile", "estimate"}


@pytest.mark.slow
@pytest.mark.parametrize(("command", "options"), options_in_tables())
def test_options_in_tables_are_taken(
    tmp_path: Path, sample_model: Callable[..., Path], command: str, options: str
) -> None:
    import numpy as np

    np.save(tmp_path / "ids.npy", np.array([1]))
    np.savez(tmp_path / "all.npz", ids=np.array([1]))
    words = options.replace("batch=4,sequence=", "tokens=").replace("NAME", "CPUExecutionProvider")
    words = words.replace("CUDAExecutionProvider", "CPUExecutionProvider")
    words = words.replace("other/bin/python", sys.executable).replace("--out DIR", "")
    words = words.replace("register_custom_ops_library=ops.so", "enable_cpu_mem_arena=0")
    model = sample_model("tied_if")
    if any(option in words for option in ("--steps", "--prefill", "--feed")):
        model = saved(tmp_path, decoder(positions=1024))
    arguments = ["-m", "memdiag", command, str(model), *shlex.split(words), "--out", "out"]
    finished = subprocess.run(
        [sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr


PAGE = """# Page

<!-- run: printf 'a\\nb\\nc\\n' > letters -->
<!-- file: more.txt -->
```text
d
```

<!-- first 2 lines -->
```console
$ cat letters more.txt
old
$ pwd; echo 1
```

<!-- picture: lett* -->
![letters](pictures/letters)
"""


def test_outputs_and_pictures_are_replaced(tmp_path: Path) -> None:
    page, folder = tmp_path / "docs" / "page.md", tmp_path / "run"
    page.parent.mkdir()
    folder.mkdir()
    page.write_text(PAGE)
    text = docs_examples.regenerated(page, folder)
    assert text == PAGE.replace("old\n", "a\nb\n...\n").replace(
        "echo 1\n", f"echo 1\n{folder}\n1\n"
    )
    assert (page.parent / "pictures/letters").read_text() == "a\nb\nc\n"
    assert page.read_text() == PAGE


def test_an_example_that_fails_is_an_error(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ exit 1\n```\n")  # something was found
    assert docs_examples.regenerated(page, tmp_path) == page.read_text()
    page.write_text("```console\n$ exit 2\n```\n")
    with pytest.raises(docs_examples.ExampleError, match="exit code 2"):
        docs_examples.regenerated(page, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", docs_examples.pages(), ids=id_of)
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path) -> None:
    """The outputs differ in figures only: the first line has the same words."""
    copy = tmp_path / "docs" / page.name
    copy.parent.mkdir()
    copy.write_text(page.read_text())
    folder = tmp_path / "run"
    folder.mkdir()
    copy.write_text(docs_examples.regenerated(copy, folder))
    for stored, new in zip(
        docs_examples.examples(page.read_text()),
        docs_examples.examples(copy.read_text()),
        strict=True,
    ):
        assert _first_words(new.output) == _first_words(stored.output), new.command


def _first_words(output: str) -> list[str]:
    """Return the words at the start of an output, up to the first figure or chosen option."""
    return re.split(r"\d|(?<=^program for )", output, maxsplit=1)[0].split()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("notebook", docs_examples.notebooks(), ids=id_of)
def test_a_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    """Every cell runs, and shows what the stored notebook shows: text, HTML or a picture."""
    import nbformat

    stored = nbformat.read(notebook, as_version=4)
    new = docs_examples.executed(notebook, tmp_path)
    for before, after in zip(stored.cells, new.cells, strict=True):
        assert _kinds(after) == _kinds(before), before.source


def _kinds(cell: dict[str, object]) -> set[str]:
    """Return the kinds of content in the outputs of a cell."""
    outputs = cell.get("outputs", ())
    assert isinstance(outputs, list | tuple)
    return {kind for each in outputs for kind in each.get("data", {each["output_type"]: ""})}
