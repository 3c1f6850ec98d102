"""Are the verdicts of ``memdiag leak`` right? ``python -m benchmarks.leaks``.

Programs with an injected leak of a known rate must be called ``leak`` or ``kept``, with the owner
and the rate; long runs of models that nobody changed must be called neither. The truth is known by
construction. The table goes to ``docs/leaks.md``.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
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
from memdiag.units import KIB, format_duration, format_size

PAGE = Path(__file__).parents[1] / "docs" / "leaks.md"
RUNS = 1000
MODEL_S = 100.0
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

PROGRAM_OF_MODEL = """
import ctypes, sys, threading
from collections import OrderedDict
import numpy as np
import onnxruntime

kind, nbytes, runs, model = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
random = np.random.default_rng(0)
TYPES = {"tensor(int64)": np.int64, "tensor(float)": np.float32}

def create():
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])

def feeds(session, length=16, batch=1):
    found = {}
    for each in session.get_inputs():
        rank = len(each.shape)
        free = {2: [batch, length], 4: [batch, 3, 48, 192]}.get(rank, [batch] * rank)
        shape = [size if isinstance(size, int) else free[axis]
                 for axis, size in enumerate(each.shape)]
        if not shape:
            found[each.name] = np.array(16000, TYPES[each.type])
        elif each.type == "tensor(int64)":
            found[each.name] = random.integers(0, 2, shape)
        else:
            found[each.name] = random.random(shape, dtype=np.float32)
    return found

