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
from tests.waiting import wait_until

NOTING = """
import os, signal, sys, time

NAMES = "HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "TTIN", "TTOU", "WINCH"
received, END_S = [], time.monotonic() + 60

def note(number, frame):
    received.append(signal.Signals(number).name)
    open(f"{sys.argv[1]}.{received[-1]}.{received.count(received[-1])}", "w").close()

for name in NAMES:
    signal.signal(getattr(signal, "SIG" + name), note)
open(sys.argv[1], "w").close()
while "SIGTERM" not in received and time.monotonic() < END_S:
    time.sleep(0.01)
time.sleep(0.2)  # a second delivery
print(*received, flush=True)
os._exit(3)
"""
"""Notes each signal in a file of its own, such as ``started.SIGINT.1``."""

SILENT = "import sys, time; open(sys.argv[1], 'w').close(); time.sleep(20)"
"""A program with the default action of each signal."""

MEMDIAG = """
import sys, time
from memdiag.cli import main
from memdiag.cli.worker import signals_for_main_thread

with signals_for_main_thread():
    from memdiag.cli.output import ReportDestination
from memdiag.programs.xrays import xray_task
"""
WITHOUT_REPORTS = f"""{MEMDIAG}
ReportDestination.write = lambda *arguments, **options: ()  # takes longer than all the rest
main()
"""
SLOW_XRAYS = f"""{MEMDIAG}
def wait(*_):
    time.sleep(15)
    yield from ()

xray_task.yield_attributions = wait
main()
"""


@pytest.fixture
def started(tmp_path: Path) -> Path:
    """The file with which a program says that it has started."""
    return tmp_path / "started"


def command(program: str, started: Path, *, reports: bool = False) -> list[str]:
    memdiag = ["-m", "memdiag"] if reports else ["-c", WITHOUT_REPORTS]
    words = ["run", "--no-xray", "-q", "--out", str(started.parent / "out"), "--"]
    return [sys.executable, *memdiag, *words, sys.executable, "-c", program, str(started)]


