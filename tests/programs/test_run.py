"""Programs under ``memdiag run``: one recording of many sessions, and programs that misbehave."""

import re
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from memdiag.api.run import run
from memdiag.errors import UsageError
from memdiag.programs import hook
from memdiag.programs.xrays.xray_requests import request_xray
from memdiag.records.codec import load
from memdiag.records.run import ProgramRun, ProgramSession

WEIGHT_BYTES = 4 * 512 * 512

PROGRAM = """
import multiprocessing, os, sys
import numpy as np
import onnxruntime


def session(source, config=None, **options):
    settings = onnxruntime.SessionOptions()
    if config is not None:
        settings.add_session_config_entry(config, "1")
    for name, value in options.items():
        setattr(settings, name, value)
    return onnxruntime.InferenceSession(source, settings, providers=["CPUExecutionProvider"])


def in_child(path):
    child = session(path)
    child.run(None, {"x": np.ones((3, 512), np.float32)})


if __name__ == "__main__":
    path = sys.argv[1]
    print("to standard output", flush=True)
    print("to standard error", file=sys.stderr, flush=True)
    first = session(path, intra_op_num_threads=1)  # FIRST
    for rows in (1, 1, 4):  # runs of other shapes log more
        first.run(None, {"x": np.ones((rows, 512), np.float32)})
    first.run_with_ort_values(
        None, {"x": onnxruntime.OrtValue.ortvalue_from_numpy(np.ones((2, 512), np.float32))}
    )
    with open(path, "rb") as file:
        second = session(file.read(), enable_cpu_mem_arena=False, logid="mine")  # SECOND
    second.run(["y"], input_feed={"x": np.ones((1, 512), np.float32)})
    sys.path.append(os.path.join(os.path.dirname(sys.argv[2]), "site-packages"))
    import ocr

    unused = ocr.load(path)  # LIBRARY
    released = session(path, config="session.disable_prepacking")
    released.run(None, {"x": np.ones((1, 512), np.float32)})
    del released
    try:
        session(__file__)
    except Exception as error:
        print(type(error).__name__)
    print(second.get_session_options().log_severity_level, second.get_session_options().logid)
    child = multiprocessing.get_context("spawn").Process(target=in_child, args=(path,))
    child.start()
    child.join()
    onnxruntime.set_default_logger_severity(3)  # no warning of what follows
    profiled = session(path, enable_profiling=True, profile_file_prefix=sys.argv[2])
    profiled.end_profiling()
    os.write(2, b"\\xff\\x00 the end")
    sys.exit(7)
"""


LIBRARY = """
import onnxruntime


def load(path):
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
"""


class Recorded:
    """A program, its recording, and what it wrote with and without memdiag."""

    def __init__(self, folder: Path, program: str, arguments: Sequence[str]) -> None:
        self.path = folder / "program.py"
        self.path.write_text(program)
        (folder / "site-packages").mkdir()
        (folder / "site-packages" / "ocr.py").write_text(LIBRARY)
        command = [sys.executable, str(self.path), *arguments]
        self.plain = subprocess.run(command, capture_output=True, check=False)
        script = "import sys; from memdiag.api.run import run; from memdiag.records.codec import *;"
        script += "open(sys.argv[1], 'wb').write(encode(run(sys.argv[2:])))"
        saved = folder / "run.json"
        self.output = subprocess.run(
            [sys.executable, "-c", script, str(saved), *command], capture_output=True, check=False
        )
        self.run = load(saved, ProgramRun)

    def line_of(self, text: str) -> int:
        lines = self.path.read_text().splitlines()
        return next(number for number, line in enumerate(lines, 1) if text in line)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, linear_model: Path) -> Recorded:
    folder = tmp_path_factory.mktemp("program")
    return Recorded(folder, PROGRAM, [str(linear_model), str(folder / "p")])


@pytest.fixture(scope="module")
def sessions(recorded: Recorded) -> tuple[ProgramSession, ...]:
    return recorded.run.sessions


