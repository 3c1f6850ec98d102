"""The outputs on the pages of the documentation: ``python -m benchmarks.docs_examples``.

The commands of a page run one after another in an empty folder, and the output of each replaces the
one on the page. Names of pages as arguments limit it to these. The notebooks are executed likewise.

A page has, besides text:

- ```` ```console ```` blocks: lines that start with ``$ `` are commands, the other lines output;
- ``<!-- run: COMMAND -->``: a command that prepares the folder and is not shown;
- ``<!-- start: COMMAND -->``: a program in the background, whose id is ``$PID``; it is ready when
  it has printed a line;
- ``<!-- file: NAME -->`` before a block: the block is the content of that file;
- ``<!-- first N lines -->`` before a console block: of each output only the first lines are shown;
- ``<!-- picture: FILE -->`` before a picture: the file that the commands have written.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.real_models import real_models

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NOTEBOOKS = DOCS / "notebooks"

_TIMEOUT_S = 900.0
_STEP = re.compile(
    r"^<!-- (?P<name>run|start|file|picture): (?P<value>[^\n]+) -->\n+"
    r"|^(?:<!-- first (?P<lines>\d+) lines -->\n)?```console\n(?P<console>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_BLOCK = re.compile(r"```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PICTURE = re.compile(r"!\[[^\]]*\]\(([^)]+)\)")


class ExampleError(Exception):
    """An example that failed, or a page that cannot be understood."""


class Example(NamedTuple):
    """A command of a page, with its output.

    Attributes:
        command: the command as a shell reads it.
        output: the output as it is shown, with a line break at the end if it is not empty.
    """

    command: str
    output: str


def pages() -> list[Path]:
    """Return the pages with examples."""
    return [path for path in sorted(DOCS.rglob("*.md")) if "```console\n" in path.read_text()]


def notebooks() -> list[Path]:
    """Return the notebooks."""
    return sorted(NOTEBOOKS.glob("*.ipynb"))


def examples(text: str) -> list[Example]:
    """Return the commands in the console blocks of the Markdown page `text`."""
    return [each for step in _STEP.finditer(text) for each in _split(step["console"] or "")]


def without_blocks(text: str) -> str:
    """Return the Markdown page `text` without its blocks of code and comments."""
    return re.sub("<!--.*?-->", "", _BLOCK.sub("", text))


def _split(block: str) -> list[Example]:
    """Return the commands in one console block."""
    parts = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)
    return [Example(*pair) for pair in zip(parts[1::2], parts[2::2], strict=True)]


def regenerated(page: Path, folder: Path) -> str:
    """Run the examples of `page` in the empty `folder` and return the page with their outputs.

    Pictures of the page are replaced.

    Raises:
        ExampleError: a command failed, or a picture was not written.
    """
    text = page.read_text()
    parts: list[str] = []
    end = 0
    with _Shell(folder) as shell:
        for step in _STEP.finditer(text):
            parts.append(text[end : step.start()])
            end = step.end()
            if step["console"] is None:
                parts.append(step[0])
                _prepare(step["name"], step["value"], shell, page, text[end:])
                continue
            limit = int(step["lines"]) if step["lines"] else None
            shown = "".join(
                f"$ {each.command}\n{_shortened(shell.run(each.command), limit)}"
                for each in _split(step["console"])
            )
            parts.append(step[0].replace(step["console"], shown))
    return "".join((*parts, text[end:]))


def _prepare(name: str, value: str, shell: "_Shell", page: Path, rest: str) -> None:
    """Do what a comment on a page says.

    Args:
        name: ``run``, ``start``, ``file`` or ``picture``.
        value: the command or the name of the file.
        shell: where commands run.
        page: the page.
        rest: the text of the page after the comment.
    """
    if name == "run":
        shell.run(value)
    elif name == "start":
        shell.start(value)
    elif name == "file":
        block = _BLOCK.match(rest)
        if block is None:
            raise ExampleError(f"{page}: no block follows {value}")
        (shell.folder / value).write_text(block[1])
    else:
        picture = _PICTURE.match(rest)
        found = list(shell.folder.glob(value))
        if picture is None or len(found) != 1:
            raise ExampleError(f"{page}: {value} is not one picture")
        target = page.parent / picture[1]
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(found[0], target)


def executed(notebook: Path, folder: Path) -> Any:
    """Return `notebook`, executed in the empty `folder`, with the outputs that are stored.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raised an exception.
    """
    import nbformat
    from nbclient import NotebookClient

    content = nbformat.read(notebook, as_version=4)
    # The kernel, and the programs that cells start, find memdiag of this environment.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ["COLUMNS"] = "80"
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    client = NotebookClient(
        content,
        timeout=int(_TIMEOUT_S),
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()
    # Versions of the kernel would make a difference in git at each execution.
    content.metadata["language_info"] = {"name": "python"}
    # Absolute paths are those of a folder that no reader has.
    return nbformat.reads(nbformat.writes(content).replace(f"{folder}/", ""), as_version=4)


def _shortened(output: str, limit: int | None) -> str:
    lines = output.rstrip().splitlines()
    if limit is not None and len(lines) > limit:
        lines = [*lines[:limit], "..."]
    return "".join(f"{line.rstrip()}\n" for line in lines)


class _Shell:
    """Runs commands in a folder, with memdiag of this environment and 80 columns.

    Attributes:
        folder: the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._programs: list[subprocess.Popen[str]] = []
        self._environment = {
            **os.environ,
            "COLUMNS": "80",
            "ORT_DISABLE_TELEMETRY": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),  # sample_models and benchmarks
            "REAL_MODELS": str(next(iter(real_models().values())).parent),
        }

    def __enter__(self) -> "_Shell":
        return self

    def __exit__(self, *_: object) -> None:
        for program in self._programs:
            program.send_signal(signal.SIGKILL)
            program.communicate()

    def run(self, command: str) -> str:
        """Run `command` and return what it printed.

        Raises:
            ExampleError: its exit code is neither 0 nor 1, which means that something was found.
        """
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        if done.returncode not in (0, 1):
            raise ExampleError(f"{command}: exit code {done.returncode}\n{done.stdout}")
        # Absolute paths are those of a folder that no reader has.
        return done.stdout.replace(f"{self.folder}/", "")

    def start(self, command: str) -> None:
        """Start `command`, and wait until it has printed a line."""
        program = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._programs.append(program)
        self._environment["PID"] = str(program.pid)
        assert program.stdout is not None
        if not program.stdout.readline():
            raise ExampleError(f"{command}: ended")


def main() -> None:
    """Replace the outputs on the pages that the arguments name, or on all."""
    names = sys.argv[1:]
    for path in (*pages(), *notebooks()):
        name = path.relative_to(DOCS).with_suffix("").as_posix()
        if names and name not in names:
            continue
        print(name, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            if path.suffix == ".ipynb":
                import nbformat

                nbformat.write(executed(path, Path(folder).resolve()), path)
                continue
            try:
                path.write_text(regenerated(path, Path(folder).resolve()))
            except ExampleError as error:
                sys.exit(f"{name}: {error}")


if __name__ == "__main__":
    main()