def signals_of(pid: int, kind: str) -> int:
    """Return the bits of a set of signals of a process, such as ``SigBlk``."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition(f"{kind}:")[2].split()[0], 16)


def wait_for_both(started: Path, memdiag: int) -> None:
    """Wait until the program has started, and memdiag has blocked the signals that it passes on."""
    wait_until(started.exists)
    wait_until(lambda: signals_of(memdiag, "SigBlk") & 1 << (signal.SIGTERM - 1))


def press_ctrl_c(terminal: int, memdiag: int, received: str) -> None:
    """Press Ctrl-C, and wait until the program has written `received` and memdiag has read it.

    Until then a second signal would be one with the first.
    """
    os.write(terminal, b"\x03")
    wait_until(Path(received).exists)
    wait_until(lambda: not signals_of(memdiag, "ShdPnd") & 1 << (signal.SIGINT - 1))


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


def exit_code_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_signal_that_both_ignore_stays_ignored(started: Path) -> None:
    program = SILENT.replace("sleep(20)", "sleep(1)")
    words = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *command(program, started)]
    with subprocess.Popen(words) as process:
        wait_for_both(started, process.pid)
        process.send_signal(signal.SIGHUP)
    assert process.returncode == 0


def test_signals_to_memdiag_reach_the_program_once(started: Path) -> None:
    with subprocess.Popen(command(NOTING, started), stdout=subprocess.PIPE) as process:
        wait_for_both(started, process.pid)
        names = ["HUP", "INT", "QUIT", "USR1", "USR2", "TTIN", "TTOU", "WINCH", "TERM"]
        numbers = [getattr(signal, f"SIG{name}") for name in names]
        # A shell starts what runs in the background without some, and memdiag leaves it so.
        numbers = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
        for number in numbers:
            process.send_signal(number)
            wait_until(Path(f"{started}.{number.name}.1").exists)
        assert process.stdout is not None
        received = process.stdout.read().decode().split()
    assert received == [number.name for number in numbers]
    assert process.returncode == 3


@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGUSR1, 138)], ids=["INT", "USR1"]
)
def test_a_signal_that_ends_the_program_ends_memdiag(
    started: Path, number: int, exit_code: int
) -> None:
    program = f"import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); {SILENT}"
    words = command(program, started, reports=True)
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as process:
        wait_for_both(started, process.pid)
        process.send_signal(number)
        assert process.wait(60) == exit_code
    assert (started.parent / "out" / "run.json").exists()


def test_a_signal_to_the_group_does_not_disturb_the_end_of_the_program(started: Path) -> None:
    program = (
        "import os, signal, time; n = []; signal.signal(signal.SIGINT, lambda *_: n.append(1)); "
        f"{SILENT.replace('time.sleep(20)', 'signal.pause(); time.sleep(0.2); os._exit(len(n))')}"
    )
    with subprocess.Popen(
        command(program, started), start_new_session=True, stderr=subprocess.DEVNULL
    ) as process:
        wait_for_both(started, process.pid)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 1


def test_ctrl_c_in_a_terminal_reaches_the_program_once(started: Path) -> None:
    pid, terminal = start_in_terminal(command(NOTING, started))
    wait_for_both(started, pid)
    press_ctrl_c(terminal, pid, f"{started}.SIGINT.1")
    os.kill(pid, signal.SIGINT)  # near miss: sent to memdiag alone, in the same terminal
    wait_until(Path(f"{started}.SIGINT.2").exists)
    os.kill(pid, signal.SIGTERM)
    output = read_to_end(terminal)
    assert exit_code_of(pid) == 3
    assert b"SIGINT SIGINT SIGTERM" in output
    assert output.count(b"SIGINT") == 2


def test_a_closed_terminal_ends_the_program(started: Path) -> None:
    """The kernel sends SIGHUP to the leader of the session alone, which is memdiag here."""
    pid, terminal = start_in_terminal(command(SILENT, started, reports=True))
    wait_for_both(started, pid)
    began_s = time.monotonic()
    os.close(terminal)
    assert exit_code_of(pid) == 129
    assert time.monotonic() < began_s + 18  # the program alone would take 20 s
    assert (started.parent / "out" / "run.json").exists()


@pytest.mark.parametrize("delay_s", [0.0, 0.1, 0.3])
def test_ctrl_c_after_the_end_loses_nothing(started: Path, delay_s: float) -> None:
    program = "import os, sys; open(sys.argv[1], 'w').close(); os._exit(3)"
    pid, terminal = start_in_terminal(command(program, started, reports=True))
    wait_until(started.exists)
    time.sleep(delay_s)  # the end, and the reports, are at different places
    os.write(terminal, b"\x03")
    read_to_end(terminal)
    assert exit_code_of(pid) in (3, 130)  # Ctrl-C may reach the program before its end
    assert (started.parent / "out" / "run.json").exists()


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
signal.signal(signal.SIGINT, lambda *_: (open(sys.argv[1] + ".end", "w").close(), sys.exit(0)))
session = onnxruntime.InferenceSession(sys.argv[2], providers=["CPUExecutionProvider"])
open(sys.argv[1], "w").close()
time.sleep(60)
"""


def test_a_second_ctrl_c_skips_the_xrays(started: Path, linear_model: Path) -> None:
    words = ["run", "--out", str(started.parent / "out"), "--"]
    program = [sys.executable, "-c", WORKER, str(started), str(linear_model)]
    pid, terminal = start_in_terminal([sys.executable, "-c", SLOW_XRAYS, *words, *program])
    wait_for_both(started, pid)
    began_s = time.monotonic()
    press_ctrl_c(terminal, pid, f"{started}.end")
    os.write(terminal, b"\x03")
    output = read_to_end(terminal)
    assert exit_code_of(pid) == 0
    assert time.monotonic() < began_s + 14  # the X-ray alone would take 15 s
    notes = " ".join(load(started.parent / "out" / "run.json", ProgramRun).notes)
    assert "skipped: Ctrl-C was pressed again" in notes
    assert b"Traceback" not in output
    assert b"Exception" not in output


def test_ctrl_c_before_the_summary_is_printed_keeps_the_exit_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("memdiag.cli.output.report_of", interrupted)
    run_command._print_summary(ANY, (), Detail.ANSWER)
