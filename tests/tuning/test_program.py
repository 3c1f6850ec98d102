"""The program that a tuning prints runs as it stands, and takes what the tuning says."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper, parser

from memdiag.ort.releases import TELEMETRY_SINCE
from memdiag.ort.runtime import Runtime
from memdiag.records.tuning import Point
from memdiag.runner.job import Job, SessionConfig
from memdiag.tuning.options import TuningOption, tuning_options
from memdiag.tuning.program import session_program
from memdiag.units import MIB

SampleModel = Callable[..., Path]
BY_NAME = {one.name: one for one in tuning_options()}
_MEASURED = """
import json
import numpy as np
session = sessions[0] if "sessions" in globals() else session
for one in sessions if "sessions" in globals() else [session]:
    x = {each.name: np.ones([1, each.shape[-1]], np.float32) for each in one.get_inputs()}
    one.run(None, x)
fields = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({name: int(fields[name].split()[0]) * 1024 for name in ("VmHWM", "RssAnon")}))
"""

DATA = ("plain_mlp.onnx.data",)
"""The file of the weights of the sample with external data."""

_LIBC = "import ctypes\nlibc = ctypes.CDLL(None)\n"
_MAPPED_BLOCKS = """
class Info(ctypes.Structure):
    _fields_ = [(f"field{index}", ctypes.c_size_t) for index in range(10)]

libc.mallinfo2.restype = Info
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
libc.free(libc.malloc(1 << 20))
before = libc.mallinfo2().field3
block = libc.malloc(200 << 10)
print(libc.mallinfo2().field3 - before)
"""


def point(*chosen: TuningOption, load_from: str = "path") -> Point:
    job = Job(
        model=Path("m.onnx"),
        session=SessionConfig(load_from="bytes" if load_from == "bytes" else "path"),
    )
    for one in chosen:
        job = one.added_to(job)
    return Point(
        options=tuple(one.name for one in chosen),
        session_options=dict(job.session.options),
        environment=dict(job.session.environment),
        run_options=dict(job.session.run_options),
        disabled_optimizers=tuple(job.session.disabled_optimizers),
        shared_arena=job.session.shared_arena,
        saved_options={name: text for one in chosen for name, text in one.save_options.items()},
        load_from=job.session.load_from,
        shares_weights=any(one.shares_weights for one in chosen),
        figures=None,
        ratio=None,
        low=None,
        high=None,
        on_front=False,
        fits=True,
        problem="",
    )


def run(program: str, folder: Path) -> dict[str, int]:
    """Run `program` in a process of its own and return the memory that it took, in bytes."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program + _MEASURED],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    taken: dict[str, int] = json.loads(done.stdout)
    return taken


def run_at_prompt(program: str, folder: Path) -> None:
    """Run `program` as if it were pasted at Python's prompt, where errors do not end it."""
    done = subprocess.run(
        [sys.executable, "-i", "-q", "-W", "error"],
        input=program + "\nprint('at the end', session if 'session' in vars() else sessions)\n",
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder,
    )
    assert "Error" not in done.stderr, done.stderr
    assert "at the end" in done.stdout


@pytest.fixture
def model(sample_model: SampleModel, tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    path.write_bytes(sample_model("plain_mlp", 1).read_bytes())
    return path


@pytest.mark.parametrize(
    "option",
    [option for option in tuning_options() if option.environment],
    ids=lambda option: option.name,
)
def test_a_program_with_variables_runs_as_it_stands(option: TuningOption, model: Path) -> None:
    if not option.is_available(Runtime.installed()):
        pytest.skip("not on this machine")
    program = session_program(str(model), point(option))
    run(program, model.parent)
    for name, value in option.environment.items():
        assert f"export {name}={value}" in program


_RUN_EACH = """
import json, traceback
for name, program in json.load(open("programs.json")).items():
    try:
        exec(compile(program, name, "exec"), {})
    except BaseException:
        print(name, traceback.format_exc())
"""


def test_programs_without_variables_run_as_they_stand(model: Path) -> None:
    programs = {}
    for option in tuning_options():
        if option.is_available(Runtime.installed()) and not option.environment:
            own = shutil.copytree(model.parent, model.parent.with_name(option.name)) / model.name
            programs[option.name] = session_program(str(own), point(option)) + _MEASURED
    # One process for all of them: what they set counts for their own sessions.
    (model.parent / "programs.json").write_text(json.dumps(programs))
    words = [sys.executable, "-W", "error", "-c", _RUN_EACH]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, cwd=model.parent)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(programs) > 15
    assert [set(json.loads(line)) for line in lines] == [{"VmHWM", "RssAnon"}] * len(programs)


def test_telemetry_is_off_before_the_runtime_is_imported(
    model: Path, user_environment: dict[str, str]
) -> None:
    home = Path(user_environment["HOME"])
    for chosen in ((), (BY_NAME["telemetry-off"],)):
        program = session_program(str(model), point(*chosen))
        words = [sys.executable, "-c", program]
        subprocess.run(words, env=user_environment, check=True, timeout=60)
        written = [path for path in home.rglob("*") if path.is_file()]
        assert bool(written) == (not chosen and Runtime.installed() >= TELEMETRY_SINCE)
        shutil.rmtree(home / ".cache", ignore_errors=True)


