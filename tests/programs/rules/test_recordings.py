"""The rules on real recordings: small programs with wastes, and the same without them."""

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest

from memdiag.api.run import run
from memdiag.records.run import ProgramFinding, ProgramRun

MIB = 1 << 20
WIDTH = 512  # a weight of 1 MiB
MAX_KEPT = 4
"""Times the weights of 1 MiB that the creation of a session may keep: without an X-ray this is the
estimate."""

PRELUDE = """
import os, signal, subprocess, sys, time
import numpy as np
import onnxruntime


def create(path, **options):
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    for name, value in options.items():
        if "." in name:
            settings.add_session_config_entry(name, value)
        else:
            setattr(settings, name, value)
    return onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])


def use(session, rows=1):
    width = session.get_inputs()[0].shape[1]
    session.run(None, {"x": np.ones((rows, width), np.float32)})

"""

Record = Callable[..., ProgramRun]


def save_model(path: Path, width: int = WIDTH, *, external: bool = False) -> Path:
    """Save a product with a weight of `width` squared."""
    graph = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]>'
        f" linear (float[n, {width}] x) => (float[n, {width}] y) {{ y = MatMul(x, w) }}"
    )
    weight = np.random.default_rng(0).standard_normal((width, width), np.float32)
    graph.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(graph, path, save_as_external_data=external, location=f"{path.name}.data")
    return path


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """Return a function that records a program after `PRELUDE`, given its body and words."""

    def record(body: str, *words: object, xray: bool = False) -> ProgramRun:
        program = tmp_path_factory.mktemp("program") / "program.py"
        program.write_text(PRELUDE + textwrap.dedent(body))
        recorded = run([sys.executable, str(program), *map(str, words)], xray=xray)
        assert recorded.exit_code == 0
        return recorded

    return record


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models, one for each waste, so that rules tell their sessions apart."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("duplicates", "calls", "kept_calls", "pool", "repeated", "rare", "shrunk"):
        save_model(folder / f"{name}.onnx")
    for name, width in (("kept_bytes", 2100), ("dropped_bytes", 2101)):
        save_model(folder / f"{name}.onnx", width)
    return folder


def of_rule(name: str, recorded: ProgramRun) -> list[ProgramFinding]:
    return [finding for finding in recorded.findings if finding.name == name]


WASTES = """
os.chdir(sys.argv[1])
used, unused = create("duplicates.onnx"), create("duplicates.onnx")
other = create("duplicates.onnx", inter_op_num_threads=2)
for _ in range(6):
    session = create("calls.onnx")
    use(session)
del session
kept = []
for _ in range(6):
    kept.append(create("kept_calls.onnx"))
    use(kept[-1])
pool = [create("pool.onnx") for _ in range(6)]
for session in pool:
    use(session)
with open("kept_bytes.onnx", "rb") as file:
    keeping = create(file.read())
with open("dropped_bytes.onnx", "rb") as file:
    dropping = create(file.read())
dropping._model_bytes = None
repeated = create("repeated.onnx")
for session in (keeping, dropping, repeated, repeated):
    use(session)
time.sleep(2)
use(used)
use(other)
"""
DUPLICATES, CALLS, KEPT_CALLS, POOL = (1, 2, 3), range(4, 10), range(10, 16), range(16, 22)
KEPT_BYTES, REPEATED = 22, 24


@pytest.fixture(scope="module")
def wastes(record: Record, models: Path) -> ProgramRun:
    return record(WASTES, models)


def test_duplicate_and_unused_sessions(wastes: ProgramRun) -> None:
    duplicate, pool = of_rule("duplicate-session", wastes)
    if duplicate.sessions != DUPLICATES:  # the costliest is first
        duplicate, pool = pool, duplicate
    assert duplicate.sessions == DUPLICATES
    assert duplicate.bytes is not None
    assert 2 * MIB <= duplicate.bytes <= 2 * MAX_KEPT * MIB  # two of three weights
    assert "no X-ray measured" in duplicate.message
    assert "inter_op_num_threads (default; 2)" in duplicate.message
    assert pool.sessions == tuple(POOL)
    assert [finding.sessions for finding in of_rule("unused-session", wastes)] == [(2,)]


def test_a_session_for_each_call(wastes: ProgramRun) -> None:
    costs = {finding.sessions: finding.bytes for finding in of_rule("session-per-call", wastes)}
    assert costs.pop(tuple(CALLS)) is None
    kept_bytes = costs.pop(tuple(KEPT_CALLS))
    assert kept_bytes is not None
    assert 5 * MIB <= kept_bytes <= 5 * MAX_KEPT * MIB
    assert costs == {}  # a pool is none


