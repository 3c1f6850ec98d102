"""Do the limits that ``memdiag limit`` suggests work? ``python -m benchmarks.limits``.

For each of five real models: the suggested limit must work in 20 of 20 new processes, and 0.85 ×
the smallest limit must fail in 20 of 20. Needs control groups (root, or a delegated group). The
table goes to ``docs/deployment.md``.
"""

import argparse
import sys
import time
from pathlib import Path

import onnxruntime

import memdiag
from benchmarks.readme import replace_part, table
from benchmarks.real_models import real_models
from memdiag.runner.machine import describe_machine
from memdiag.units import format_duration, format_size

PAGE = Path(__file__).parents[1] / "docs" / "deployment.md"
MODELS = ("minilm_int8", "ocr_detection", "ocr_recognition", "silero_vad", "smart_turn")
TRIALS = 20
FAILING = 0.85


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--trials", type=int, default=TRIALS)
    options = parser.parse_args()
    paths = real_models()
    rows, are_right = [], True
    for name in options.models:
        cells, is_right = measure(paths[name], options.trials)
        rows.append([name, *cells])
        are_right &= is_right
        print(" | ".join(rows[-1]), flush=True)
    header = [
        "model", "load", "search", "smallest", "no slowdown", "request", "limit",
        "works at the limit", f"fails at {FAILING} × the smallest", "killed",
    ]  # fmt: skip
    version = onnxruntime.__version__
    machine = describe_machine(memdiag.__version__, version, None)
    text = f"{machine.cpu_count} CPUs, onnxruntime {version}.\n\n{table(header, rows)}"
    if tuple(options.models) == MODELS and options.trials == TRIALS:
        replace_part("limits", text, PAGE)
    return 0 if are_right else 1


def measure(path: Path, trials: int) -> tuple[list[str], bool]:
    """Return the cells of a model, and whether both limits behaved in all trials."""
    started = time.monotonic()
    found = memdiag.limit(path)
    search_s = time.monotonic() - started
    assert found.smallest_bytes is not None, found.message
    below = round(FAILING * found.smallest_bytes)
    checked = memdiag.limit(path, at_bytes=[found.limit_bytes] * trials + [below] * trials)
    at_limit = [p for p in checked.limited if p.limit_bytes == found.limit_bytes]
    at_below = [p for p in checked.limited if p.limit_bytes == below]
    works = sum(point.is_completed for point in at_limit)
    failed = sum(not point.is_completed for point in at_below)
    killed = sum(point.outcome == "killed" for point in at_below)
    comfortable = found.comfortable_bytes
    cells = [
        format_duration(min(point.load_s or 0.0 for point in found.unlimited)),
        format_duration(search_s),
        format_size(found.smallest_bytes),
        "" if comfortable is None else format_size(comfortable),
        format_size(found.request_bytes),
        format_size(found.limit_bytes),
        f"{works} of {trials}",
        f"{failed} of {trials}",
        f"{killed} of {trials}",
    ]
    return cells, works == failed == trials


if __name__ == "__main__":
    sys.exit(main())
