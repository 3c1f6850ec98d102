"""Commands run in a worker: its crashes become one sentence, and signals reach it."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

MAIN = """
import os, signal, sys, time
from memdiag.cli.worker import continue_in_worker, end_at_signals, run_here
def command():
    {}
    return 0
end_at_signals()
continue_in_worker()
run_here(command)
"""


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", MAIN.format(code), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("code", [0, 1, 2])
def test_the_exit_code_is_that_of_the_command(code: int) -> None:
    done = run(f"print('written'); return {code}")
    assert (done.returncode, done.stdout, done.stderr) == (code, "written\n", "")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("SIGSEGV", "native code crashed (SIGSEGV), most likely over a damaged file."),
        ("SIGABRT", "native code crashed (SIGABRT), most likely over a damaged file."),
        ("SIGBUS", "a file became shorter while it was read (SIGBUS). Try again when"),
        ("SIGKILL", "it was killed (SIGKILL). Possible reasons: memory is short, or a limit of"),
        ("SIGXCPU", "the limit of CPU time was reached (SIGXCPU). Raise it (ulimit -t)."),
    ],
)
def test_a_crash_is_one_sentence_with_the_file(name: str, reason: str) -> None:
    done = run(f"os.kill(os.getpid(), signal.{name})", "check", "model.onnx")
    assert done.returncode == 2
    assert done.stderr.startswith(f"memdiag: check model.onnx: {reason}")
    assert len(done.stderr.splitlines()) == 1


def test_where_no_process_can_be_forked_the_command_runs_in_this_one() -> None:
    source = MAIN.format("print('written'); return 1").replace(
        "continue_in_worker()",
        "def fork(): raise BlockingIOError\nos.fork = fork\ncontinue_in_worker()",
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (1, "written\n", "")


@pytest.mark.parametrize(
    ("name", "handles", "code", "message"),
    [
        ("SIGINT", True, 40 + signal.SIGINT, ""),
        ("SIGTERM", True, 40 + signal.SIGTERM, ""),
        ("SIGINT", False, 2, "memdiag: interrupted.\n"),
        ("SIGTERM", False, 2, "memdiag: interrupted.\n"),
    ],
)
def test_a_signal_reaches_the_command_once(
    name: str, handles: bool, code: int, message: str, tmp_path: Path
) -> None:
    note = "def note(number, frame): os._exit(40 + number)"
    handle = "signal.signal(signal.SIGINT, note); signal.signal(signal.SIGTERM, note);"
    wait = "open('ready', 'w').close(); time.sleep(30)"
    source = MAIN.replace("def command", f"{note}\ndef command")
    command = [sys.executable, "-c", source.format(f"{handle if handles else ''} {wait}".strip())]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        wait_for(tmp_path / "ready")
        process.send_signal(getattr(signal, name))
        assert process.communicate(timeout=30)[1] == message
    assert process.returncode == code


def test_the_worker_ends_with_its_parent(tmp_path: Path) -> None:
    code = "open('ready', 'w').write(str(os.getpid())); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", MAIN.format(code)], cwd=tmp_path) as process:
        wait_for(tmp_path / "ready")
        time.sleep(0.1)
        worker = psutil.Process(int((tmp_path / "ready").read_text()))
        process.kill()
    worker.wait(30)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert path.exists()