def without_times(output: bytes) -> bytes:
    return re.sub(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+|\d+(?=-memdiag)", b"T", output)


def test_the_program_s_output_and_exit_code_are_unchanged(recorded: Recorded) -> None:
    assert recorded.output.stdout == recorded.plain.stdout
    assert without_times(recorded.output.stderr) == without_times(recorded.plain.stderr)
    assert b"Removing initializer 'unused'" in recorded.output.stderr
    assert recorded.run.exit_code == recorded.plain.returncode == 7


def test_each_session_is_recorded_with_its_model(
    sessions: tuple[ProgramSession, ...], linear_model: Path
) -> None:
    assert [session.number for session in sessions] == [1, 2, 3, 4, 5, 6, 7]
    assert [session.run_count for session in sessions] == [4, 1, 0, 1, 0, 1, 0]
    by_path, from_bytes = sessions[0].model, sessions[1].model
    assert by_path.path == str(linear_model)
    assert by_path.weight_bytes == WEIGHT_BYTES + 16
    assert from_bytes.path is None
    assert from_bytes.digest
    assert by_path.bytes == from_bytes.bytes == linear_model.stat().st_size
    failed = sessions[4]
    assert failed.error
    assert failed.providers == ()


def test_the_place_of_the_creation_is_outside_onnxruntime(
    sessions: tuple[ProgramSession, ...], recorded: Recorded
) -> None:
    first, second, of_library = sessions[:3]
    place = f"{recorded.path}:{recorded.line_of('return onnxruntime.InferenceSession')}"
    assert (first.created_at, first.library, first.called_from) == (place, None, None)
    assert first.callers[1].line == recorded.line_of("# FIRST")
    assert second.callers[1].line == recorded.line_of("# SECOND")
    assert (of_library.created_at, of_library.library) == ("ocr.py:6", "ocr")
    assert of_library.called_from == f"{recorded.path}:{recorded.line_of('# LIBRARY')}"


def test_options_are_those_that_the_program_set(sessions: tuple[ProgramSession, ...]) -> None:
    assert sessions[0].options == {"intra_op_num_threads": "1"}
    assert sessions[0].intra_op_threads == 1
    assert sessions[1].options == {"enable_cpu_mem_arena": "False"}
    assert sessions[3].options == {"session.disable_prepacking": "1"}


def test_phases_and_runs_are_measured(sessions: tuple[ProgramSession, ...]) -> None:
    first, _, unused, released, *_ = sessions
    names = [phase.name for phase in first.phases]
    assert names == ["parse", "optimize", "constant_fold", "initialize", "prepack", "first_run"]
    assert all(phase.peak_rss_bytes > 0 for phase in first.phases)
    assert first.peak_phase in names
    counts = {tuple(shape.shapes["x"]): shape.runs for shape in first.shapes if shape.shapes}
    assert counts == {(1, 512): 2, (4, 512): 1, (2, 512): 1}
    assert all(0 < shape.min_s <= shape.max_s <= shape.total_s for shape in first.shapes)
    assert first.last_run_s is not None
    assert first.released_s is None
    assert unused.last_run_s is None
    assert released.released_s is not None
    assert released.released_s >= released.created_s


def test_processes_are_recorded(recorded: Recorded) -> None:
    program = recorded.run
    first, *others = program.processes
    (child,) = (each for each in others if each.pid == program.sessions[5].pid)
    assert child.pid != program.sessions[0].pid
    assert child.onnxruntime == first.onnxruntime
    assert program.peak_rss_bytes >= max(program.samples.rss_bytes)
    assert program.peak_rss_bytes >= max(process.peak_rss_bytes for process in program.processes)
    assert first.peak_rss_bytes >= max(first.samples.rss_bytes)


def test_weights_and_arenas_are_found_at_the_end(sessions: tuple[ProgramSession, ...]) -> None:
    first, second, unused, released, failed, *_ = (session.memory for session in sessions)
    assert released is None
    assert failed is None
    for memory in (first, second, unused):
        assert memory is not None
        assert memory.weight_bytes is not None
        assert memory.weight_bytes >= WEIGHT_BYTES
    assert first is not None
    assert first.sharing == 4
    assert first.arena_slack_bytes
    assert first.resident_slack_bytes is not None
    assert 0 < first.resident_slack_bytes <= first.arena_slack_bytes
    assert second is not None
    assert second.arena_slack_bytes is None  # it has no arena


CREATE = "onnxruntime.InferenceSession({!r}, providers=['CPUExecutionProvider'])"


def record(folder: Path, program: str, *words: str) -> ProgramRun:
    path = folder / "program.py"
    path.write_text(textwrap.dedent(program))
    return run([sys.executable, *words, str(path)])


def test_a_session_of_a_calibrator_is_told_as_of_a_library(
    tmp_path: Path, linear_model: Path
) -> None:
    program = f"""
        from onnxruntime.quantization.calibrate import create_calibrator
        create_calibrator({str(linear_model)!r}, augmented_model_path={str(tmp_path / "a.onnx")!r})
        """
    (session,) = record(tmp_path, program).sessions
    assert session.library == "onnxruntime"
    assert session.created_at.startswith("onnxruntime/quantization/calibrate.py:")
    assert session.called_from == f"{tmp_path / 'program.py'}:3"


def test_a_path_that_no_file_can_have_loses_nothing(tmp_path: Path, linear_model: Path) -> None:
    program = f"""
        import onnxruntime
        path = {str(linear_model)!r}
        for path in ("a\\0b.onnx", None, path, open(path, "rb").read()):
            try:
                onnxruntime.InferenceSession(path)
            except Exception as error:
                print(type(error).__name__)
        """
    recording = record(tmp_path, program)
    assert [session.error is None for session in recording.sessions] == [False, True, True]
    assert recording.notes[:1] != ()  # they were released before the end
    assert not any("sessions may be missing" in note for note in recording.notes)


@pytest.mark.parametrize("option", ["-S", "-s"])
def test_modules_of_the_program_are_not_hidden(
    tmp_path: Path, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the module site the folder with sitecustomize stays on the path."""
    names = [path.stem for path in Path(hook.__file__).parent.glob("*.py") if path.stem[0] != "_"]
    assert "sessions" in names
    for name in names:
        (tmp_path / f"{name}.py").write_text("MINE = True\n")
    program = ";".join(f"import {name}; assert {name}.MINE" for name in names)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert run([sys.executable, option, "-c", program]).exit_code == 0


def test_a_program_without_onnxruntime_has_no_sessions(tmp_path: Path) -> None:
    program = "import sys, time; x = b'x' * (200 << 20); time.sleep(0.3); sys.exit(3)"
    recording = record(tmp_path, program)
    assert recording.sessions == ()
    assert recording.exit_code == 3
    assert recording.notes == ()
    # The proportional set of a short program is read while it grows.
    (process,) = recording.processes
    assert process.peak_pss_bytes is not None
    assert process.peak_pss_bytes > 150 << 20
    assert process.peak_pss_s in recording.samples.proportional_t_s


CLOSED = "try: os.fstat(2)\nexcept OSError: os._exit(5)"


@pytest.mark.parametrize(
    ("before", "after", "exit_code", "last_phase"),
    [
        pytest.param("", "os.kill(os.getpid(), signal.SIGKILL)", -9, "prepack", id="killed"),
        pytest.param(
            "onnxruntime.InferenceSession._create_inference_session = lambda *_: os.abort()",
            "",
            -6,
            None,
            id="killed by the creation",
        ),
        pytest.param("os.close(2)", CLOSED, 5, "prepack", id="closes standard error"),
    ],
)
def test_a_session_is_recorded_until_the_end(
    tmp_path: Path,
    linear_model: Path,
    before: str,
    after: str,
    exit_code: int,
    last_phase: str | None,
) -> None:
    create = CREATE.format(str(linear_model))
    program = f"import os, signal, onnxruntime\n{before}\nsession = {create}\n{after}"
    recording = record(tmp_path, program)
    assert recording.exit_code == exit_code
    (session,) = recording.sessions
    assert (session.creation_s is None) == (last_phase is None)
    if last_phase is not None:
        assert session.phases[-1].name == last_phase


def test_an_xray_is_taken_on_request(tmp_path: Path, linear_model: Path) -> None:
    program = f"""
        import sys, onnxruntime
        sys.path.append({str(Path(__file__).parents[2])!r})
        session = {CREATE.format(str(linear_model))}
        from pathlib import Path
        from memdiag.programs.xrays.xray_requests import request_xray
        answer = request_xray(Path({str(tmp_path)!r}))
        (process,) = answer.processes
        assert answer.asked == 1
        assert sum(owner.bytes for owner in process.owners) > {WEIGHT_BYTES}
        assert [session.model for session in process.sessions] == ["linear.onnx"]
        """
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(program))
    recording = run([sys.executable, str(path)], request_folder=tmp_path)
    assert recording.exit_code == 0
    assert [xray.reason for xray in recording.xrays] == ["request", "end"]
    with pytest.raises(UsageError, match="no recording is under way"):
        request_xray(tmp_path)


def test_a_command_that_does_not_exist_is_one_sentence() -> None:
    with pytest.raises(UsageError, match=r"no-such-program: cannot be started \(No such file"):
        run(["no-such-program"])
    with pytest.raises(UsageError, match=r"Start it with Python: python app\.py"):
        run(["app.py"])
    with pytest.raises(UsageError, match="no command was given"):
        run([])


@pytest.mark.parametrize(("option", "sleep_s"), [("-I", 0.3), ("-S", 1.5)])
def test_python_without_the_hook_is_noted(
    tmp_path: Path, linear_model: Path, option: str, sleep_s: float
) -> None:
    """It may end before the second regular search for onnxruntime."""
    site = Path(np.__file__).parents[1]
    recording = record(
        tmp_path,
        f"""
        import sys; sys.path.append({str(site)!r})
        import time, onnxruntime
        session = {CREATE.format(str(linear_model))}
        time.sleep({sleep_s})
        """,
        option,
    )
    assert recording.sessions == ()
    (note,) = recording.notes
    assert "its sessions are not recorded" in note


def test_the_user_s_sitecustomize_runs_as_ever(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = "import os; os.environ['MINE'] = 'yes'; raise RuntimeError('broken')"
    (tmp_path / "sitecustomize.py").write_text(mine)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    program = "import os, sys; print(os.environ['MINE'], sys.path[1:])"
    subprocess.run([sys.executable, "-c", program], check=False)
    plain = capfd.readouterr()
    run([sys.executable, "-c", program])
    assert capfd.readouterr() == plain
    assert "RuntimeError: broken" in plain.err


def test_a_stop_of_memdiag_does_not_stop_the_program(tmp_path: Path, linear_model: Path) -> None:
    program = f"""if True:
        import os, signal, onnxruntime
        os.kill(os.getppid(), signal.SIGKILL)
        {CREATE.format(str(linear_model))}
        open({str(tmp_path / "done")!r}, "w").close()
        """
    script = "import sys; from memdiag.api.run import run; run(sys.argv[1:])"
    # Its standard error ends when the program ends.
    command = [sys.executable, "-c", script, sys.executable, "-c", program]
    subprocess.run(command, check=False, stderr=subprocess.PIPE)
    assert (tmp_path / "done").exists()


def test_the_mark_of_a_program_is_not_that_of_who_started_it(
    tmp_path: Path, linear_model: Path
) -> None:
    ballast = b"x" * (200 << 20)  # ru_maxrss of the program starts at the size of this process
    recording = record(
        tmp_path,
        f"""
        import numpy as np, onnxruntime
        session = {CREATE.format(str(linear_model))}
        for rows in (1, 20_000):
            session.run(None, {{"x": np.ones((rows, 512), np.float32)}})
        """,
    )
    del ballast
    (peak,) = recording.peaks
    assert peak.shapes is not None
    assert tuple(peak.shapes["x"]) == (20_000, 512)
