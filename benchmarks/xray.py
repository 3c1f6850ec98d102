"""How fast the memory X-ray is, and how much it names: ``python -m benchmarks.xray``.

A process that memdiag did not start holds a session; raw reading (by one thread, and by as many as
the X-ray scans with), the X-ray that compares every byte and the one that samples take turns on it.
The share of resident bytes with an owner is set next to what the runtime's own profile and memray
say of the same model. The figures go to ``benchmarks/README.md``.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

import memdiag
from benchmarks.readme import replace_part, table
from benchmarks.real_models import real_models
from benchmarks.statistics import interleave, spread
from memdiag.attribution.address_space import read_address_space
from memdiag.attribution.process_memory import READ_CHUNK_BYTES, ProcessMemory
from memdiag.attribution.scan import MAX_SCAN_THREADS, SPAN_BYTES
from memdiag.runner.machine import describe_machine
from sample_models import load_recipes

MB = 1e6

SERVER = """
import ctypes, sys
import onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
ctypes.CDLL(None).malloc_trim(0)
print("ready", flush=True)
sys.stdin.read()
"""

# In a process of its own, so that its peak is the X-ray's alone.
XRAY = """
import json, resource, sys, time
import memdiag
started = time.perf_counter()
found = memdiag.xray(int(sys.argv[1]), sys.argv[2])
seconds = time.perf_counter() - started
timing = found.timing
print(json.dumps({
    "seconds": seconds,
    "scan": timing.scanned_bytes / timing.scan_s,
    "copies": len(found.copies),
    "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
}))
"""

PROFILED = """
import json, sys
import onnxruntime
options = onnxruntime.SessionOptions()
options.enable_profiling = True
options.profile_file_prefix = sys.argv[2]
session = onnxruntime.InferenceSession(
    sys.argv[1], options, providers=["CPUExecutionProvider"]
)
import numpy
feeds = dict(numpy.load(sys.argv[3]))
session.run(None, feeds)
print(session.end_profiling())
"""


class Speed(NamedTuple):
    """One X-ray, or one raw reading: seconds, bytes a second, and the reader's peak in bytes."""

    seconds: float
    rate: float
    peak: float


