"""The live view of a recording: its chart, its keys, and the terminal after it."""

import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from memdiag.cli.live import MAX_CHART_COLUMNS, LiveView, MemoryHistory, require_terminal
from memdiag.errors import UsageError
from memdiag.programs.recorder import Recorder
from memdiag.records.codec import load
from memdiag.records.run import ProgramRun
from memdiag.runner.observer import MemoryReading
from tests.api.small_models import save_model

ENTERED, LEFT = b"\x1b[?1049h", b"\x1b[?1049l"
SHOW_CURSOR = b"\x1b[?25h"
TIMEOUT_S = 60

# Prints to both streams, has two sessions of the model named, and runs one of them.
PROGRAM = """
import subprocess, sys, time, numpy, onnxruntime
print("to standard output", flush=True)
print("to standard error", file=sys.stderr, flush=True)
print("read", repr(sys.stdin.read()), flush=True)
providers = ["CPUExecutionProvider"]
used, unused = (onnxruntime.InferenceSession(sys.argv[1], providers=providers) for _ in range(2))
while True:
    used.run(None, {"x": numpy.ones((1, 512), numpy.float32)})
    time.sleep(0.05)
"""


class Terminal:
    """A pseudo-terminal with a command in it."""

    def __init__(self, *command: str) -> None:
        self._main, self._other = os.openpty()
        fcntl.ioctl(self._other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.settings = termios.tcgetattr(self._other)
        # As a shell would: the terminal sends signals to the command.
        control = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
        control += "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
        self.process = subprocess.Popen(
            [sys.executable, "-c", control, *command],
            stdin=self._other,
            stdout=self._other,
            stderr=self._other,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color"},
        )
        self.output = b""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            try:
                self.output += os.read(self._main, 1 << 16)
            except OSError:
                return

    def wait_for(self, pattern: str, after: int = 0) -> int:
        """Wait until the output contains `pattern`, and return the length of the output."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            if re.search(pattern.encode(), self.output[after:], re.DOTALL):
                return len(self.output)
            time.sleep(0.02)
        raise AssertionError(f"{pattern!r} is not in {self.output[after:][-3000:]!r}")

    def press(self, keys: bytes) -> int:
        """Press keys, and return the length of the output before."""
        before = len(self.output)
        os.write(self._main, keys)
        return before

    def end(self) -> int:
        """Wait for the end of the command, and return its exit code."""
        code = self.process.wait(TIMEOUT_S)
        time.sleep(0.2)
        return code

    @property
    def is_restored(self) -> bool:
        """Whether the terminal is as it was before."""
        return (
            termios.tcgetattr(self._other) == self.settings
            and self.output.count(ENTERED) == self.output.count(LEFT) == 1
            and self.output.rfind(SHOW_CURSOR) > self.output.find(ENTERED)
        )

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._other)
        os.close(self._main)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


@pytest.fixture
def sleeping() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process.pid
    process.kill()
    process.wait()


@pytest.fixture
def watching(terminals: list[Terminal], sleeping: int, tmp_path: Path) -> Terminal:
    """`memdiag watch --live` with its first picture."""
    words = ["-m", "memdiag", "watch", str(sleeping), "--live", "--out", str(tmp_path)]
    terminals.append(Terminal(*words))
    terminals[0].wait_for(rf"{sleeping}.*q quit")
    return terminals[0]


def test_keys_change_the_view_or_do_nothing_and_q_ends_the_recording(
    watching: Terminal, tmp_path: Path
) -> None:
    assert watching.output.startswith(ENTERED)
    assert "█".encode() in watching.output
    assert_other_keys_do_nothing(watching)
    watching.wait_for("sort: memory", watching.press(b"s"))
    watching.wait_for("no process uses onnxruntime", watching.press(b"x"))
    paused = watching.wait_for("display paused.*p go on", watching.press(b"p"))
    time.sleep(1.2)
    assert watching.output[paused:] == b""
    watching.wait_for("p pause", watching.press(b"p"))
    watching.press(b"q")
    watching.end()
    assert watching.is_restored
    assert b"1 process in" in watching.output[watching.output.find(LEFT) :]
    assert load(tmp_path / "run.json", ProgramRun).samples.rss_bytes


def assert_other_keys_do_nothing(watching: Terminal) -> None:
    for keys in (b"\x1bOq", b"z\x1a\x1c"):
        before = watching.press(keys)
        watching.wait_for("q quit.*q quit", before)
        assert watching.process.poll() is None
        assert LEFT not in watching.output


@pytest.mark.parametrize(
    "ending", [b"\x03", signal.SIGHUP, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_ctrl_c_and_signals_end_the_view_and_the_recording(
    watching: Terminal, tmp_path: Path, ending: bytes | int
) -> None:
    if isinstance(ending, bytes):
        watching.press(ending)
    else:
        watching.process.send_signal(ending)
    watching.end()
    assert watching.is_restored
    assert load(tmp_path / "run.json", ProgramRun).samples.rss_bytes


FAILING = """
import sys
from memdiag.api.watch import watch
from memdiag.cli.live import LiveView
drawn = []
def fail(self, recorder, console):
    drawn.append(self)
    raise {}
LiveView.render = fail
with LiveView("a program", lambda view: None) as view:
    recording = watch(int(sys.argv[1]), duration_s=1.0, on_progress=view.update)
print(len(drawn), "picture,", recording.duration_s >= 1.0)
"""


@pytest.mark.parametrize(
    ("error", "message"),
    [("ValueError('wrong')", b"ended: ValueError('wrong')"), ("OSError(5, 'gone')", b"")],
)
def test_an_error_of_the_view_does_not_end_the_recording(
    terminals: list[Terminal], sleeping: int, error: str, message: bytes
) -> None:
    terminals.append(Terminal("-c", FAILING.format(error), str(sleeping)))
    assert terminals[0].end() == 0
    assert terminals[0].is_restored
    assert b"1 picture, True" in terminals[0].output
    assert message in terminals[0].output
    assert bool(message) == (b"the live view ended" in terminals[0].output)


def test_an_exception_outside_of_the_view_restores_the_terminal(terminals: list[Terminal]) -> None:
    script = "from memdiag.cli.live import LiveView\nwith LiveView('', print): raise SystemExit(4)"
    terminals.append(Terminal("-c", script))
    assert terminals[0].end() == 4
    assert terminals[0].is_restored


@pytest.fixture
def recorded(terminals: list[Terminal], tmp_path: Path) -> Terminal:
    """`memdiag run --live` of a program, with both of its sessions shown."""
    text = "linear (float[n, 512] x) => (float[n, 512] y) { y = MatMul(x, w) }"
    weight = np.random.default_rng(0).standard_normal((512, 512), np.float32)
    model = save_model(tmp_path / "linear.onnx", text, w=weight)
    words = ["-m", "memdiag", "run", "--live", "--out", str(tmp_path / "out"), "--"]
    terminals.append(Terminal(*words, sys.executable, "-c", PROGRAM, str(model)))
    terminals[0].wait_for("2 sessions.*#1 linear.onnx · [0-9]+ runs, the last.*#2 .*never ran")
    return terminals[0]


def test_sessions_and_xrays_are_shown_and_the_program_writes_to_files(
    recorded: Terminal, tmp_path: Path
) -> None:
    recorded.wait_for("never ran · weights.*X-ray at.*X-rays: 1 process", recorded.press(b"x"))
    recorded.press(b"\x03")
    recorded.end()
    assert recorded.is_restored
    assert b"to standard output" not in recorded.output
    stdout = (tmp_path / "out" / "stdout.txt").read_text()
    assert stdout == "to standard output\nread ''\n"
    stderr = (tmp_path / "out" / "stderr.txt").read_text()
    assert stderr.startswith("to standard error\n")
    assert "KeyboardInterrupt" in stderr
    recording = load(tmp_path / "out" / "run.json", ProgramRun)
    assert "request" in {xray.reason for xray in recording.xrays}
    assert recording.exit_code == -signal.SIGINT


def test_q_closes_the_view_and_the_program_goes_on(recorded: Terminal, tmp_path: Path) -> None:
    recorded.wait_for("the program goes on", recorded.press(b"q"))
    assert recorded.is_restored
    assert recorded.process.poll() is None
    recorded.process.send_signal(signal.SIGTERM)
    recorded.end()
    assert load(tmp_path / "out" / "run.json", ProgramRun).exit_code == -signal.SIGTERM


@pytest.mark.parametrize(("is_terminal", "name"), [(False, "xterm"), (True, "dumb")])
def test_the_view_is_refused_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, name: str
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.setenv("TERM", name)
    with pytest.raises(UsageError, match="--live needs a terminal"):
        require_terminal()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    require_terminal()


@pytest.mark.parametrize(
    ("rss", "watches", "line"),
    [
        (400, False, "400 MiB RSS (0 B) · 300 MiB PSS · peak 400 MiB · 0 processes · 0 sessions"),
        (398, True, "398 MiB RSS (0 B) · 300 MiB PSS · peak 400 MiB · 0 processes"),
        (200, True, "200 MiB RSS (0 B) · peak 400 MiB · 0 processes"),
    ],
)
def test_the_proportional_set_is_of_the_same_moment(rss: int, watches: bool, line: str) -> None:
    with closing(Recorder()) as recorder:
        recorder.peak_rss_bytes = 400 << 20
        recorder.total_rss.add(0.1, MemoryReading(rss << 20, None, None))
        recorder.proportional.append((0.0, 300 << 20, 0))
        recorder.proportional_rss_bytes = 400 << 20
        recorder.is_watched_only = watches
        head = [str(each) for each in LiveView("", print)._head_lines(recorder, 80, 0)]
    assert head[1] == line
    assert head[-1].endswith("process" if watches else "process, sessions")


def test_the_chart_rises_with_the_memory() -> None:
    history = MemoryHistory()
    assert history.chart(8, 1) == [""]
    for second in range(4):
        history.add(second / 10 + 0.05, (second + 1) * 100)
    assert history.chart(4, 2) == ["  ▄█", "▄███"]
    assert history.chart(8, 1) == ["▂▂▄▄▆▆██"]


def test_a_long_recording_keeps_its_peak_in_the_chart() -> None:
    history = MemoryHistory()
    for second in range(20 * MAX_CHART_COLUMNS):
        history.add(second, 900 if second == 7 * MAX_CHART_COLUMNS else 100)
    assert len(history.columns) <= MAX_CHART_COLUMNS
    (line,) = history.chart(80, 1)
    assert line.count("█") == 1
    assert len(line) == 80
