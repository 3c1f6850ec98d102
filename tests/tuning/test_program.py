"""The program that a fix prints runs as it stands, and takes what the fix says."""

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
import onnx
import onnxruntime
import pytest

from memdiag.ort.runtime import Runtime
from memdiag.records.fix import Point
from memdiag.runner.job import Job
from memdiag.tuning.program import session_program
from memdiag.tuning.tuning_options import TuningOption, tuning_options
from memdiag.units import MIB
from tests.model_text import random, with_weights
from tests.tuning.scripted_search import made_up_point

SampleModel = Callable[..., Path]
BY_NAME = {one.name: one for one in tuning_options()}
_MEASURED = """
import json
import numpy as np
x = {each.name: np.ones([1, each.shape[-1]], np.float32) for each in session.get_inputs()}
session.run(None, x)
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


def point(*chosen: TuningOption) -> Point:
    job = Job(model=Path("m.onnx"))
    for one in chosen:
        job = one.added_to(job)
    session = job.session
    return made_up_point(
        *(one.name for one in chosen),
        session_options=dict(session.options),
        environment=dict(session.environment),
        run_options=dict(session.run_options),
        disabled_optimizers=tuple(session.disabled_optimizers),
        shared_arena=session.shared_arena,
        saved_options={name: text for one in chosen for name, text in one.save_options.items()},
        fits=True,
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
        input=program + "\nprint('at the end', session)\n",
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
        assert re.search(rf"export .*{name}={re.escape(value)}", program)


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
    assert len(programs) > 12
    assert [set(json.loads(line)) for line in lines] == [{"VmHWM", "RssAnon"}] * len(programs)


def test_options_together_run_as_well(model: Path) -> None:
    names = ("save-prepacked", "mmap-threshold", "disable-constant-folding", "arena-shrinkage")
    program = session_program(str(model), point(*(BY_NAME[name] for name in names)))
    run(program, model.parent)
    (saved,) = model.parent.glob("m.*.prepacked.onnx")
    assert re.fullmatch(
        rf"m\.[0-9a-f]{{8}}\.{onnxruntime.__version__}-[0-9a-f]{{8}}\.prepacked\.onnx", saved.name
    )
    # What is saved is what was measured: with the same settings.
    assert program.count("disabled_optimizers=['ConstantFolding']") == 2


def test_initializers_that_an_old_model_lists_are_no_inputs(tmp_path: Path) -> None:
    text = """g (float[1, 64] x, float[64, 500] v) => (float[1, 500] y) {
        s = Identity(v) t = Mul(s, s) y = MatMul(x, t) }"""
    proto = with_weights(text, 3, 9, v=random((64, 500)))
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


@pytest.mark.parametrize("name", ["save-prepacked", "same-as-requested", "arena-off"])
def test_a_program_can_be_pasted_at_the_prompt(name: str, model: Path) -> None:
    program = session_program(str(model), point(BY_NAME[name]))
    run_at_prompt(program, model.parent)
    run_at_prompt(program, model.parent)  # what the first one wrote is there


@pytest.mark.parametrize("deployed_s", [1, -86400], ids=["newer", "older"])
def test_what_is_written_once_is_written_again_if_the_weights_changed(
    deployed_s: int, sample_model: SampleModel, tmp_path: Path
) -> None:
    external = sample_model("plain_mlp", 1, external=True)
    for path in (external, external.with_name(DATA[0])):
        shutil.copy(path, tmp_path)
    program = session_program(external.name, point(BY_NAME["save-prepacked"]), data=DATA)
    run(program, tmp_path)
    (written,) = tmp_path.glob("*.prepacked.onnx")
    first = written.stat().st_mtime_ns
    run(program, tmp_path)
    assert written.stat().st_mtime_ns == first
    # A model that is deployed later may have been exported before.
    exported = time.time() + deployed_s
    for path in tmp_path.glob("plain_mlp.onnx*"):
        os.utime(path, (exported, exported))
    run(program, tmp_path)
    assert written.stat().st_mtime_ns != first


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


def test_the_program_states_its_latency() -> None:
    chosen = msgspec.structs.replace(
        point(BY_NAME["mmap-threshold"]), ratio=3.75, slowest_with="sizes 1, 64 in turn"
    )
    program = session_program("m.onnx", chosen)
    assert program.startswith(
        "# Measured: latency 3.75 × that of the defaults, with\n# sizes 1, 64"
    )
    assert "# Outputs were dropped before the next run; kept ones can take more.\n" in program
    compile(program, "snippet", "exec")
    assert "Measured" not in session_program("m.onnx", point())


@pytest.mark.parametrize(
    ("changes", "ending"),
    [
        ({"same_kernels": True}, ": the same kernels run, so it counts as noise."),
        ({"same_kernels": True, "ratio": 0.97}, "."),
        ({"unnoticed": True}, ": too little longer to notice."),
    ],
)
def test_the_program_says_why_a_longer_latency_is_allowed(
    changes: dict[str, object], ending: str
) -> None:
    measured = {"ratio": 1.12, "slowest_with": "size 1", **changes}
    chosen = msgspec.structs.replace(point(BY_NAME["mmap-threshold"]), **measured)
    assert f"\n# size 1{ending}\n" in session_program("m.onnx", chosen)


def test_the_program_says_where_it_must_not_be_used() -> None:
    program = session_program("m.onnx", point(), caveats={"onnxruntime-all": "Not elsewhere."})
    assert program.startswith("# onnxruntime-all: Not elsewhere.\n")
    compile(program, "snippet", "exec")


@pytest.mark.parametrize("name", [name for name in BY_NAME if name != "save-prepacked"])
def test_a_program_fits_a_terminal(name: str) -> None:
    assert max(map(len, session_program("m.onnx", point(BY_NAME[name])).splitlines())) <= 80


def test_a_name_of_the_model_stays_in_its_comment() -> None:
    slow = "batch 1 × a\nimport os\r\x00\u2028b 2"
    chosen = msgspec.structs.replace(point(BY_NAME["mmap-threshold"]), ratio=2, slowest_with=slow)
    program = session_program("m.onnx", chosen)
    assert "\n# batch 1 x a import os \\x00 b 2.\n" in program
    compile(program, "snippet", "exec")


def test_the_program_takes_less_by_what_its_options_save(
    sample_model: SampleModel, tmp_path: Path
) -> None:
    # External weights are mapped, and only packed copies of them are anonymous.
    model = str(sample_model("plain_mlp", 16, external=True))
    off = run(session_program(model, point(BY_NAME["disable-prepacking"])), tmp_path)
    on = run(session_program(model, point()), tmp_path)
    assert on["RssAnon"] - off["RssAnon"] > 10 * MIB


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


def test_a_program_for_a_gpu_names_the_options_of_the_provider() -> None:
    on_device = msgspec.structs.replace(
        point(),
        providers=("CUDAExecutionProvider", "CPUExecutionProvider"),
        provider_options={"CUDAExecutionProvider": {"arena_extend_strategy": "kSameAsRequested"}},
    )
    program = session_program("m.onnx", on_device)
    setup, _, creation = program.partition("providers = [\n")
    values: dict[str, object] = {}
    exec("providers = [\n" + creation.partition("session = ")[0], values)
    assert values["providers"] == [
        ("CUDAExecutionProvider", {"arena_extend_strategy": "kSameAsRequested"}),
        "CPUExecutionProvider",
    ]
    assert "options = ort.SessionOptions()" in setup
    assert "MODEL, options, providers=providers" in creation
    assert 'providers=["CPUExecutionProvider"]' in session_program("m.onnx", point())
