"""What being watched costs, next to two peers: ``python -m benchmarks.overhead``.

Session creation is timed inside the process that creates the session, plain and under each
watcher, in interleaved rounds of one run. The peak of a spike is compared with the mark that the
kernel itself kept of it. The figures go to ``benchmarks/README.md``.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil

import memdiag
from benchmarks.readme import replace_part, table
from benchmarks.real_models import real_models
from benchmarks.statistics import interleave, spread
from memdiag.runner.job import Job, SessionConfig
from memdiag.runner.machine import describe_machine
from memdiag.runner.measured_child import MeasuredChild
from sample_models import load_recipes

MB = 1e6

# What a user would write without any tool; it prints its own time and high-water mark.
PLAIN = """
import sys, time
import onnxruntime
options = onnxruntime.SessionOptions()
started = time.perf_counter()
session = onnxruntime.InferenceSession(
    sys.argv[1], options, providers=["CPUExecutionProvider"]
)
seconds = time.perf_counter() - started
with open("/proc/self/status") as file:
    mark = next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
print(seconds, mark * 1024)
"""

# Stands in for onnxruntime: a run is a spike of 6 MB that is gone after some milliseconds, and
# writes the high-water mark that the kernel kept of it. The mark is reset by the watcher alone.
SPIKING_RUNTIME = """
import ctypes, mmap, os
__version__ = "0"
def set_default_logger_severity(level): pass
def get_available_providers(): return ["CPUExecutionProvider"]
class SessionOptions: log_severity_level = 0
class RunOptions: pass
class InferenceSession:
    def __init__(self, *args, **options): pass
    def get_providers(self): return []
    def get_outputs(self): return []
    def run(self, *args):
        area = mmap.mmap(-1, 6_000_000, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        view = ctypes.c_char.from_buffer(area)
        ctypes.memset(ctypes.addressof(view), 1, len(area))
        del view
        area.close()
        with open("/proc/self/status") as file:
            mark = next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
        with open(os.environ["MARKS"], "a") as file:
            file.write(f"{mark * 1024}\\n")
"""


class Creation(NamedTuple):
    """One session creation: its seconds, and the process's high-water mark in bytes."""

    seconds: float
    peak: float


def plain(model: Path) -> Creation:
    """Create a session with nobody watching."""
    return _creation("-c", PLAIN, str(model))


def under_memray(model: Path) -> Creation:
    """Create a session under ``memray run --native``."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "plain.py"
        script.write_text(PLAIN)
        words = ["-m", "memray", "run", "--native", "-q", "-o", f"{folder}/out.bin", str(script)]
        return _creation(*words, str(model))


def under_psutil(model: Path) -> Creation:
    """Create a session while a psutil sampler of 10 ms watches it; the peak is the sampler's."""
    with subprocess.Popen(
        [sys.executable, "-c", PLAIN, str(model)], stdout=subprocess.PIPE, text=True
    ) as process:
        largest = _sample_until_end(psutil.Process(process.pid))
        output, _ = process.communicate()
    return Creation(float(output.split()[0]), largest)


def under_memdiag(model: Path) -> Creation:
    """Create a session watched by memdiag: the phases from parse to prepack."""
    measured = MeasuredChild(Job(model=model, runs=None)).run()
    phases = [phase for phase in measured.phases if phase.name != "start"]
    peak = max(phase.peak_rss_bytes for phase in measured.phases)
    return Creation(sum(phase.duration_s for phase in phases), peak)


WATCHERS: dict[str, Callable[[Path], Creation]] = {
    "plain": plain,
    "memdiag": under_memdiag,
    "psutil, 10 ms": under_psutil,
    "memray --native": under_memray,
}


def _creation(*words: str) -> Creation:
    """Run the interpreter with `words`, of which the script prints its seconds and its mark."""
    finished = subprocess.run([sys.executable, *words], check=True, capture_output=True, text=True)
    seconds, peak = finished.stdout.split()[:2]
    return Creation(float(seconds), float(peak))


def _sample_until_end(process: psutil.Process) -> int:
    largest = 0
    while True:
        try:
            rss = process.memory_info().rss
        except psutil.Error:
            return largest
        if rss == 0:
            return largest
        largest = max(largest, rss)
        time.sleep(0.010)


def creation_part(models: dict[str, Path], rounds: int) -> str:
    """Return the table of session creation, plain and watched."""
    rows = []
    for title, model in models.items():
        subjects: dict[str, Callable[[], Creation]] = {
            name: partial(watch, model) for name, watch in WATCHERS.items()
        }
        results = interleave(subjects, rounds)
        for name, creations in results.items():
            pairs = list(zip(creations, results["plain"], strict=True))
            ratio = spread([mine.seconds / base.seconds for mine, base in pairs])
            more = spread([(mine.seconds - base.seconds) * 1000 for mine, base in pairs])
            peak = spread([(mine.peak - base.peak) / MB for mine, base in pairs])
            seconds = spread([creation.seconds * 1000 for creation in creations])
            alone = name == "plain"
            rows.append(
                [
                    title if alone else "",
                    name,
                    seconds.text(),
                    "" if alone else ratio.text(digits=3),
                    "" if alone else more.text(digits=2),
                    "" if alone else peak.text(digits=2),
                ]
            )
            print(" ".join(f"{cell:>24}" for cell in rows[-1]), flush=True)
    return table(
        ["model", "watched by", "creation, ms", "ratio", "difference, ms", "peak − plain's, MB"],
        rows,
    )


def spike_part(rounds: int) -> str:
    """Return what each watcher says of a spike's peak, against the mark the kernel kept."""
    durations: list[float] = []
    errors: dict[str, list[float]] = {"memdiag": [], "psutil, 10 ms": []}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "onnxruntime.py").write_text(SPIKING_RUNTIME)
            marks = Path(folder, "marks")
            environment = {"PYTHONPATH": folder, "MARKS": str(marks)}
            peer: list[int] = []
            sampler = threading.Thread(target=_sample_child, args=(peer,))
            sampler.start()
            session = SessionConfig(environment=environment)
            measured = MeasuredChild(Job(model=Path("none"), session=session, runs=1)).run()
            sampler.join()
            kernel = int(marks.read_text().split()[0])
        (phase,) = [phase for phase in measured.phases if phase.name == "first_run"]
        errors["memdiag"].append((phase.peak_rss_bytes - kernel) / MB)
        errors["psutil, 10 ms"].append((peer[0] - kernel) / MB)
        durations.append((measured.first_run_s or 0.0) * 1000)
        print(f"spike of {durations[-1]:.1f} ms: {errors}", flush=True)
    figures = table(
        ["watched by", "reported peak − the kernel's, MB"],
        [[name, spread(values).text(digits=3)] for name, values in errors.items()],
    )
    return f"A spike of 6 MB lasted {spread(durations).text(' ms')}.\n\n{figures}"


