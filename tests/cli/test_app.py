"""What a command that fails in a way nobody foresaw ends with."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from memdiag.cli import main
from memdiag.cli.app import run_guarded
from memdiag.errors import ArgumentError, ModelError


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ModelError("m.onnx: it is empty; export it again."), "m.onnx: it is empty"),
        (ModelError("a\nb\x1b[31m.onnx: it is empty."), "a b\\x1b[31m.onnx: it is empty."),
        (KeyError("k"), "unexpected KeyError ('k') in test_app.py, line "),
        (ImportError("no such name"), "unexpected ImportError (no such name)"),
        (ImportError("libm.so: failed to map segment"), "out of memory or processes. "),
        (RuntimeError("can't start new thread"), "out of memory or processes. "),
        (BlockingIOError(errno.EAGAIN, "again"), "out of memory or processes. "),
        (MemoryError(), "out of memory or processes. "),
        (FileNotFoundError(2, "No such file", "m.onnx"), "memdiag: m.onnx: No such file."),
        (OSError(errno.EXDEV, "Invalid link"), "memdiag: Invalid link."),
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


def test_an_error_names_options_in_place_of_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    sentence = "{timeout_s}, {run=False} and {fit_bytes} differ from {those}."

    def command() -> int:
        raise ArgumentError(sentence)

    assert run_guarded(command) == 2
    expected = "memdiag: --timeout, --no-run and --fit differ from --those.\n"
    assert capsys.readouterr().err == expected
    assert str(ArgumentError(sentence)) == "timeout_s, run=False and fit_bytes differ from those."


@pytest.mark.parametrize("code", [0, 1, 2])
def test_a_command_ends_with_its_code(code: int) -> None:
    assert run_guarded(lambda: code) == code


def test_notes_of_an_error_follow_its_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> int:
        error = PermissionError(13, "Permission denied", "font.json")
        error.add_note("The profile itself is at profile.json.")
        raise error

    assert run_guarded(command) == 2
    assert capsys.readouterr().err == (
        "memdiag: font.json: Permission denied. The profile itself is at profile.json.\n"
    )


def test_a_removed_working_folder_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert run_guarded(lambda: len(os.getcwd())) == 2
    assert "memdiag: the working folder does not exist any more. " in capsys.readouterr().err


def test_another_system_is_told_that_linux_is_needed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "memdiag: this needs Linux. Run it there, or in a container.\n"
    )


INTERRUPTED = """
import signal, sys, time
from memdiag.cli import main
from memdiag.cli.app import run_guarded
from memdiag.cli.worker import end_at_signals
class Ignoring:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)
def command():
    {}
    time.sleep(60)
end_at_signals()
sys.exit(run_guarded(command))
"""


@pytest.mark.parametrize(
    "code",
    [
        "Ignoring()",
        "\n    try: signal.raise_signal(signal.SIGINT)"
        "\n    except KeyboardInterrupt: raise ImportError('half initialized')",
    ],
    ids=["ignored by Python", "replaced by another error"],
)
def test_an_interrupt_is_not_lost(code: str) -> None:
    words = [sys.executable, "-c", INTERRUPTED.format(code)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (2, "memdiag: interrupted.\n")