def test_options_together_run_as_well_in_two_sessions(model: Path) -> None:
    names = ("save-prepacked", "mmap-threshold", "disable-constant-folding", "arena-shrinkage")
    program = session_program(str(model), point(*(BY_NAME[name] for name in names)), 2)
    run(program, model.parent)
    (saved,) = model.parent.glob("m.*.prepacked.onnx")
    assert re.fullmatch(
        rf"m\.[0-9a-f]{{8}}\.{onnxruntime.__version__}-[0-9a-f]{{8}}\.prepacked\.onnx", saved.name
    )
    # What is saved is what was measured: with the same settings.
    assert program.count("disabled_optimizers=['ConstantFolding']") == 2


def test_initializers_that_an_old_model_lists_are_no_inputs(tmp_path: Path) -> None:
    proto = parser.parse_model(
        """<ir_version: 3, opset_import: ["" : 9]>
        g (float[1, 64] x, float[64, 500] v) => (float[1, 500] y) {
            s = Identity(v)
            t = Mul(s, s)
            y = MatMul(x, t)
        }"""
    )
    values = np.random.default_rng().standard_normal((64, 500), np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(values, "v"))
    onnx.save(proto, tmp_path / "old.onnx")
    chosen = point(BY_NAME["save-prepacked"])
    program = session_program(str(tmp_path / "old.onnx"), chosen, listed=True)
    run(program, tmp_path)
    run(program, tmp_path)  # what was saved is there
    (saved,) = tmp_path.glob("old.*.prepacked.onnx")
    onnx.checker.check_model(saved)