kept, cache = [], OrderedDict()
session = create()
same = feeds(session, 512 if "silero" in model else 16)
if kind == "callers":
    def call():
        for _ in range(runs // 4):
            session.run(None, feeds(session))
    threads = [threading.Thread(target=call) for _ in range(4)]
    [each.start() for each in threads]
    [each.join() for each in threads]
    runs = 0
for run in range(runs):
    if kind in ("created", "lost", "sessions"):
        session = create()
        session.run(None, same)
        if kind == "lost":
            ctypes.memset(libc.malloc(nbytes), 1, nbytes)
        if kind == "sessions":
            kept.append(session)
    elif kind == "largest":
        length = {60: 64, 160: 128, 280: 256}.get(run, 16)
        session.run(None, feeds(session, length, 4))
    elif kind == "longer":
        session.run(None, feeds(session, 16 + run // 40 * 24, 2))
    elif kind == "lengths":
        session.run(None, feeds(session, int(random.integers(8, 200))))
    elif kind == "cycle":
        kept = kept or [feeds(session, 8 * n) for n in range(1, 9)]
        session.run(None, kept[run % 8])
    elif kind == "cache":
        cache[run] = session.run(None, feeds(session))
        if len(cache) > 60:
            cache.popitem(last=False)
    elif kind == "copies":
        kept.append(session.run(None, feeds(session))[0].ravel()[:384].copy())
    elif kind == "outputs":
        kept.append(session.run(None, feeds(session, int(random.integers(8, 64))))[0])
"""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program whose truth is known.

    Attributes:
        what: what it does with the model.
        kind: the first argument of the program.
        truth: the truth in words.
        verdicts: the right verdicts.
        owners: the right owners; empty for any.
        nbytes: how much stays in use for each run, if the program chooses it.
        runs: its runs; None for those of the command line.
        model: the name of a real model; empty for one with a single MatMul.
    """

    what: str
    kind: str
    truth: str
    verdicts: tuple[str, ...]
    owners: tuple[str, ...] = ()
    nbytes: int = 0
    runs: int | None = None
    model: str = ""


CLEAN = ("flat", "plateau", "high_water", "retained", "undecided")


def _injected(kind: str, nbytes: int, verdict: str, owners: tuple[str, ...]) -> Program:
    truth = f"{verdict} of {format_size(nbytes)}" if nbytes else verdict
    return Program(
        what=f"program: {kind}",
        kind=kind,
        nbytes=nbytes,
        truth=truth,
        verdicts=(verdict,),
        owners=owners,
    )


def _clean(kind: str, what: str, runs: int, model: str = "minilm_int8") -> Program:
    return Program(
        what=f"{model}, {what}",
        kind=kind,
        truth="clean",
        verdicts=CLEAN,
        runs=runs,
        model=model,
    )


PROGRAMS = (
    *(_injected("malloc", size, "leak", ("heap",)) for size in (16, 64, 256)),
    *(_injected("malloc", size * KIB, "leak", ("heap",)) for size in (1, 5, 20, 100)),
    *(_injected("outputs", size * KIB, "kept", ("heap", "arena")) for size in (1, 2, 5, 20, 100)),
    *(_injected("inputs", size * KIB, "kept", ("heap",)) for size in (1, 2, 5, 20, 100)),
    *(_injected("ortvalues", size * KIB, "kept", ("arena",)) for size in (1, 5, 20, 100)),
    _injected("sessions", 0, "kept", ("sessions",)),
    *(
        Program(
            what="program: none",
            kind="none",
            nbytes=size * KIB,
            truth="clean",
            verdicts=CLEAN,
        )
        for size in (1, 5, 20, 100)
        for _ in range(3)
    ),
    *(
        _clean("created", f"{runs} sessions created and released", runs, model)
        for model, runs in (
            ("silero_vad", 80),
            ("silero_vad", 240),
            ("silero_vad", 600),
            ("minilm_int8", 60),
            ("ocr_angle", 100),
        )
    ),
    *(
        Program(
            what=f"silero_vad, {runs} sessions, a block lost with each",
            kind="lost",
            nbytes=nbytes,
            truth=f"leak of {nbytes} B",
            verdicts=("leak",),
            owners=("heap",),
            runs=runs,
            model="silero_vad",
        )
        for nbytes, runs in ((100, 300), (1000, 200), (5000, 200))
    ),
    *(
        Program(
            what=f"{model}, {runs} sessions that stay",
            kind="sessions",
            truth="kept",
            verdicts=("kept",),
            owners=("sessions",),
            runs=runs,
            model=model,
        )
        for model, runs in (("silero_vad", 60), ("minilm_int8", 40))
    ),
    _clean("largest", "a new largest input at 3 of 400 runs", 400),
    _clean("longer", "inputs that grow with each 40 runs", 400),
    _clean("lengths", "inputs of other lengths", 600),
    _clean("cycle", "a cycle of eight inputs", 600),
    _clean("cache", "a cache of 60 outputs", 600),
    _clean("callers", "4 callers", 2400),
    Program(
        what="minilm_int8, copies of parts of outputs that stay",
        kind="copies",
        truth="kept of 1,536 B",
        verdicts=("kept", "leak"),
        owners=("heap",),
        runs=600,
        model="minilm_int8",
    ),
    Program(
        what="minilm_int8, outputs of other lengths that stay",
        kind="outputs",
        truth="kept",
        verdicts=("kept",),
        owners=("heap", "arena"),
        runs=400,
        model="minilm_int8",
    ),
)


OTHER_RUNS: dict[str, dict[str, Any]] = {
    "reloads": {"reload": True, "runs": 100},
    "other sizes": {"vary": ("content", "shape"), "runs": 400},
}
"""Further runs of `OTHER_RUN_MODELS`: arguments of `memdiag.api.leak.leak`."""

OTHER_RUN_MODELS = ("silero_vad", "magika", "ocr_angle", "minilm_int8", "light_squeezenet", "bert")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=RUNS, help=f"of each program (default {RUNS})")
    parser.add_argument("--model-runs", type=int, default=RUNS, help="of each model that is clean")
    parser.add_argument(
        "--model-seconds", type=float, default=MODEL_S, help="for the runs of each model"
    )
    parser.add_argument("--clean", nargs="*", metavar="MODEL", help="clean models only")
    parser.add_argument("--programs", action="store_true", help="programs only")
    parser.add_argument(
        "--models", nargs="+", metavar="NAME", help="the models that are clean (default: all)"
    )
    options = parser.parse_args()
    wrong = 0
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for row, is_right in _rows(Path(folder), options):
            print(" | ".join(row), "" if is_right else "  <-- WRONG", flush=True)
            wrong += not is_right
            rows.append((row, is_right))
    if options.clean is None and not options.programs:
        machine = describe_machine(memdiag.__version__, onnxruntime.__version__, None)
        facts = f"{machine.cpu}, {machine.cpu_count} CPUs, onnxruntime {machine.onnxruntime}"
        runs = (
            f"up to {options.model_runs:,} runs of each model, as many as fit into"
            f" {format_duration(options.model_seconds)}"
        )
        header = ["what", "truth", "cases", "right", "verdicts", "growth a run"]
        replace_part("leaks", f"{facts}; {runs}.\n\n{table(header, grouped(rows))}", PAGE)
    print(f"{len(rows)} cases, {wrong} wrong")
    return 1 if wrong else 0


def grouped(rows: Sequence[tuple[list[str], bool]]) -> list[list[str]]:
    """Return a row for each kind of case, from the cells of each case and whether it is right."""
    cases_by_kind: dict[str, list[tuple[list[str], bool]]] = {}
    for cells, is_right in rows:
        cases_by_kind.setdefault(_kind_of(cells[0]), []).append((cells, is_right))
    return [
        [
            kind,
            _first_and_last([cells[1] for cells, _ in cases]),
            str(len(cases)),
            str(sum(is_right for _, is_right in cases)),
            ", ".join(
                f"{verdict} {count}"
                for verdict, count in Counter(cells[3] for cells, _ in cases).most_common()
            ),
            _first_and_last([cells[5] for cells, _ in cases if cells[5]]),
        ]
        for kind, cases in cases_by_kind.items()
    ]


def _kind_of(what: str) -> str:
    """Return the kind of a case: what it does, without its model and number."""
    if what.startswith("program: "):
        return what
    _, _, deed = what.partition(", ")
    return deed.lstrip("0123456789 ") or "models that nobody changed"


def _first_and_last(texts: list[str]) -> str:
    distinct = list(dict.fromkeys(texts))
    return " … ".join(distinct if len(distinct) < 3 else (distinct[0], distinct[-1]))


def _rows(folder: Path, options: argparse.Namespace) -> Iterator[tuple[list[str], bool]]:
    """Yield the cells of each case, and whether the verdict is right."""
    clean, runs = options.clean, options.runs
    if clean is None:
        model = folder / "linear.onnx"
        onnx.save(_model(), model)
        program = folder / "program.py"
        program.write_text(PROGRAM)
        of_model = folder / "program_of_model.py"
        of_model.write_text(PROGRAM_OF_MODEL)
        for case in PROGRAMS:
            started = time.monotonic()
            path = real_models()[case.model] if case.model else model
            of_case = [case.kind, str(case.nbytes), str(case.runs or runs), str(path)]
            script = of_model if case.model else program
            growth = leak_program([sys.executable, str(script), *of_case]).growth
            is_right = growth.verdict in case.verdicts and (
                not case.owners or growth.owner in case.owners
            )
            yield _cells(case.what, case.truth, growth, started), is_right
    if options.programs:
        return
    models = {} if clean else {**real_models(), **exported_models()}
    if options.models:
        models = {name: models[name] for name in options.models}
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
            growth = leak(
                path,
                **{"runs": options.model_runs, "duration_s": options.model_seconds, **arguments},
            )
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
        f"{growth.runs:,}",
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
