"""The command line as a user starts it: within the tests' process, and in one of its own."""

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from memdiag.cli.app import parse_command_line, run_guarded

Finished = subprocess.CompletedProcess[str]
RunMemdiag = Callable[..., Finished]
SampleModel = Callable[..., Path]


@pytest.fixture
def memdiag(tmp_path: Path) -> RunMemdiag:
    """Return a function that runs memdiag in this process, in a folder of the test's own.

    It saves the second that a process takes to import everything. Children that measure are
    processes all the same.
    """

    def run(*words: object, **environment: str) -> Finished:
        output, errors = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path)
            for name, text in {"COLUMNS": "80", **environment}.items():
                patch.setenv(name, text)
            patch.setattr(sys, "argv", ["memdiag", *map(str, words)])
            patch.setattr(sys, "stdout", output)
            patch.setattr(sys, "stderr", errors)
            code = run_command_line()
        return Finished([*map(str, words)], code, text_of(output), text_of(errors))

    return run


def run_command_line() -> int:
    """Return the exit code, also where help or an error in the arguments ends the process."""
    try:
        invocation = parse_command_line()
        return run_guarded(invocation.module.run, invocation.options)
    except SystemExit as ended:
        return cast("int", ended.code)


def text_of(stream: io.TextIOWrapper) -> str:
    stream.flush()
    written = stream.buffer
    assert isinstance(written, io.BytesIO)
    return written.getvalue().decode()


@pytest.fixture
def memdiag_process(tmp_path: Path) -> RunMemdiag:
    """Return a function that runs memdiag in a process of its own, as `memdiag` does."""

    def run(*words: object, **environment: str) -> Finished:
        return subprocess.run(
            [sys.executable, "-m", "memdiag", *map(str, words)],
            cwd=tmp_path,
            env={**os.environ, "COLUMNS": "80", **environment},
            capture_output=True,
            text=True,
            timeout=100,
        )

    return run