def saved_files(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*.prepacked.onnx*")}


def test_what_is_saved_is_used_again_unless_release_or_model_changed(model: Path) -> None:
    program = session_program(str(model), point(BY_NAME["save-prepacked"]))
    run(program, model.parent)
    first = saved_files(model.parent)
    assert len(first) == 2
    run(program, model.parent)
    assert saved_files(model.parent) == first
    # As it is under another release: nothing of this one is loaded, or overwritten.
    other = "import onnxruntime\nreal = onnxruntime.__version__\nonnxruntime.__version__ = '0.1'\n"
    run(other + program, model.parent)
    both = saved_files(model.parent)
    assert len(both) == 4
    assert both.items() >= first.items()
    # And on another CPU.
    other = "import platform\nplatform.machine = lambda: 'other'\n"
    run(other + program, model.parent)
    assert len(saved_files(model.parent)) == 6
    # A model that is newer than what was saved of it is saved again.
    later = time.time() + 1
    os.utime(model, (later, later))
    run(program, model.parent)
    now = saved_files(model.parent)
    assert now.keys() >= first.keys()
    assert all(now[name] > moment for name, moment in first.items())


@pytest.mark.parametrize(
    ("name", "sessions"),
    [("save-prepacked", 1), ("share-weights", 2), ("same-as-requested", 1), ("arena-off", 1)],
)
def test_a_program_can_be_pasted_at_the_prompt(name: str, sessions: int, model: Path) -> None:
    program = session_program(str(model), point(BY_NAME[name]), sessions, costs={name: "It hurts."})
    run_at_prompt(program, model.parent)
    run_at_prompt(program, model.parent)  # what the first one wrote is there


@pytest.mark.parametrize("deployed_s", [1, -86400], ids=["newer", "older"])
@pytest.mark.parametrize("name", ["save-prepacked", "share-weights"])
def test_what_is_written_once_is_written_again_if_the_weights_changed(
    name: str, deployed_s: int, sample_model: SampleModel, tmp_path: Path
) -> None:
    external = sample_model("plain_mlp", 1, external=True)
    for path in (external, external.with_name(DATA[0])):
        shutil.copy(path, tmp_path)
    program = session_program(external.name, point(BY_NAME[name]), 2, data=DATA)
    run(program, tmp_path)
    (written,) = (*tmp_path.glob("*.prepacked.onnx"), *tmp_path.glob("*.ranges.json"))
    first = written.stat().st_mtime_ns
    run(program, tmp_path)
    assert written.stat().st_mtime_ns == first
    # A model that is deployed later may have been exported before.
    exported = time.time() + deployed_s
    for path in tmp_path.glob("plain_mlp.onnx*"):
        os.utime(path, (exported, exported))
    run(program, tmp_path)
    assert written.stat().st_mtime_ns != first


def test_processes_that_start_at_once_share_weights(model: Path) -> None:
    program = session_program(model.name, point(BY_NAME["share-weights"]), 2)
    words = [sys.executable, "-c", program + _MEASURED]
    started = [subprocess.Popen(words, cwd=model.parent, stdout=-3, stderr=-1) for _ in range(4)]
    assert [process.communicate(timeout=60)[1] for process in started] == [b""] * len(started)
    assert [*model.parent.glob("tmp*")] == []


RUNTIMES = [Path(one) for one in os.environ.get("MEMDIAG_RUNTIMES", "").split(":") if one]


@pytest.mark.slow
def test_another_release_does_not_load_what_this_one_saved(model: Path) -> None:
    if not RUNTIMES:
        pytest.skip("MEMDIAG_RUNTIMES names none")
    program = session_program(str(model), point(BY_NAME["save-prepacked"]))
    for python in (Path(sys.executable), *RUNTIMES, Path(sys.executable)):
        done = subprocess.run(
            [str(python), "-c", program + _MEASURED], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
    assert len(list(model.parent.glob("m.*.prepacked.onnx"))) == 1 + len(RUNTIMES)


def test_the_program_says_what_its_options_cost() -> None:
    chosen = msgspec.structs.replace(
        point(BY_NAME["mmap-threshold"]), ratio=3.75, slowest_with="sizes 1, 64 in turn"
    )
    hurts = BY_NAME["mmap-threshold"].hurts
    program = session_program("m.onnx", chosen, costs={"mmap-threshold": hurts})
    comment, _, rest = program.partition("\n# Measured: latency 3.75 ×")
    assert comment.replace("\n#  ", "") == f"# mmap-threshold: {hurts}"
    assert max(map(len, comment.splitlines())) <= 88
    assert rest
    assert "sizes 1, 64 in turn" in program
    compile(program, "snippet", "exec")
    assert "Measured" not in session_program("m.onnx", point())


def test_a_name_of_the_model_stays_in_its_comment() -> None:
    slow = "batch 1 × a\nimport os\r\x00\u2028b 2"
    chosen = msgspec.structs.replace(point(BY_NAME["mmap-threshold"]), ratio=2, slowest_with=slow)
    program = session_program("m.onnx", chosen, costs={"mmap-threshold": "it hurts"})
    assert "\n# batch 1 x a import os \\x00 b 2.\n" in program
    compile(program, "snippet", "exec")


def test_bytes_are_loaded_with_their_external_data(
    sample_model: SampleModel, tmp_path: Path
) -> None:
    external = sample_model("plain_mlp", 1, external=True)
    run(session_program(str(external), point(load_from="bytes"), data=DATA), tmp_path)


def test_the_program_takes_less_by_what_its_options_save(
    sample_model: SampleModel, tmp_path: Path
) -> None:
    # External weights are mapped, and only packed copies of them are anonymous.
    model = str(sample_model("plain_mlp", 16, external=True))
    off = run(session_program(model, point(BY_NAME["disable-prepacking"])), tmp_path)
    on = run(session_program(model, point()), tmp_path)
    assert on["RssAnon"] - off["RssAnon"] > 10 * MIB


@pytest.mark.parametrize("storage", ["raw_data", "float_data", "external"])
def test_shared_weights_are_there_once_for_all_sessions(
    storage: str, sample_model: SampleModel, tmp_path: Path
) -> None:
    external = storage == "external"
    original = sample_model("plain_mlp", 16, external=external)
    path = shutil.copytree(original.parent, tmp_path / "copy") / original.name
    if storage == "float_data":
        proto = onnx.load(path)
        for tensor in proto.graph.initializer:
            tensor.float_data.extend(onnx.numpy_helper.to_array(tensor).ravel())
            tensor.ClearField("raw_data")
        onnx.save(proto, path)
    shared = point(BY_NAME["share-weights"])
    taken = []
    # The first start writes what the later ones map.
    for sessions in (1, 1, 4):
        program = session_program(str(path), shared, sessions, data=DATA if external else ())
        taken.append(run(program, tmp_path)["VmHWM"])
    assert taken[2] - taken[1] < 6 * MIB
    # A model that is newer than the file of the ranges was exchanged.
    (ranges,) = path.parent.glob("*.ranges.json")
    ranges.write_text("{}")
    os.utime(ranges, (0, 0))
    run(program, tmp_path)
    assert json.loads(ranges.read_text())


@pytest.mark.parametrize("pinned", [False, True])
def test_a_variable_of_glibc_counts_within_the_program(pinned: bool) -> None:
    program = session_program("m.onnx", point(BY_NAME["mmap-threshold"]))
    start = program.split("import onnxruntime")[0] if pinned else _LIBC
    done = subprocess.run(
        [sys.executable, "-c", start + _MAPPED_BLOCKS], capture_output=True, text=True, timeout=60
    )
    # Having freed a mapped block, glibc maps no smaller ones any more, unless it is told to.
    assert done.stdout.strip() == ("1" if pinned else "0"), done.stderr


def test_a_path_with_quotes_is_written_as_python_needs_it() -> None:
    program = session_program('it\'s "a" \\ model.onnx', point())
    compile(program, "snippet", "exec")
    assert repr('it\'s "a" \\ model.onnx') in program