def test_the_bytes_of_a_model(wastes: ProgramRun, models: Path) -> None:
    kept = [(finding.sessions, finding.bytes) for finding in of_rule("model-bytes-kept", wastes)]
    assert kept == [((KEPT_BYTES,), (models / "kept_bytes.onnx").stat().st_size)]


def test_the_last_run_is_known_however_late_the_end(wastes: ProgramRun) -> None:
    session = wastes.sessions[REPEATED - 1]
    assert session.run_count == 2
    assert session.last_run_s is not None
    assert session.first_run_s is not None
    assert session.last_run_s - session.first_run_s < 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("external", "option", "size"),
    [
        pytest.param(False, "0", 16 * MIB, id="in the model file"),
        pytest.param(True, "0", 16 * MIB, id="packed"),
        pytest.param(True, "1", None, id="mapped"),
    ],
)
@pytest.mark.parametrize("xray", [True, False])
def test_weights_of_several_workers(
    external: bool, option: str, size: int | None, xray: bool, record: Record, tmp_path: Path
) -> None:
    model = save_model(tmp_path / "large.onnx", 2048, external=external)
    body = """
    if len(sys.argv) == 3:
        words = [sys.executable, *sys.argv, "worker"]
        workers = [
            subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for _ in range(2)
        ]
        for worker in workers:
            worker.stdout.readline()
        for worker in workers:
            worker.communicate(b"end")
    else:
        session = create(sys.argv[1], **{"session.disable_prepacking": sys.argv[2]})
        use(session)
        print("ready", flush=True)
        sys.stdin.readline()
    """
    found = of_rule("weights-in-workers", record(body, model, option, xray=xray))
    if size is None:
        assert found == []
        return
    (finding,) = found
    assert finding.sessions == (1, 2)
    assert finding.bytes == pytest.approx(size, rel=0.05 if xray else 0.25)
    assert ("No X-ray measured the copies" in finding.message) == (not xray)


def test_a_rare_large_input(record: Record, models: Path) -> None:
    body = """
    os.chdir(sys.argv[1])
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    for model in ("rare.onnx", "shrunk.onnx"):
        session = create(model)
        for number in range(40):
            use(session, rows=40_000 if number == 20 else 1 + number % 2)
            if number == 20 and model == "shrunk.onnx":
                session.run(None, {"x": np.ones((1, 512), np.float32)}, options)
        globals()[model] = session
    """
    (finding,) = of_rule("rare-large-input", record(body, models, xray=True))
    assert finding.sessions == (1,)
    assert finding.bytes is not None
    assert finding.bytes >= 40_000 * WIDTH * 4  # the output of the large run
    assert "x: 40000×512. Of 40 runs 1 had such inputs" in finding.message


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_on_one_cpu(threads: int, record: Record, models: Path) -> None:
    body = f"""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    session = create(sys.argv[1], intra_op_num_threads={threads})
    use(session)
    """
    recorded = record(body, models / "repeated.onnx")
    (process,) = recorded.processes
    assert process.cpus_allowed is not None
    assert process.cpus_allowed <= 1
    (session,) = recorded.sessions
    assert session.started_threads == threads - 1
    found = of_rule("threads-beyond-cpus", recorded)
    assert [each.sessions for each in found] == ([(1,)] if threads > 1 else [])


PARALLEL = "inter_op_num_threads=2, execution_mode=onnxruntime.ExecutionMode.ORT_PARALLEL"
OWN = "own = create(sys.argv[1]); use(own)"
FORKS = {
    "runs": ("intra_op_num_threads=3", "use(session)", "1 run there had"),
    "without threads": ("intra_op_num_threads=1", "use(session)", None),
    "does nothing": ("intra_op_num_threads=3", "time.sleep(0.5)", None),
    "own session": ("intra_op_num_threads=3", OWN, "crashes"),
    "hangs": (PARALLEL, "use(session)", "started and did not end"),
}


@pytest.mark.parametrize(("options", "in_fork", "message"), FORKS.values(), ids=FORKS)
def test_a_fork_after_a_session(
    options: str, in_fork: str, message: str | None, record: Record, models: Path, tmp_path: Path
) -> None:
    body = f"""
    session = create(sys.argv[1], {options})
    use(session)
    child = os.fork()
    if not child:
        {in_fork}
        open(sys.argv[2], "w").close()
        os._exit(0)
    end_s = time.monotonic() + {2.0 if options == PARALLEL else 30.0}
    while not os.path.exists(sys.argv[2]) and time.monotonic() < end_s:
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    """
    recorded = record(body, models / "repeated.onnx", tmp_path / "done")
    parent, child = recorded.processes
    assert child.forked_from == parent.pid
    assert [inherited.session for inherited in child.inherited] == [1]
    forks = of_rule("fork-after-session", recorded)
    assert [finding.sessions for finding in forks] == ([] if message is None else [(1,)])
    assert all(message in finding.message for finding in forks if message)