@contextmanager
def serving(model: Path) -> Iterator[int]:
    """A process with a session of `model`."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(model)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid


def raw(pid: int, threads: int) -> Speed:
    """Read all anonymous resident memory, each thread its part, and do nothing with it."""
    with ProcessMemory(pid) as memory, ThreadPoolExecutor(threads) as pool:
        ranges = read_address_space(pid).anonymous

        def part(number: int) -> int:
            buffer = np.empty(READ_CHUNK_BYTES, np.uint8)
            spans = [
                (at, min(at + SPAN_BYTES, end))
                for start, end in ranges.tolist()
                for at in range(start, end, SPAN_BYTES)
            ]
            mine = np.array(spans[number::threads]).reshape(-1, 2)
            return sum(nbytes for _, nbytes in memory.iter_chunks(mine, buffer))

        started = time.perf_counter()
        total = sum(pool.map(part, range(threads)))
        seconds = time.perf_counter() - started
    return Speed(seconds, total / seconds, 0.0)


def take_xray(pid: int, model: Path) -> Speed:
    """X-ray a process from a process of its own."""
    finished = subprocess.run(
        [sys.executable, "-c", XRAY, str(pid), str(model)],
        check=True,
        capture_output=True,
        text=True,
    )
    reported = json.loads(finished.stdout)
    return Speed(reported["seconds"], reported["scan"], reported["peak"])


def speed_part(model: Path, rounds: int) -> str:
    """Return the table of speeds on one process."""
    with serving(model) as pid:
        resident = read_address_space(pid).resident_bytes
        subjects: dict[str, Callable[[], Speed]] = {
            "raw reading": partial(raw, pid, 1),
            f"raw reading, {MAX_SCAN_THREADS} threads": partial(raw, pid, MAX_SCAN_THREADS),
            "X-ray, every byte compared": partial(take_xray, pid, model),
        }
        results = interleave(subjects, rounds)
    rows = []
    for name, speeds in results.items():
        shares = [
            speed.rate / base.rate
            for speed, base in zip(speeds, results["raw reading"], strict=True)
        ]
        rows.append(
            [
                name,
                spread([speed.seconds for speed in speeds]).text(digits=2),
                spread([speed.rate / 1e9 for speed in speeds]).text(digits=2),
                "" if name == "raw reading" else spread(shares).text(digits=2),
                ""
                if name.startswith("raw")
                else spread([speed.peak / MB for speed in speeds]).text(),
            ]
        )
    head = ["", "seconds", "scanning, GB/s", "of raw reading", "memdiag's own peak RSS, MB"]
    return f"{resident / MB:,.0f} MB resident.\n\n{table(head, rows)}"


def named_part(models: dict[str, Path]) -> str:
    """Return the table of what has a name, next to the figures of the runtime and of memray."""
    rows = []
    for name, model in models.items():
        profile = memdiag.profile(model, runs=1)
        found = profile.attribution
        if found is None or found.baseline_bytes is None:
            rows.append([name, profile.outcome.message, "", "", "", "", ""])
            continue
        above = found.resident_bytes - found.baseline_bytes
        by_kind = {kind: found.bytes_of(kind) / MB for kind in ("weights", "other_heap")}
        without_heap = found.named_share - found.bytes_of("other_heap") / above
        rows.append(
            [
                name,
                f"{above / MB:.0f}",
                f"{found.named_share:.1%}",
                f"{without_heap:.1%}",
                f"{by_kind['weights']:.0f}",
                f"{by_kind['other_heap']:.0f}",
                f"{_runtime_says(model, profile) / above:.0%}",
                f"{_memray_says(model) / above:.0%}",
            ]
        )
        print(rows[-1], flush=True)
    return table(
        [
            "model",
            "above baseline, MB",
            "named",
            "named, other heap left out",
            "weights, MB",
            "other heap, MB",
            "runtime's profile",
            "memray's heap",
        ],
        rows,
    )


def _runtime_says(model: Path, profile: memdiag.Profile) -> float:
    """Return the largest arena that the runtime's own profile reports, in bytes."""
    from memdiag.model.inputs import make_array, plan_inputs
    from memdiag.model.model_file import open_model

    with tempfile.TemporaryDirectory() as folder:
        with open_model(model) as file:
            plans = plan_inputs(file, dims={}, given={})
            shapes = {model_input.name: model_input.shape for model_input in profile.inputs}
            arrays = {
                plan.name: make_array(plan, 0) for plan in plans if plan.shape == shapes[plan.name]
            }
            np.savez(f"{folder}/inputs.npz", **arrays)  # type: ignore[arg-type] # names are free
        words = [PROFILED, str(model), f"{folder}/profile", f"{folder}/inputs.npz"]
        finished = subprocess.run(
            [sys.executable, "-c", *words], capture_output=True, text=True, check=False
        )
        if finished.returncode:
            return float("nan")
        events = json.loads(Path(finished.stdout.split()[-1]).read_text())
    held = [int(event.get("args", {}).get("mem_arena_held", 0)) for event in events]
    return float(max(held, default=0))


def _memray_says(model: Path) -> float:
    """Return the peak of the heap that memray reports for session creation, in bytes."""
    script = "import onnxruntime, sys; onnxruntime.InferenceSession(sys.argv[1])"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "create.py").write_text(script)
        run = [sys.executable, "-m", "memray", "run", "--native", "-q", "-o", f"{folder}/out.bin"]
        subprocess.run([*run, f"{folder}/create.py", str(model)], check=True, capture_output=True)
        code = "import memray, sys; print(memray.FileReader(sys.argv[1]).metadata.peak_memory)"
        finished = subprocess.run(
            [sys.executable, "-c", code, f"{folder}/out.bin"],
            check=True,
            capture_output=True,
            text=True,
        )
    return float(finished.stdout)


def main() -> None:
    """Measure everything and write the figures into the README."""
    parser = argparse.ArgumentParser(description="How fast the X-ray is, and what it names.")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds (default 7)")
    rounds = parser.parse_args().rounds
    real = {
        name: path
        for name, path in real_models().items()
        if path.stat().st_size >= 20 * MB or name in ("light_vgg19", "light_bvlc_alexnet")
    }
    with tempfile.TemporaryDirectory() as folder:
        samples = {}
        for name, recipe in load_recipes().items():
            samples[name] = Path(folder, f"{name}.onnx")
            recipe.build(64, samples[name], False)
        tied = Path(folder, "tied_500.onnx")
        load_recipes()["tied_if"].build(500, tied, False)
        speed = speed_part(tied, rounds)
        named = named_part(samples | real)
    machine = describe_machine(memdiag.__version__, None, None)
    parts = [
        f"{machine.cpu}, {machine.cpu_count} processors, {machine.platform}; medians of {rounds}"
        " interleaved rounds, smallest and largest in brackets.",
        "### Speed, on tied_if at 500 MB",
        speed,
        "### What has a name",
        named,
    ]
    replace_part("xray", "\n\n".join(parts))


if __name__ == "__main__":
    main()
