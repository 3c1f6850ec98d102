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


@pytest.mark.parametrize(
    ("arguments", "verdicts"),
    [
        pytest.param({"dims": {"n": 64}}, {"flat", "plateau"}, id="a second run above the first"),
        pytest.param(
            {"dims": {"n": (1, 16384)}}, {"high_water", "plateau"}, id="an arena, changing sizes"
        ),
        pytest.param(
            {"dims": {"n": (1, 16384)}, "session_options": {"enable_cpu_mem_arena": "false"}},
            NEVER_LEAKS - {"high_water"},
            id="no arena, changing sizes",
        ),
        pytest.param(
            {"dims": {"n": 64}, "reload": True}, {"flat", "plateau", "retained"}, id="reloads"
        ),
    ],
)
def test_a_model_that_seems_to_leak(
    model: Path, arguments: dict[str, Any], verdicts: set[str]
) -> None:
    growth = memdiag.leak(model, runs=300, **arguments)
    assert growth.verdict in verdicts, growth.sentence


def test_memory_after_a_release_is_mallocs(tmp_path: Path) -> None:
    """Weights below malloc's threshold for mappings stay in the heap when they are freed."""
    random = np.random.default_rng(0)
    names = [f"w{number}" for number in range(200)]
    nodes = [onnx.helper.make_node("Sum", ["x", *names], ["y"])]
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "m",
        [value("x", onnx.TensorProto.FLOAT, [64, 256])],
        [value("y", onnx.TensorProto.FLOAT, [64, 256])],
        [
            numpy_helper.from_array(random.standard_normal((64, 256), np.float32), name)
            for name in names
        ],
    )
    path = tmp_path / "m.onnx"
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(onnx.helper.make_model(graph, ir_version=8, opset_imports=[opset]), path)
    growth = memdiag.leak(path, reload=True, runs=60)
    assert not growth.is_leak_or_kept, growth.sentence
    assert growth.trim_returned_bytes is not None
    assert growth.trim_returned_bytes > 5 << 20


@pytest.mark.parametrize(
    ("work", "verdicts", "owner", "site"),
    [
        pytest.param(
            "kept.append(sessions[0].run(None, feeds))",
            {"kept"},
            "arena",
            "output 'y' of the run at <string>:13",
            id="kept outputs",
        ),
        pytest.param(
            """binding = sessions[0].io_binding()
    binding.bind_cpu_input("x", feeds["x"])
    binding.bind_output("y")
    sessions[0].run_with_iobinding(binding)
    kept.append(binding)""",
            {"kept"},
            None,  # the bindings, their inputs and their outputs
            "",
            id="kept bindings",
        ),
        pytest.param(
            "create().run(None, feeds)", NEVER_LEAKS, None, "", id="a session for each call"
        ),
        pytest.param(
            """sessions.append(create())
    sessions[-1].run(None, feeds)""",
            {"kept"},
            "sessions",
            "sessions of m.onnx were created at <string>:7",
            id="a session for each call, kept",
        ),
        pytest.param(
            """while len(sessions) < 200:
        sessions.append(create())
    sessions[int(random.integers(200))].run(None, feeds)""",
            NEVER_LEAKS,
            None,
            "",
            id="200 sessions",
        ),
    ],
)
def test_a_program_that_grows(
    model: Path, work: str, verdicts: set[str], owner: str | None, site: str
) -> None:
    program = PROGRAM.replace("WORK", f"    {work}")
    growth, _ = leak_program([sys.executable, "-c", program, str(model)], duration_s=12.0)
    assert growth.verdict in verdicts, growth.sentence
    assert site in growth.sentence
    if owner is not None:
        assert growth.owner == owner, growth.sentence