def _sample_child(largest: list[int]) -> None:
    """Wait for a child of ours, sample it every 10 ms until it ends, and add what was largest."""
    me = psutil.Process(os.getpid())
    while not (children := me.children()):
        time.sleep(0.001)
    largest.append(_sample_until_end(children[0]))


def help_part(rounds: int) -> str:
    """Return the table of the command line's start-up time."""

    def timed(*words: str) -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
        return (time.perf_counter() - started) * 1000

    results = interleave(
        {
            "python -c pass": lambda: timed("-c", "pass"),
            "memdiag --help": lambda: timed("-m", "memdiag", "--help"),
            "memdiag profile --help": lambda: timed("-m", "memdiag", "profile", "--help"),
            "python -c 'import onnxruntime'": lambda: timed("-c", "import onnxruntime"),
        },
        rounds,
    )
    rows = [[f"`{name}`", spread(values).text()] for name, values in results.items()]
    return table(["command", "ms"], rows)


def main() -> None:
    """Measure everything and write the figures into the README."""
    parser = argparse.ArgumentParser(description="What being watched costs.")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds (default 7)")
    rounds = parser.parse_args().rounds
    real = real_models()
    with tempfile.TemporaryDirectory() as folder:
        tied = Path(folder) / "tied_if.onnx"
        load_recipes()["tied_if"].build(500, tied, False)
        creation = creation_part(
            {
                "tied_if, 500 MB": tied,
                "light_densenet121 (many nodes)": real["light_densenet121"],
                "tashkeel_rawi (small)": real["tashkeel_rawi"],
            },
            rounds,
        )
    machine = describe_machine(memdiag.__version__, None, None)
    parts = [
        f"{machine.cpu}, {machine.cpu_count} processors, {machine.platform}; medians of {rounds}"
        " interleaved rounds, smallest and largest in brackets; ratios and differences are of the"
        " two in the same round.",
        "### Session creation",
        creation,
        "### The peak of a spike of some milliseconds",
        spike_part(rounds),
        "### Start-up of the command line",
        help_part(rounds),
    ]
    replace_part("overhead", "\n\n".join(parts))
    print(json.dumps({"written": "benchmarks/README.md"}))


if __name__ == "__main__":
    main()
