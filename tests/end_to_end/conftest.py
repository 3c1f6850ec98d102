"""The command line as a user starts it: a real process, with its output and exit code."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Finished = subprocess.CompletedProcess[str]
RunMemdiag = Callable[..., Finished]


@pytest.fixture
def memdiag(tmp_path: Path) -> RunMemdiag:
    """Return a function that runs memdiag with the words given, in a folder of the test's own."""

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
