"""Exceptions of a recorded program have the tracebacks that they have without memdiag."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import logging, sys, threading, traceback
import numpy as np
import onnxruntime

logging.basicConfig(format="%(message)s", stream=sys.stdout)
threading.excepthook = lambda given: traceback.print_exception(given.exc_value, file=sys.stdout)
path = sys.argv[1]
session = onnxruntime.InferenceSession(path)
good, bad = ({"x": np.ones(shape, np.float32)} for shape in ((1, 512), (1, 3)))


class Own(onnxruntime.InferenceSession):
    def run(self, *arguments):
        return super().run(*arguments)


def bound():
    binding = session.io_binding()
    binding.bind_cpu_input("x", bad["x"])
    binding.bind_output("y")
    session.run_with_iobinding(binding)


def chained():
    try:
        session.run(None, bad)
    except Exception as error:
        raise RuntimeError("of the program") from error


def in_context():
    try:
        1 / 0
    except ZeroDivisionError:
        session.run(None, bad)


def in_thread():
    thread = threading.Thread(target=session.run, args=(None, bad))
    thread.start()
    thread.join()


for call in (
    lambda: session.run(None, bad),  # the first run
    lambda: session.run(None, good) and session.run(None, bad),
    lambda: session.run(None, bad, onnxruntime.RunOptions()),
    lambda: session.run(None, None),
    lambda: session.run(None, [1]),
    lambda: session.run(),
    lambda: session.run(None, good, unknown=1),
    lambda: session.run_with_ort_values(None, {"x": 5}),
    lambda: session.run_async(None, good, None, None),
    bound,
    lambda: Own(path).run(None, bad),
    lambda: onnxruntime.InferenceSession("missing.onnx"),
    lambda: onnxruntime.InferenceSession(b"no model"),
    lambda: onnxruntime.InferenceSession(5),
    lambda: onnxruntime.InferenceSession(path, providers=[("CPUExecutionProvider", 7)]),
    lambda: onnxruntime.InferenceSession(),
    lambda: onnxruntime.SessionOptions().add_session_config_entry("x" * 5000, "1"),
    lambda: onnxruntime.set_default_logger_severity("loud"),
    lambda: session.end_profiling(1),
    chained,
    in_context,
    in_thread,
):
    try:
        call()
    except Exception:
        logging.exception("caught")
session.run(None, bad)
"""


def printed(*words: str | Path) -> tuple[str, str]:
    """Return the standard output of a program, and its standard error from a traceback on."""
    done = subprocess.run([*words], capture_output=True, text=True)
    assert "programs/hook" not in done.stdout + done.stderr
    return done.stdout, done.stderr[done.stderr.find("Traceback") :]


@pytest.mark.parametrize("command", ["run", "leak"])
def test_tracebacks_are_those_without_memdiag(
    command: str, linear_model: Path, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    alone = printed(sys.executable, program, linear_model)
    memdiag = ("-m", "memdiag", command, "-q", "--out", tmp_path / "out", "--")
    recorded = printed(sys.executable, *memdiag, sys.executable, program, linear_model)
    assert alone[0].count("Traceback") > 20
    assert recorded[0] == alone[0]
    assert recorded[1].startswith(alone[1])


def test_an_import_that_fails_has_no_frame_of_memdiag(tmp_path: Path) -> None:
    (tmp_path / "onnxruntime").mkdir()
    (tmp_path / "onnxruntime" / "__init__.py").write_text("import a_missing_library\n")
    program = tmp_path / "program.py"
    program.write_text("import onnxruntime\n")
    alone = printed(sys.executable, program)
    memdiag = ("-m", "memdiag", "run", "-q", "--out", tmp_path / "out", "--")
    recorded = printed(sys.executable, *memdiag, sys.executable, program)
    assert recorded[1].startswith(alone[1])
    assert "a_missing_library" in alone[1]
