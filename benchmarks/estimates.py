"""How far estimates are from measurements: ``python -m benchmarks.estimates``.

Real models and exported public architectures are loaded and run under six releases of onnxruntime,
with embedded and with external weights, at up to three sizes, and each measurement is compared with
the estimate. `UNSEEN` are the models at whose errors nobody looked while the rules of the
estimates were written; they are reported apart, and by kind with ``--unseen``.

Measurements are kept in ``.cache/estimates``, or below the folder in ``MEMDIAG_CACHE``, so that a
second run makes the missing ones only. ``--measure`` makes them and compares nothing, ``--kept``
compares what was measured before; ``--fit``
prints the tables of ``memdiag/ort/overheads.py``, from the models that may be looked at. Otherwise
the tables of ``docs/estimates.md`` are written.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray

import memdiag
from benchmarks.exported_models import UNSEEN, exported_models
from benchmarks.readme import replace_part, table
from benchmarks.real_models import real_models
from benchmarks.runtimes import runtime
from memdiag.errors import MemdiagError
from memdiag.model.axis_roles import axis_roles
from memdiag.model.model_file import open_model
from memdiag.ort.activations import choose_dimensions
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.runtime import Runtime
from memdiag.ort.session_estimate import EstimatedSettings, SessionEstimate
from memdiag.records.estimate import EstimatedPoint
from memdiag.records.phases import PHASES, PhaseName
from memdiag.records.profile import Profile
from memdiag.units import MIB

_DEFAULT_CACHE = Path(__file__).parents[1] / ".cache"

DOCUMENT = Path(__file__).parents[1] / "docs" / "estimates.md"

SMALLEST_ERROR = MIB
"""A smaller error counts as none."""

BESIDE = ("runtime", "graph")
"""The terms that are fitted."""

VERSIONS = ("1.24.4", "1.28.0", "1.31.1", "1.32.0")
PINNED = {"MALLOC_MMAP_THRESHOLD_": str(128 << 10)}
RUNS = 3
"""Runs after the first one: the second run takes the blocks that the first one planned."""

WEIGHTS = "weights.bin"
EXTERNAL_MIN_BYTES = 1024
"""Weights of fewer bytes stay in the model file."""

_UNSEEN = frozenset(name for names in UNSEEN.values() for name in names)


class Case(NamedTuple):
    """One measurement.

    Attributes:
        model: the name of the model.
        path: the file.
        storage: ``embedded`` or ``external``.
        onnxruntime: the release.
        sizes_name, sizes: which of the sizes, and the free dimensions given.
        is_pinned: whether malloc returns large blocks at once.
    """

    model: str
    path: Path
    storage: str
    onnxruntime: str
    sizes_name: str
    sizes: dict[str, int]
    is_pinned: bool

    @property
    def key(self) -> str:
        """The name of its file."""
        pinned = "pinned" if self.is_pinned else "glibc"
        return f"{self.model}-{self.storage}-{self.sizes_name}-{pinned}"

    @property
    def kept(self) -> Path:
        """The file of its measurement."""
        return _folder() / self.onnxruntime / f"{self.key}.json"


def models(names: Sequence[str] = ()) -> dict[str, Path]:
    """Return the paths of models by name, fetched and exported where missing; of all without
    `names`."""
    real = real_models()
    exported = [name for name in names if name not in real]
    found = real if names and not exported else {**real, **exported_models(exported)}
    return {name: path for name, path in found.items() if not names or name in names}


def cases(versions: Sequence[str], names: Sequence[str] = ()) -> Iterator[Case]:
    """Yield all cases: sizes and storage with malloc pinned, and one case as glibc comes."""
    for name, path in models(names).items():
        external = _external(name, path)
        sizes = sizes_of(path)
        for version in versions:
            for sizes_name, chosen in sizes.items():
                yield Case(name, path, "embedded", version, sizes_name, chosen, True)
                if external is not None and sizes_name == "default":
                    yield Case(name, external, "external", version, sizes_name, chosen, True)
            yield Case(name, path, "embedded", version, "default", {}, False)


def sizes_of(path: Path) -> dict[str, dict[str, int]]:
    """Return up to three choices of the free dimensions, the default ones first."""
    with open_model(path) as model:
        roles = axis_roles(model.graph, model.functions)
        usual = choose_dimensions(model, {}).by_name
    batch = {key: 4 for key in usual if key in roles and roles[key].name == "batch"}
    others = {key: 2 * size for key, size in usual.items() if key not in batch}
    found: dict[str, dict[str, int]] = {"default": {}}
    if batch:
        found["batch 4"] = batch
    if others:
        found["doubled"] = others
    elif batch:
        found["batch 16"] = dict.fromkeys(batch, 16)
    return found


def measure(case: Case) -> dict[str, Any]:
    """Return the profile of a case as a dictionary, measured where it is not kept."""
    kept = case.kept
    if kept.exists():
        found: dict[str, Any] = json.loads(kept.read_text())
        return found
    if case.storage == "external":
        _evict(case.path.with_name(WEIGHTS))
    try:
        profile = memdiag.profile(
            case.path,
            runs=RUNS,
            dims=case.sizes,
            environment=PINNED if case.is_pinned else {},
            python=runtime(case.onnxruntime),
            xray="none",
            select=["MD301"],
        )
        found = _figures(profile)
    except MemdiagError as error:
        found = {"error": str(error)}
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(found, indent=1))
    return found


def _figures(profile: Profile) -> dict[str, Any]:
    if profile.outcome.status != "completed":
        return {"error": profile.outcome.message}
    return {
        "baseline": profile.baseline_rss_bytes,
        "peak": profile.peak_rss_bytes,
        "peak_phase": profile.peak_phase,
        "steady": profile.steady_rss_bytes,
        "retained": profile.allocator_retained_bytes,
        "inputs": {each.name: each.shape for each in profile.inputs},
        "phases": {
            phase.name: {
                "start": phase.start.rss_bytes,
                "end": phase.end.rss_bytes,
                "peak": phase.peak_rss_bytes,
                "kind": phase.peak_kind,
                "end_anonymous": phase.end.anonymous_bytes,
                "end_file": phase.end.file_bytes,
            }
            for phase in profile.phases
        },
        "spans": [
            [span.name, span.phase, span.start_rss_bytes, span.net_rss_bytes, span.peak_rss_bytes]
            for span in profile.spans
            if abs(span.net_rss_bytes) >= 1 << 16
            or span.peak_rss_bytes - span.start_rss_bytes >= 1 << 18
        ],
    }


def _external(name: str, path: Path) -> Path | None:
    """Return a copy of the model with external weights; None if it has no weights to speak of."""
    target = _folder() / "external" / name / f"{name}.onnx"
    if target.exists():
        return target
    model = onnx.load(path)
    if sum(len(weight.raw_data) for weight in model.graph.initializer) < 1 << 20:
        return None
    target.parent.mkdir(parents=True, exist_ok=True)
    onnx.save_model(
        model,
        target,
        save_as_external_data=True,
        location=WEIGHTS,
        size_threshold=EXTERNAL_MIN_BYTES,
    )
    return target


def _evict(path: Path) -> None:
    """Remove a file from the page cache.

    Of a file that was just written or read, Linux 6 keeps blocks of up to 2 MiB and maps whole ones
    around each row that a Gather reads; of one that is read by way of the mapping, 64 KiB.
    """
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _folder() -> Path:
    return Path(os.environ.get("MEMDIAG_CACHE") or _DEFAULT_CACHE) / "estimates"


class Comparison(NamedTuple):
    """A case with its measured figures and its estimate.

    Attributes:
        case: the case.
        measured: the figures of the measurement.
        estimate: the estimate at the same sizes.
        node_count: the nodes of the model.
        executed_count: the nodes that a run executes.
    """

    case: Case
    measured: dict[str, Any]
    estimate: EstimatedPoint
    node_count: int
    executed_count: int

    @property
    def peak(self) -> int:
        """The measured peak above the process before the session, in bytes."""
        return int(self.measured["peak"] - self.measured["baseline"])

    @property
    def error(self) -> float:
        """The error of the peak of the process; 0 up to `SMALLEST_ERROR`."""
        return self.relative(self.estimate.peak_bytes - self.peak, self.measured["peak"])

    @property
    def is_inside(self) -> bool:
        """Whether the measured peak is inside the interval for its malloc."""
        point = self.estimate
        high = point.pinned_high_bytes if self.case.is_pinned else point.high_bytes
        return point.low_bytes <= self.peak <= high

    @property
    def names_phase(self) -> bool:
        """Whether the phase that was named has the peak, or as much but for `SMALLEST_ERROR`."""
        phase = self.measured["phases"].get(self.estimate.peak_phase, {"peak": 0})
        return bool(phase["peak"] >= self.measured["peak"] - SMALLEST_ERROR)

    def phase_errors(self) -> Iterator[float]:
        """Yield the error of the peak of each phase."""
        base = self.measured["baseline"]
        for phase in self.estimate.phases:
            measured = self.measured["phases"].get(phase.name)
            if measured is not None:
                yield self.relative(phase.peak_bytes + base - measured["peak"], measured["peak"])

    @staticmethod
    def relative(difference: int, measured: int) -> float:
        """Return a difference as a share; 0 up to `SMALLEST_ERROR`."""
        return 0.0 if abs(difference) <= SMALLEST_ERROR else abs(difference) / measured


def compare(chosen: Sequence[Case]) -> Iterator[Comparison]:
    """Yield the cases that were measured, with their estimates."""
    for case in chosen:
        measured = measure(case)
        if "error" in measured:
            continue
        with open_model(case.path) as model:
            sizes = choose_dimensions(model, case.sizes).by_name
            runtime = Runtime.parse(case.onnxruntime)
            ctx = AnalysisContext(model, runtime, sizes=sizes, reads_weights=False)
            estimate = SessionEstimate(ctx, EstimatedSettings(runs=RUNS)).at(sizes)
            executed = len(ctx.run(sizes).steps)
            yield Comparison(case, measured, estimate, model.node_count, executed)


def fit(found: Sequence[Comparison]) -> str:
    """Return the tables of `memdiag.ort.overheads` as Python, fitted to the comparisons.

    For each phase the rest that no other term explains is a constant, and a share for each node of
    the model and each executed node, none of them negative, with the smallest sum of absolute
    errors, by iteratively reweighted least squares.
    """
    lines = ["OVERHEADS: dict[Runtime, dict[PhaseName, Overhead]] = {"]
    baselines = []
    for version in sorted({each.case.onnxruntime for each in found}, key=Runtime.parse):
        runtime = Runtime.parse(version)
        rows = [
            each
            for each in found
            if each.case.onnxruntime == version
            and each.case.sizes_name == "default"
            and each.case.is_pinned
        ]
        release = f"Runtime({runtime.major}, {runtime.minor})"
        baseline = statistics.median(each.measured["baseline"] for each in rows)
        baselines.append(f"    {release}: {round(baseline):_},")
        lines.append(f"    {release}: {{")
        for name in PHASES[1:]:
            line = _line(runtime, name, rows)
            if line:
                figures = ", ".join(f"{each:_}" for each in line)
                lines.append(f'        "{name}": Overhead({figures}),')
        lines.append("    },")
    return "\n".join([*lines, "}", "", "BASELINES: dict[Runtime, int] = {", *baselines, "}"])


def _line(runtime: Runtime, name: PhaseName, rows: Sequence[Comparison]) -> list[int]:
    """Return the coefficients of `Overhead`; none if no model has the phase."""
    counts, rests = [], []
    for each in rows:
        # Architectures whose weights are all equal are not typical.
        if name not in each.measured["phases"] or each.case.model.startswith("light_"):
            continue
        for phase in each.estimate.phases:
            if phase.name == name:
                known = sum(term.bytes for term in phase.kept_terms if term.name not in BESIDE)
                kept = each.measured["phases"][name]["end"] - each.measured["baseline"]
                counts.append((1, each.node_count, each.executed_count))
                rests.append(kept - known)
    if not rests:
        return []
    columns, rest = np.array(counts, float), np.array(rests, float)
    used = [0, 1, 2]
    while True:
        solution = _smallest_errors(columns[:, used], rest)
        if min(solution) >= 0:
            return [round(solution[used.index(i)]) if i in used else 0 for i in range(3)]
        used.pop(int(np.argmin(solution)))


def _smallest_errors(columns: NDArray[np.float64], rest: NDArray[np.float64]) -> list[float]:
    weights = np.ones_like(rest)
    for _ in range(60):
        solution = np.linalg.lstsq(columns * weights[:, None], rest * weights, rcond=None)[0]
        errors = np.abs(rest - columns @ solution)
        weights = 1 / np.sqrt(np.maximum(errors, 0.1 * MIB))
    return [float(each) for each in solution]


def tables(found: Sequence[Comparison]) -> str:
    """Return the tables of ``docs/estimates.md``."""
    pinned = [each for each in found if each.case.is_pinned]
    headings = [
        *("models", "onnxruntime", "number", "cases", "median", "90 % within", "worst"),
        *("each phase, 90 %", "phase named", "inside the interval"),
    ]
    rows = []
    for title, is_apart in (("unseen", True), ("others", False)):
        part = [each for each in pinned if (each.case.model in _UNSEEN) == is_apart]
        for version in [*VERSIONS, "all"]:
            chosen = [each for each in part if version in (each.case.onnxruntime, "all")]
            if chosen:
                rows.append([title, version, *_summary(chosen)])
    parts = [table(headings, rows)]
    loose = [each for each in found if not each.case.is_pinned]
    for title, is_apart in (("unseen models", True), ("the others", False)):
        part = [each for each in loose if (each.case.model in _UNSEEN) == is_apart]
        if part:
            parts.append(_as_glibc_comes(title, part))
    misses = [each for each in pinned if each.error > 0.05]
    parts.append(f"{len(misses)} of {len(pinned)} peaks are more than 5 % off:")
    parts.append(_misses(misses))
    return "\n\n".join(parts)


def unseen_tables(found: Sequence[Comparison]) -> str:
    """Return the figures of the unseen models by kind, as ``docs/estimates.md`` has them."""
    headings = [
        *("kind", "models", "cases", "median", "90 % within", "worst"),
        *("inside the interval", "as glibc comes, inside", "above"),
    ]
    certain = [each for each in found if not each.estimate.unknown_values]
    rows = []
    for kind, names in [*UNSEEN.items(), ("all", tuple(_UNSEEN))]:
        part = [each for each in certain if each.case.model in names]
        pinned = [each for each in part if each.case.is_pinned]
        loose = [each for each in part if not each.case.is_pinned]
        if pinned:
            errors = [each.error for each in pinned]
            rows.append(
                [
                    kind,
                    str(len({each.case.model for each in pinned})),
                    str(len(pinned)),
                    f"{statistics.median(errors):.1%}",
                    f"{np.quantile(errors, 0.9):.1%}",
                    f"{max(errors):.0%}",
                    f"{sum(each.is_inside for each in pinned)} of {len(pinned)}",
                    f"{sum(each.is_inside for each in loose)} of {len(loose)}",
                    str(sum(each.peak > each.estimate.high_bytes for each in loose)),
                ]
            )
    parts = [table(headings, rows)]
    uncertain = [
        [
            f"`{each.case.model}`",
            each.case.sizes_name,
            str(each.estimate.unknown_values),
            f"{each.estimate.low_bytes / MIB:.0f}",
            f"{each.peak / MIB:.0f}",
            "none" if each.estimate.is_floor else f"{each.estimate.pinned_high_bytes / MIB:.0f}",
        ]
        for each in found
        if each.estimate.unknown_values and each.case.is_pinned and each.case.storage == "embedded"
    ]
    if uncertain:
        headings = ["model", "sizes", "missing values", "from, MiB", "measured", "to"]
        parts += ["Values whose sizes only a run shows:", table(headings, uncertain)]
    misses = [each for each in certain if each.case.is_pinned and each.error > 0.05]
    if misses:
        parts.append(f"{len(misses)} peaks are more than 5 % off:")
        parts.append(_misses(misses))
    return "\n\n".join(parts)


def _misses(found: Sequence[Comparison]) -> str:
    """Return a row for each model, with its largest error."""
    by_model: dict[str, list[Comparison]] = {}
    for each in sorted(found, key=lambda each: -each.error):
        by_model.setdefault(each.case.model, []).append(each)
    return table(
        ["model", "unseen", "cases", "worst", "estimated − measured, MiB", "of which"],
        [
            [
                f"`{model}`",
                "yes" if model in _UNSEEN else "",
                str(len(each)),
                f"{each[0].error:.0%}",
                f"{(each[0].estimate.peak_bytes - each[0].peak) / MIB:+.1f}",
                ", ".join(each[0].case[2:5]),
            ]
            for model, each in by_model.items()
        ],
    )


def _as_glibc_comes(title: str, found: Sequence[Comparison]) -> str:
    inside = statistics.mean(each.is_inside for each in found)
    above = statistics.mean(each.peak > each.estimate.high_bytes for each in found)
    margin = statistics.median(each.estimate.high_bytes / each.peak - 1 for each in found)
    kept = statistics.median(each.peak / each.estimate.peak_bytes - 1 for each in found)
    return (
        f"With malloc as glibc comes, {inside:.0%} of {len(found)} peaks of {title} are inside the"
        f" interval, and {above:.1%} above it. Its upper end is {margin:.0%} above the measured"
        f" peak in the median, and the measured peak {kept:.0%} above the estimate."
    )


def _summary(found: Sequence[Comparison]) -> list[str]:
    errors = [each.error for each in found]
    phases = [error for each in found for error in each.phase_errors()]
    return [
        str(len({each.case.model for each in found})),
        str(len(found)),
        f"{statistics.median(errors):.1%}",
        f"{np.quantile(errors, 0.9):.1%}",
        f"{max(errors):.0%}",
        f"{np.quantile(phases, 0.9):.1%}",
        f"{statistics.mean(each.names_phase for each in found):.0%}",
        f"{statistics.mean(each.is_inside for each in found):.0%}",
    ]


def main() -> int:
    """Measure what is missing and compare; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help="names of models; all by default")
    parser.add_argument("--measure", action="store_true", help="only measure")
    parser.add_argument("--fit", action="store_true", help="print memdiag/ort/overheads.py")
    parser.add_argument("--kept", action="store_true", help="only compare what was measured before")
    parser.add_argument("--unseen", action="store_true", help="only the unseen models, by kind")
    parser.add_argument("--releases", default=",".join(VERSIONS))
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    names = options.models or (sorted(_UNSEEN) if options.unseen else ())
    chosen = [
        case
        for case in cases(options.releases.split(","), names)
        if not options.kept or case.kept.exists()
    ]
    for version in {case.onnxruntime for case in chosen if not case.kept.exists()}:
        # Of a library that was just installed, larger blocks are mapped: 10 MiB more at once.
        for library in runtime(version).parents[1].glob("lib/python*/site-packages/*/capi/*.so*"):
            _evict(library)
    with ThreadPoolExecutor(options.jobs) as pool:
        for count, (case, found) in enumerate(zip(chosen, pool.map(measure, chosen), strict=True)):
            if "error" in found and options.measure:
                print(f"{case.onnxruntime} {case.key}: {found['error']}", file=sys.stderr)
            print(f"\r{count + 1} of {len(chosen)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    if options.measure:
        return 0
    if options.fit:
        print(fit(list(compare([each for each in chosen if each.model not in _UNSEEN]))))
        return 0
    part, write = ("unseen", unseen_tables) if options.unseen else ("accuracy", tables)
    text = write(list(compare(chosen)))
    replace_part(part, text, DOCUMENT)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
