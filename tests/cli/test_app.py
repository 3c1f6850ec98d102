"""What a command that fails in a way nobody foresaw ends with."""

import pytest

from memdiag.cli.app import run_guarded
from memdiag.errors import ModelError


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ModelError("m.onnx: it is empty; export it again."), "m.onnx: it is empty"),
        (ModelError("a\nb\x1b[31m.onnx: it is empty."), "a b\\x1b[31m.onnx: it is empty."),
        (KeyError("k"), "unexpected KeyError ('k') in test_app.py, line "),
        (ImportError("failed to map segment"), "unexpected ImportError (failed to map segment)"),
        (MemoryError(), "out of memory. "),
    ],
)
def test_an_error_is_one_line_and_ends_with_2(
    error: Exception, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> int:
        raise error

    assert run_guarded(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("memdiag: ")
    assert words in line


@pytest.mark.parametrize("code", [0, 1, 2])
def test_a_command_ends_with_its_code(code: int) -> None:
    assert run_guarded(lambda: code) == code
