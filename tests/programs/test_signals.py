"""Signals that are sent to ``memdiag run`` alone, and those of a terminal."""

import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from unittest.mock import ANY

import pytest

from memdiag.cli.commands import run as run_command
from memdiag.detail import Detail
from memdiag.records.codec import load
from memdiag.records.run import ProgramRun

PROGRAM = """
import os, signal, sys, time

NAMES = "HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "TTIN", "TTOU", "WINCH"
received, END_S = [], time.monotonic() + 60

def note(number, frame):
    received.append(number)
    open(sys.argv[1] + str(number), "w").close()

for name in NAMES:
    signal.signal(getattr(signal, "SIG" + name), note)
open(sys.argv[1], "w").close()
while signal.SIGTERM not in received and time.monotonic() < END_S:
    time.sleep(0.01)
time.sleep(0.2)  # a second delivery
print(*(signal.Signals(number).name for number in received), flush=True)
os._exit(3)
"""

SILENT = "import sys, time; open(sys.argv[1], 'w').close(); time.sleep(20)"
"""A program with the default action of each signal."""


def command(program: str, started: Path) -> list[str]:
    words = ["memdiag", "run", "--no-xray", "-q", "--out", str(started.parent / "out"), "--"]
    return [sys.executable, "-m", *words, sys.executable, "-c", program, str(started)]


def is_ignored(name: str) -> bool:
    return signal.getsignal(getattr(signal, name)) == signal.SIG_IGN


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.2)  # memdiag waits for signals


