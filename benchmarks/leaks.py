"""Are the verdicts of ``memdiag leak`` right? ``python -m benchmarks.leaks``.

Programs with an injected leak of a known rate must be called ``leak`` or ``kept``, with the owner
and the rate; long runs of models that nobody changed must be called neither. The truth is known by
construction. The table goes to ``docs/leaks.md``.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

import memdiag
from benchmarks.exported_models import exported_models
from benchmarks.readme import replace_part, table
from benchmarks.real_models import real_models
from memdiag.api.leak import leak
from memdiag.api.leak_program import leak_program
from memdiag.errors import MemdiagError
from memdiag.records.growth import Growth
from memdiag.runner.machine import describe_machine
from memdiag.units import KIB, format_size

PAGE = Path(__file__).parents[1] / "docs" / "leaks.md"
RUNS = 1000
PERIOD_S = 0.25
HIDDEN = 256

PROGRAM = """
import ctypes, sys, time
import numpy as np
import onnxruntime

kind, nbytes, runs, model = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(model, options)
random = np.random.default_rng(0)
kept = []
rows = max(1, nbytes // 1024)  # a row of inputs and of outputs has 1 KiB
for run in range(runs):
    time.sleep(0.004)
    feeds = {"x": random.standard_normal((rows, 256), dtype=np.float32)}
    if kind == "ortvalues":
        values = {"x": onnxruntime.OrtValue.ortvalue_from_numpy(feeds["x"])}
        kept.append(session.run_with_ort_values(None, values))
        continue
    outputs = session.run(None, feeds)
    if kind == "outputs":
        kept.append(outputs[0])
    elif kind == "inputs":
        kept.append(feeds["x"])
    elif kind == "malloc":
        ctypes.memset(libc.malloc(nbytes), 1, nbytes)
    elif kind == "sessions" and run % 20 == 0:
        kept.append(onnxruntime.InferenceSession(model, options))
        kept[-1].run(None, feeds)
"""


@dataclass(frozen=True)
class Injected:
    """A program with a leak.

    Attributes:
        kind: what stays in use.
        nbytes: how much of it for each run.
        verdict: the right verdict.
        owners: the right owners.
    """

    kind: str
    nbytes: int
    verdict: str
    owners: tuple[str, ...]


INJECTED = (
    *(Injected("malloc", size, "leak", ("heap",)) for size in (16, 64, 256)),
    *(Injected("malloc", size * KIB, "leak", ("heap",)) for size in (1, 5, 20, 100)),
    *(Injected("outputs", size * KIB, "kept", ("heap", "arena")) for size in (1, 2, 5, 20, 100)),
    *(Injected("inputs", size * KIB, "kept", ("heap",)) for size in (1, 2, 5, 20, 100)),
    *(Injected("ortvalues", size * KIB, "kept", ("arena",)) for size in (1, 5, 20, 100)),
    Injected("sessions", 0, "kept", ("sessions",)),
    *(Injected("none", size * KIB, "", ()) for size in (1, 5, 20, 100) for _ in range(3)),
)


OTHER_RUNS: dict[str, dict[str, Any]] = {
    "4 callers": {"callers": 4},
    "reloads": {"reload": True, "runs": 100},
    "other sizes": {"vary": ("content", "shape"), "runs": 400},
}
"""Further runs of `OTHER_RUN_MODELS`: arguments of `memdiag.api.leak.leak`."""

OTHER_RUN_MODELS = ("silero_vad", "magika", "ocr_angle", "minilm_int8", "light_squeezenet", "bert")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=RUNS, help=f"of each program (default {RUNS})")
    parser.add_argument("--model-runs", type=int, default=RUNS, help="of each model that is clean")
    parser.add_argument("--clean", nargs="*", metavar="MODEL", help="clean models only")
    options = parser.parse_args()
    wrong = 0
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for row, is_right in _rows(Path(folder), options):
            print(" | ".join(row), "" if is_right else "  <-- WRONG", flush=True)
            wrong += not is_right
            rows.append(row)
    if options.clean is None:
        header = ["what", "truth", "verdict", "owner", "a run", "95 % interval", "time"]
        machine = describe_machine(memdiag.__version__, onnxruntime.__version__, None)
        facts = f"{machine.cpu}, {machine.cpu_count} CPUs, onnxruntime {machine.onnxruntime}"
        runs = f"{options.runs:,} runs of each program, {options.model_runs:,} of each model"
        replace_part("leaks", f"{facts}; {runs}.\n\n{table(header, rows)}", PAGE)
    print(f"{len(rows)} cases, {wrong} wrong")
    return 1 if wrong else 0


def _rows(folder: Path, options: argparse.Namespace) -> Iterator[tuple[list[str], bool]]:
    """Yield the cells of each case, and whether the verdict is right."""
    clean, runs = options.clean, options.runs
    if clean is None:
        model = folder / "linear.onnx"
        onnx.save(_model(), model)
        program = folder / "program.py"
        program.write_text(PROGRAM)
        for case in INJECTED:
            started = time.monotonic()
            command = [sys.executable, str(program), case.kind, str(case.nbytes), str(runs)]
            growth = leak_program([*command, str(model)], period_s=PERIOD_S).growth
            truth = f"{case.verdict} of {format_size(case.nbytes)}" if case.verdict else "clean"
            is_right = (
                growth.verdict == case.verdict and growth.owner in case.owners
                if case.verdict
                else not growth.is_leak_or_kept
            )
            yield _cells(f"program: {case.kind}", truth, growth, started), is_right
    models = {} if clean else {**real_models(), **exported_models()}
    paths = list(map(Path, clean)) if clean else list(models.values())
    cases: list[tuple[str, Path, dict[str, Any]]] = [(path.stem, path, {}) for path in paths]
    if not clean:
        cases += [
            (f"{name}, {how}", models[name], arguments)
            for how, arguments in OTHER_RUNS.items()
            for name in OTHER_RUN_MODELS
        ]
    for what, path, arguments in cases:
        started = time.monotonic()
        try:
            growth = leak(path, **{"runs": options.model_runs, **arguments})
        except MemdiagError as error:
            print(f"{what}: {error}", flush=True)
            continue
        is_clean = not growth.is_leak_or_kept and not growth.message
        yield _cells(what, "clean", growth, started), is_clean


def _cells(name: str, truth: str, growth: Growth, started: float) -> list[str]:
    slope = growth.slope if growth.is_leak_or_kept else None
    return [
        name,
        truth,
        growth.verdict,
        growth.owner or "",
        f"{slope.bytes_per_unit:,.0f} B" if slope else "",
        f"{slope.low:,.0f} to {slope.high:,.0f} B" if slope else "",
        f"{time.monotonic() - started:.0f} s",
    ]


def _model() -> onnx.ModelProto:
    """Return a model whose outputs are as large as its inputs."""
    weight = numpy_helper.from_array(
        np.random.default_rng(0).standard_normal((HIDDEN, HIDDEN)).astype(np.float32), "w"
    )
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "linear",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", HIDDEN])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", HIDDEN])],
        [weight],
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


if __name__ == "__main__":
    sys.exit(main())
