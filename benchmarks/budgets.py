"""How well budgets' figures repeat: ``python -m benchmarks.budgets``.

Each model is profiled in fresh processes, in turn as glibc is and with its threshold pinned, as
budgets are measured; a breach is decided by several. The figures go to ``docs/pytest.md``.
"""

import argparse
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import memdiag
from benchmarks.readme import replace_part, table
from benchmarks.real_models import real_models
from benchmarks.statistics import interleave
from memdiag.budgets.figures import BUDGET_PHASES, aggregate_figures, figures_of
from memdiag.defaults import BUDGET_REPEATS, PINNED_ENVIRONMENT
from memdiag.records.profile import Profile
from memdiag.runner.machine import describe_machine
from memdiag.units import format_size
from sample_models import load_recipes

_REAL = ("light_resnet50", "minilm_int8", "ocr_recognition", "silero_vad")
_SAMPLE_MB = 64
PAGE = Path(__file__).parents[1] / "docs" / "pytest.md"


def main() -> None:
    """Measure, and write the table into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    rounds = parser.parse_args().rounds
    load = os.getloadavg()[0]
    available = real_models()
    with tempfile.TemporaryDirectory() as folder:
        sample = Path(folder) / "tied_if.onnx"
        load_recipes()["tied_if"].build(_SAMPLE_MB, sample, False)
        rows = [
            row
            for path in (sample, *(available[name] for name in _REAL))
            for row in measure(path, rounds)
        ]
    place = describe_machine(memdiag.__version__, None, None)
    runtime = memdiag.profile(available[_REAL[-1]], run=False, xray="none").environment.onnxruntime
    heading = (
        f"{rounds} new processes each, interleaved; onnxruntime {runtime}, {place.cpu},"
        f" {place.cpu_count} processors under a load of {load:.0f}."
        " The largest distance from the median:"
    )
    columns = ["model", "malloc", "peak", "", "steady", "", "worst phase"]
    replace_part("repeatability", f"{heading}\n\n{table(columns, rows)}", PAGE)


def measure(path: Path, rounds: int) -> list[list[str]]:
    """Return the rows of one model: as glibc is, pinned, and over several processes."""
    once = partial(memdiag.profile, path, xray="none")
    subjects: dict[str, Callable[[], Profile]] = {
        "as it is": partial(once, environment={}),
        "pinned": partial(once, environment=PINNED_ENVIRONMENT),
    }
    found = interleave(subjects, rounds)
    figures = {
        name: [figures_of(profile) for profile in profiles] for name, profiles in found.items()
    }
    pinned = found["pinned"]
    starts = range(0, rounds - BUDGET_REPEATS + 1, BUDGET_REPEATS)
    figures[f"pinned, {BUDGET_REPEATS} settle it"] = [
        aggregate_figures(pinned[start : start + BUDGET_REPEATS]) for start in starts
    ]
    return [[path.stem, name, *distances(each)] for name, each in figures.items()]


def distances(each: Sequence[Mapping[str, int]]) -> list[str]:
    """Return the medians of peak and steady state with their spread, and the spread of phases."""

    def distance(name: str) -> tuple[int, int]:
        values = [figures[name] for figures in each if name in figures]
        middle = round(median(values))
        return max(abs(value - middle) for value in values), middle

    cells: list[str] = []
    for name in ("peak", "steady"):
        farthest, middle = distance(name)
        cells += [format_size(middle), f"±{farthest / middle:.1%} ({format_size(farthest)})"]
    worst = max(distance(name)[0] for name in BUDGET_PHASES if name in each[0])
    return [*cells, f"±{format_size(worst)}"]


if __name__ == "__main__":
    main()
