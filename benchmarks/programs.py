"""What a program costs under ``memdiag run``: ``python -m benchmarks.programs``.

The same program runs plain and recorded, in interleaved rounds. It measures itself: CPU time of
10,000 short runs (all threads of the process), seconds of a creation, resident memory. What memdiag
itself takes next to the program is the CPU time of the whole command minus that of the program. The
figures go to ``benchmarks/README.md``.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import onnx

import memdiag
from benchmarks.readme import replace_part, table
from benchmarks.statistics import interleave, spread
from memdiag.programs.recorder import STARTUP_FOLDER
from memdiag.runner.machine import describe_machine

T = TypeVar("T")

RUNS = 10_000
CREATIONS = 21
SIZE = 512
ROWS = 64
SMALL = """<ir_version: 8, opset_import: ["": 17]>
small (float[n] x) => (float[n] y) { y = Relu(x) }"""

PROGRAM = f"""
import json, statistics, sys, time
import numpy as np
import onnxruntime


def create():
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    started = time.perf_counter()
    session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
    return session, time.perf_counter() - started


create()
session, _ = create()
feeds = {{"x": np.ones(({ROWS}, {SIZE}), np.float32)}}
for _ in range(100):
    session.run(None, feeds)
started = time.process_time()
for _ in range({RUNS}):
    session.run(None, feeds)
runs_s = time.process_time() - started
with open("/proc/self/status") as file:
    rss = next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
creation_s = statistics.median(create()[1] for _ in range({CREATIONS}))
small = onnxruntime.InferenceSession(sys.argv[2], providers=["CPUExecutionProvider"])
feeds = {{"x": np.ones(8, np.float32)}}
small_runs = []
for _ in range(20):
    started = time.process_time()
    for _ in range(1000):
        small.run(None, feeds)
    small_runs.append((time.process_time() - started) / 1000)
found = {{
    "runs_s": runs_s,
    "creation_s": creation_s,
    "rss_bytes": rss << 10,
    "small_run_s": statistics.median(small_runs),
}}
json.dump(found, open(sys.argv[3], "w"))
"""


class Cost(NamedTuple):
    """What one run of the program took.

    Attributes:
        runs_s: CPU seconds of the runs.
        creation_s: seconds of a creation, the median of several.
        rss_bytes: the resident set at the end.
        small_run_s: CPU seconds of a run of a model with one node of eight elements, the median of
            several.
        other_s: CPU seconds of everything else that the command started, memdiag included.
    """

    runs_s: float
    creation_s: float
    rss_bytes: int
    small_run_s: float
    other_s: float


def measure(program: Path, folder: Path, *, recorded: bool) -> Cost:
    result = folder / "result.json"
    models = [str(folder / "short.onnx"), str(folder / "small.onnx")]
    command = [sys.executable, str(program), *models, str(result)]
    if recorded:
        out = ["--no-xray", "--quiet", "--out", str(folder / "out")]
        command = [sys.executable, "-m", "memdiag", "run", *out, "--", *command]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    found = json.loads(result.read_text())
    total_s = usage.ru_utime + usage.ru_stime
    return Cost(**found, other_s=total_s - found["runs_s"])


def start_up(*, hooked: bool) -> float:
    """Return the CPU seconds of a Python process that does nothing."""
    environment = dict(os.environ)
    if hooked:
        environment |= {"PYTHONPATH": str(STARTUP_FOLDER), "MEMDIAG_RUN_ADDRESS": "@nobody#secret"}
    process = subprocess.Popen([sys.executable, "-c", "pass"], env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


def build(path: Path) -> None:
    """Write a model with three products, which runs for about a millisecond."""
    names = ["x", "a", "b", "y"]
    body = " ".join(
        f"{out} = MatMul({name}, w{number})"
        for number, (name, out) in enumerate(itertools.pairwise(names))
    )
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> short (float[n, {SIZE}] x) =>'
        f" (float[n, {SIZE}] y) {{ {body} }}"
    )
    generator = np.random.default_rng(0)
    for number in range(3):
        weight = generator.standard_normal((SIZE, SIZE), np.float32) / SIZE
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, f"w{number}"))
    onnx.save(model, path)


def _spreads(found: Mapping[str, list[T]], figure: Callable[[T], float], unit: str) -> list[str]:
    """Return the spread of a figure of each subject."""
    return [spread([figure(each) for each in values]).text(unit, 2) for values in found.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = folder / "program.py"
        program.write_text(PROGRAM)
        build(folder / "short.onnx")
        onnx.save(onnx.parser.parse_model(SMALL), folder / "small.onnx")
        subjects: dict[str, Callable[[], Cost]] = {
            "plain": partial(measure, program, folder, recorded=False),
            "recorded": partial(measure, program, folder, recorded=True),
        }
        costs = interleave(subjects, rounds)
        starts = interleave(
            {"plain": partial(start_up, hooked=False), "recorded": partial(start_up, hooked=True)},
            rounds * 5,
        )
    pairs = zip(costs["plain"], costs["recorded"], strict=True)
    ratios = [recorded.runs_s / plain.runs_s for plain, recorded in pairs]
    rows = [
        [f"CPU time of {RUNS:,} runs", *_spreads(costs, lambda cost: cost.runs_s, " s")],
        [
            "CPU time of a run of one small node",
            *_spreads(costs, lambda cost: 1e6 * cost.small_run_s, " µs"),
        ],
        ["a creation", *_spreads(costs, lambda cost: 1e3 * cost.creation_s, " ms")],
        ["resident set of the program", *_spreads(costs, lambda cost: cost.rss_bytes / 1e6, " MB")],
        ["CPU time outside of the runs", *_spreads(costs, lambda cost: cost.other_s, " s")],
        ["CPU time of `python -c pass`", *_spreads(starts, lambda seconds: 1e3 * seconds, " ms")],
        ["ratio of the runs, by pairs", "", spread(ratios).text(digits=4)],
    ]
    machine = describe_machine(memdiag.__version__, None, None)
    text = table(["", "plain", "under memdiag run"], rows)
    print(text)
    replace_part("programs", f"{machine.cpu}, {rounds} interleaved rounds.\n\n{text}")


if __name__ == "__main__":
    main()
