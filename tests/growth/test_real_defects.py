"""What users report as leaks, and what it is: each case with sessions of the installed runtime.

Lists of strings, which onnxruntime up to 1.20 never releases, are in `test_texts`.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import memdiag
from memdiag.api.leak_program import leak_program

pytestmark = [pytest.mark.slow, pytest.mark.measures, pytest.mark.timeout(300)]

MODEL = """<ir_version: 8, opset_import: ["": 17]>
m (float[n, 256] x) => (float[n, 256] y) {
    a = Exp(x)
    b = MatMul(a, w)
    c = Add(b, a)
    y = Mul(c, b)
}"""

PROGRAM = """
import sys, time, numpy, onnxruntime

def create():
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])

random = numpy.random.default_rng(0)
sessions, kept = [create()], []
def work():
    feeds = {"x": random.standard_normal((16, 256), dtype=numpy.float32)}
WORK
while True:
    work()
    time.sleep(0.002)
"""

NEVER_LEAKS = {"flat", "plateau", "retained", "high_water", "undecided"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    proto = onnx.parser.parse_model(MODEL)
    weight = np.random.default_rng(0).standard_normal((256, 256), np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    onnx.save(proto, path)
    return path


CHANGING_SIZES = {"n": (1, 16384)}
NO_ARENA = {"enable_cpu_mem_arena": "false"}
MODELS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "a second run above the first": ({"dims": {"n": 64}}, {"flat", "plateau"}),
    "an arena, changing sizes": ({"dims": CHANGING_SIZES}, {"high_water", "plateau"}),
    "no arena, changing sizes": (
        {"dims": CHANGING_SIZES, "session_options": NO_ARENA},
        NEVER_LEAKS - {"high_water"},
    ),
    "reloads": ({"dims": {"n": 64}, "reload": True}, {"flat", "plateau", "retained"}),
}


@pytest.mark.parametrize(("arguments", "verdicts"), MODELS.values(), ids=MODELS)
def test_a_model_that_seems_to_leak(
    model: Path, arguments: dict[str, Any], verdicts: set[str]
) -> None:
    growth = memdiag.leak(model, runs=300, **arguments)
    assert growth.verdict in verdicts, growth.sentence


def test_memory_after_a_release_is_mallocs(tmp_path: Path) -> None:
    """Weights below malloc's threshold for mappings stay in the heap when they are freed."""
    random = np.random.default_rng(0)
    names = [f"w{number}" for number in range(200)]
    body = f"{{ y = Sum(x, {', '.join(names)}) }}"
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> m (float[64, 256] x) => (float[64, 256] y) {body}'
    )
    for name in names:
        weight = random.standard_normal((64, 256), np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(weight, name))
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    growth = memdiag.leak(path, reload=True, runs=60)
    assert not growth.is_leak_or_kept, growth.sentence
    assert growth.trim_returned_bytes is not None
    assert growth.trim_returned_bytes > 5 << 20


BIND = """binding = sessions[0].io_binding()
    binding.bind_cpu_input("x", feeds["x"])
    binding.bind_output("y")
    sessions[0].run_with_iobinding(binding)
    kept.append(binding)"""
KEEP_SESSIONS = """sessions.append(create())
    sessions[-1].run(None, feeds)"""
MANY_SESSIONS = """while len(sessions) < 200:
        sessions.append(create())
    sessions[int(random.integers(200))].run(None, feeds)"""
KEEP_OUTPUTS = "kept.append(sessions[0].run(None, feeds))"
KEPT_OUTPUT = "output 'y' of the run at <string>:13"
CREATED = "sessions of m.onnx were created at <string>:7"
PROGRAMS: dict[str, tuple[str, set[str], str | None, str]] = {
    "kept outputs": (KEEP_OUTPUTS, {"kept"}, "arena", KEPT_OUTPUT),
    "kept bindings, their inputs and their outputs": (BIND, {"kept"}, None, ""),
    "a session for each call": ("create().run(None, feeds)", NEVER_LEAKS, None, ""),
    "a session for each call, kept": (KEEP_SESSIONS, {"kept"}, "sessions", CREATED),
    "200 sessions": (MANY_SESSIONS, NEVER_LEAKS, None, ""),
}


@pytest.mark.parametrize(("work", "verdicts", "owner", "site"), PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_that_grows(
    model: Path, work: str, verdicts: set[str], owner: str | None, site: str
) -> None:
    program = PROGRAM.replace("WORK", f"    {work}")
    growth, _ = leak_program([sys.executable, "-c", program, str(model)], duration_s=12.0)
    assert growth.verdict in verdicts, growth.sentence
    assert site in growth.sentence
    assert owner in (None, growth.owner), growth.sentence
