"""The end of a program that memdiag has started, on programs without onnxruntime."""

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from memdiag.api.run import run_program
from memdiag.programs import interrupt
from tests.waiting import wait_until

PROGRAM = """
import signal, subprocess, sys, time
folder = sys.argv[1]
if "ignore" in sys.argv:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
if "child" in sys.argv:
    script = (
        'trap "touch {0}/{1}; exit" INT; touch {0}/ready_{1};'
        " for i in $(seq 600); do [ -e {0}/checked ] && exit; sleep 0.05; done"
    )
    for name, alone in (("in_group", False), ("alone", True)):
        command = ["sh", "-c", script.format(folder, name)]
        subprocess.Popen(command, start_new_session=alone)
open(folder + "/ready", "w").close()
try:
    time.sleep(60)
except KeyboardInterrupt:
    open(folder + "/interrupted", "w").close()
    raise SystemExit(5)
"""


def run_until_ready(
    folder: Path, *words: str, on_wait: Callable[[str], None] = lambda text: None
) -> int:
    """Return the exit code of the program, ended once it is ready and `words` took effect."""
    ready = [folder / "ready"]
    if "child" in words:
        ready += [folder / "ready_in_group", folder / "ready_alone"]
    recorded = run_program(
        [sys.executable, "-S", "-c", PROGRAM, str(folder), *words],
        takes_xray=False,
        is_complete=lambda recorder: all(path.exists() for path in ready),
        on_wait=on_wait,
    )
    assert recorded.exit_code is not None
    return recorded.exit_code


def test_a_program_that_is_complete_ends_as_by_ctrl_c(tmp_path: Path) -> None:
    texts: list[str] = []
    assert run_until_ready(tmp_path, "child", on_wait=texts.append) == 5
    assert texts == []
    assert (tmp_path / "interrupted").exists()
    wait_until((tmp_path / "in_group").exists)  # a shell waits for the end of its command
    # Ctrl-C does not reach another session.
    assert not (tmp_path / "alone").exists()
    (tmp_path / "checked").touch()


def test_a_program_that_ignores_it_is_terminated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupt, "GRACE_S", 0.4)
    monkeypatch.setattr(interrupt, "NOTICE_S", 0.01)
    texts: list[str] = []
    assert run_until_ready(tmp_path, "ignore", on_wait=texts.append) == -signal.SIGTERM
    assert not (tmp_path / "interrupted").exists()
    assert texts[0] == "the program goes on after SIGINT; SIGTERM follows in 0 s."