def start_in_terminal(words: list[str]) -> tuple[int, int]:
    """Return the process, which leads the session of a new terminal, and the terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(words[0], words)
    return pid, terminal


def read_to_end(terminal: int) -> bytes:
    output = b""
    with suppress(OSError):  # the terminal has no process left
        while data := os.read(terminal, 1 << 16):
            output += data
    os.close(terminal)
    return output


def test_a_signal_that_both_ignore_stays_ignored(tmp_path: Path) -> None:
    started = tmp_path / "started"
    program = SILENT.replace("sleep(20)", "sleep(1)")
    words = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *command(program, started)]
    with subprocess.Popen(words) as process:
        wait_for(started)
        process.send_signal(signal.SIGHUP)
    assert process.returncode == 0


def test_signals_to_memdiag_reach_the_program_once(tmp_path: Path) -> None:
    started = tmp_path / "started"
    with subprocess.Popen(command(PROGRAM, started), stdout=subprocess.PIPE) as process:
        wait_for(started)
        names = ["HUP", "INT", "QUIT", "USR1", "USR2", "TTIN", "TTOU", "WINCH", "TERM"]
        # A shell starts what runs in the background without some, and memdiag leaves it so.
        names = [name for name in names if not is_ignored(f"SIG{name}")]
        for name in names:
            number = getattr(signal, f"SIG{name}")
            process.send_signal(number)
            wait_for(Path(f"{started}{number:d}"))
        assert process.stdout is not None
        received = process.stdout.read().decode().split()
    assert received == [f"SIG{name}" for name in names]
    assert process.returncode == 3


@pytest.mark.parametrize(("name", "exit_code"), [("INT", 130), ("USR1", 138)])
def test_a_signal_that_ends_the_program_ends_memdiag(
    tmp_path: Path, name: str, exit_code: int
) -> None:
    started = tmp_path / "started"
    program = f"import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); {SILENT}"
    with subprocess.Popen(command(program, started), stderr=subprocess.DEVNULL) as process:
        wait_for(started)
        process.send_signal(getattr(signal, f"SIG{name}"))
        assert process.wait(15) == exit_code
    assert (tmp_path / "out" / "run.json").exists()


def test_a_signal_to_the_group_does_not_disturb_the_end_of_the_program(tmp_path: Path) -> None:
    started = tmp_path / "started"
    program = (
        "import os, signal, time; n = []; signal.signal(signal.SIGINT, lambda *_: n.append(1)); "
        f"{SILENT.replace('time.sleep(20)', 'signal.pause(); time.sleep(0.2); os._exit(len(n))')}"
    )
    with subprocess.Popen(
        command(program, started), start_new_session=True, stderr=subprocess.DEVNULL
    ) as process:
        wait_for(started)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(15) == 1


def test_ctrl_c_in_a_terminal_reaches_the_program_once(tmp_path: Path) -> None:
    started = tmp_path / "started"
    pid, terminal = start_in_terminal(command(PROGRAM, started))
    wait_for(started)
    os.write(terminal, b"\x03")
    time.sleep(0.3)
    os.kill(pid, signal.SIGINT)  # near miss: sent to memdiag alone, in the same terminal
    time.sleep(0.8)
    os.kill(pid, signal.SIGTERM)
    output = read_to_end(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    assert b"SIGINT SIGINT SIGTERM" in output
    assert output.count(b"SIGINT") == 2


def test_a_closed_terminal_ends_the_program(tmp_path: Path) -> None:
    """The kernel sends SIGHUP to the leader of the session alone, which is memdiag here."""
    started = tmp_path / "started"
    pid, terminal = start_in_terminal(command(SILENT, started))
    wait_for(started)
    began = time.monotonic()
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 129
    assert time.monotonic() < began + 15
    assert (tmp_path / "out" / "run.json").exists()


@pytest.mark.parametrize("delay_s", [0.0, 0.1, 0.3])
def test_ctrl_c_after_the_end_loses_nothing(tmp_path: Path, delay_s: float) -> None:
    ended = tmp_path / "ended"
    program = f"import os, sys; {SILENT.partition(';')[2].partition(';')[0]}; os._exit(3)"
    pid, terminal = start_in_terminal(command(program, ended))
    while not ended.exists():
        time.sleep(0.001)
    time.sleep(delay_s)
    os.write(terminal, b"\x03")
    read_to_end(terminal)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (3, 130)  # Ctrl-C may reach the program before its end
    assert (tmp_path / "out" / "run.json").exists()


def test_the_exit_code_is_the_program_s_where_the_summary_cannot_be_printed(
    tmp_path: Path,
) -> None:
    words = ["memdiag", "run", "--no-xray", "--out", str(tmp_path / "out"), "--"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", *words, "sh", "-c", "exit 5"], stderr=full, check=False
        )
    assert done.returncode == 5


WORKER = """
import os, signal, sys, time, onnxruntime
signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
session = onnxruntime.InferenceSession(sys.argv[2], providers=["CPUExecutionProvider"])
open(sys.argv[1], "w").close()
time.sleep(60)
"""

SLOW_XRAYS = """
import sys, time
from memdiag.cli import main
from memdiag.cli.worker import signals_for_main_thread

with signals_for_main_thread():
    from memdiag.detail import Detail
from memdiag.programs.xrays import xray_task

def wait(*_):
    time.sleep(15)
    yield from ()

xray_task.yield_attributions = wait
main()
"""


def test_a_second_ctrl_c_skips_the_xrays(tmp_path: Path, linear_model: Path) -> None:
    started = tmp_path / "started"
    words = ["run", "--out", str(tmp_path / "out"), "--"]
    program = [sys.executable, "-c", WORKER, str(started), str(linear_model)]
    pid, terminal = start_in_terminal([sys.executable, "-c", SLOW_XRAYS, *words, *program])
    wait_for(started)
    began = time.monotonic()
    os.write(terminal, b"\x03")
    time.sleep(1.0)
    os.write(terminal, b"\x03")
    output = read_to_end(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert time.monotonic() < began + 12
    notes = " ".join(load(tmp_path / "out" / "run.json", ProgramRun).notes)
    assert "skipped: Ctrl-C was pressed again" in notes
    assert b"Traceback" not in output
    assert b"Exception" not in output


def test_ctrl_c_before_the_summary_is_printed_keeps_the_exit_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("memdiag.reports.report_of", interrupted)
    run_command._print_summary(ANY, (), detail=Detail.ANSWER)
