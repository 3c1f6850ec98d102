"""The rules on real recordings: small programs, each with one waste, and the same without it."""

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


def create(path=sys.argv[1], **options):
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
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model") / "small.onnx")


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """Return a function that records a program after `PRELUDE`, given its body and the model."""

    def record(body: str, *words: object, xray: bool = False) -> ProgramRun:
        program = tmp_path / "program.py"
        program.write_text(PRELUDE + textwrap.dedent(body))
        recorded = run([sys.executable, str(program), *map(str, words)], xray=xray)
        assert recorded.exit_code == 0
        return recorded

    return record


def of_rule(name: str, recorded: ProgramRun) -> list[ProgramFinding]:
    return [finding for finding in recorded.findings if finding.name == name]


def test_duplicate_and_unused_sessions(record: Record, small_model: Path) -> None:
    body = """
    used, unused, other = create(), create(), create(inter_op_num_threads=2)
    time.sleep(2)
    use(used)
    use(other)
    """
    recorded = record(body, small_model)
    (duplicate,) = of_rule("duplicate-session", recorded)
    assert duplicate.sessions == (1, 2, 3)
    assert duplicate.bytes is not None
    assert 2 * MIB <= duplicate.bytes <= 2 * MAX_KEPT * MIB  # two of three weights
    assert "no X-ray measured" in duplicate.message
    assert "inter_op_num_threads (default; 2)" in duplicate.message
    (unused,) = of_rule("unused-session", recorded)
    assert unused.sessions == (2,)


@pytest.mark.parametrize("kept", [False, True])
def test_a_session_for_each_call(kept: bool, record: Record, small_model: Path) -> None:
    body = f"""
    kept = []
    for _ in range(6):
        session = create()
        use(session)
        if {kept}:
            kept.append(session)
    """
    (found,) = of_rule("session-per-call", record(body, small_model))
    assert found.sessions == (1, 2, 3, 4, 5, 6)
    if not kept:
        assert found.bytes is None
        return
    assert found.bytes is not None
    assert 5 * MIB <= found.bytes <= 5 * MAX_KEPT * MIB


@pytest.mark.parametrize("dropped", [False, True])
def test_the_bytes_of_a_model(dropped: bool, record: Record, tmp_path: Path) -> None:
    body = f"""
    with open(sys.argv[1], "rb") as file:
        session = create(file.read())
    if {dropped}:
        session._model_bytes = None
    use(session)
    """
    path = save_model(tmp_path / "large.onnx", 2100)
    kept = of_rule("model-bytes-kept", record(body, path))
    assert [finding.bytes for finding in kept] == [] if dropped else [path.stat().st_size]


def test_a_pool_of_sessions_is_no_session_for_each_call(record: Record, small_model: Path) -> None:
    body = """
    pool = [create() for _ in range(6)]
    for session in pool:
        use(session)
    """
    recorded = record(body, small_model)
    assert of_rule("session-per-call", recorded) == []
    assert [each.sessions for each in of_rule("duplicate-session", recorded)] == [
        (1, 2, 3, 4, 5, 6)
    ]


def test_the_last_run_is_known_however_late_the_end(record: Record, small_model: Path) -> None:
    body = """
    session = create()
    use(session)
    use(session)
    time.sleep(1.5)
    """
    (session,) = record(body, small_model).sessions
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
        session = create(**{"session.disable_prepacking": sys.argv[2]})
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


@pytest.mark.parametrize("shrinks", [False, True])
def test_a_rare_large_input(shrinks: bool, record: Record, small_model: Path) -> None:
    body = f"""
    session = create()
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    for number in range(40):
        use(session, rows=40_000 if number == 20 else 1 + number % 2)
        if {shrinks} and number == 20:
            session.run(None, {{"x": np.ones((1, 512), np.float32)}}, options)
    """
    recorded = record(body, small_model, xray=True)
    found = of_rule("rare-large-input", recorded)
    if shrinks:
        assert found == []
        return
    (finding,) = found
    assert finding.bytes is not None
    assert finding.bytes >= 40_000 * WIDTH * 4  # the output of the large run
    assert "x: 40000×512. Of 40 runs 1 had such inputs" in finding.message


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_on_one_cpu(threads: int, record: Record, small_model: Path) -> None:
    body = f"""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    session = create(intra_op_num_threads={threads})
    use(session)
    """
    recorded = record(body, small_model)
    (process,) = recorded.processes
    assert process.cpus_allowed is not None
    assert process.cpus_allowed <= 1
    (session,) = recorded.sessions
    assert session.started_threads == threads - 1
    found = of_rule("threads-beyond-cpus", recorded)
    assert [each.sessions for each in found] == ([(1,)] if threads > 1 else [])


@pytest.mark.parametrize(
    ("options", "in_fork", "message"),
    [
        pytest.param("intra_op_num_threads=3", "use(session)", "1 run there had", id="runs"),
        pytest.param("intra_op_num_threads=1", "use(session)", None, id="without threads"),
        pytest.param("intra_op_num_threads=3", "time.sleep(0.5)", None, id="does nothing"),
        pytest.param(
            "intra_op_num_threads=3", "own = create(); use(own)", "crashes", id="own session"
        ),
        pytest.param(
            "inter_op_num_threads=2, execution_mode=onnxruntime.ExecutionMode.ORT_PARALLEL",
            "use(session)",
            "started and did not end",
            id="hangs",
        ),
    ],
)
def test_a_fork_after_a_session(
    options: str, in_fork: str, message: str | None, record: Record, small_model: Path
) -> None:
    body = f"""
    session = create({options})
    use(session)
    child = os.fork()
    if not child:
        {in_fork}
        os._exit(0)
    time.sleep(1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    """
    recorded = record(body, small_model)
    parent, child = recorded.processes
    assert child.forked_from == parent.pid
    assert [each.session for each in child.inherited] == [1]
    found = of_rule("fork-after-session", recorded)
    if message is None:
        assert found == []
    else:
        assert [each.sessions for each in found] == [(1,)]
        assert message in found[0].message
