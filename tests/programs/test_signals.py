"""Signals that are sent to ``memdiag run`` alone, and those of a terminal."""

import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sender is known on Linux")

PROGRAM = """
import os, signal, sys, time

NAMES = "HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "TTIN", "TTOU", "WINCH"
received, END_S = [], time.monotonic() + 20
for name in NAMES:
    signal.signal(getattr(signal, "SIG" + name), lambda number, frame: received.append(number))
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


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.2)  # memdiag waits for signals


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
        for name in names:
            process.send_signal(getattr(signal, f"SIG{name}"))
            time.sleep(0.65 if name in ("INT", "QUIT") else 0.1)
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
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, command(PROGRAM, started))
    wait_for(started)
    os.write(terminal, b"\x03")
    time.sleep(0.3)
    os.kill(pid, signal.SIGINT)  # near miss: sent to memdiag alone, in the same terminal
    time.sleep(0.8)
    os.kill(pid, signal.SIGTERM)
    output = b""
    with suppress(OSError):  # the terminal has no process left
        while data := os.read(terminal, 1 << 16):
            output += data
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    assert b"SIGINT SIGINT SIGTERM" in output
    assert output.count(b"SIGINT") == 2
