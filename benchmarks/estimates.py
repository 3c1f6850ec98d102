"""How far estimates are from measurements: ``python -m benchmarks.estimates``.

Real models and exported public architectures are loaded and run under six releases of onnxruntime,
with embedded and with external weights, at up to three sizes, and each measurement is compared with
`memdiag.estimate`. A third of the models, chosen at random before the estimates were built, was
never looked at while they were built (`HELD_OUT`); it is reported apart, as is the release that was
published after most of it was built.

Measurements are kept in ``.cache/estimates``, or below the folder in ``MEMDIAG_CACHE``, so that a
second run makes the missing ones only. ``--measure`` makes them and compares nothing.
"""

import argparse
import json
import os
import random
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import onnx

import memdiag
from benchmarks.exported_models import exported_models
from benchmarks.real_models import real_models
from benchmarks.runtimes import runtime
from memdiag.errors import MemdiagError
from memdiag.model.axis_roles import axis_roles
from memdiag.model.model_file import open_model
from memdiag.ort.activations import choose_dimensions
from memdiag.records.profile import Profile

_DEFAULT_CACHE = Path(__file__).parents[1] / ".cache"

VERSIONS = ("1.20.1", "1.22.1", "1.24.4", "1.28.0", "1.31.1", "1.32.0")
PINNED = {"MALLOC_MMAP_THRESHOLD_": str(128 << 10)}
RUNS = 3
"""Runs after the first one: the second run takes the blocks that the first one planned."""

EXTERNAL_MIN_BYTES = 1024
"""Weights of fewer bytes stay in the model file."""


def held_out(names: Sequence[str]) -> frozenset[str]:
    """Return the third of the models at which nobody looked while the estimates were built."""
    ordered = sorted(names)
    return frozenset(random.Random(20261124).sample(ordered, len(ordered) // 3))


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


def models() -> dict[str, Path]:
    """Return the paths of all models by name, fetched and exported where missing."""
    return {**real_models(), **exported_models()}


def cases(versions: Sequence[str], names: Sequence[str] = ()) -> Iterator[Case]:
    """Yield all cases: sizes and storage with malloc pinned, and one case as glibc comes."""
    for name, path in models().items():
        if names and name not in names:
            continue
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
        usual = choose_dimensions(model, {}).of
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
    kept = _folder() / case.onnxruntime / f"{case.key}.json"
    if kept.exists():
        found: dict[str, Any] = json.loads(kept.read_text())
        return found
    try:
        profile = memdiag.profile(
            case.path,
            runs=RUNS,
            dims=case.sizes,
            environment=PINNED if case.is_pinned else None,
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
        "steady_anonymous": profile.steady.anonymous_bytes,
        "steady_file": profile.steady.file_bytes,
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
        location="weights.bin",
        size_threshold=EXTERNAL_MIN_BYTES,
    )
    return target


def _folder() -> Path:
    return Path(os.environ.get("MEMDIAG_CACHE") or _DEFAULT_CACHE) / "estimates"


def main() -> int:
    """Measure what is missing and compare; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help="names of models; all by default")
    parser.add_argument("--measure", action="store_true", help="only measure")
    parser.add_argument("--releases", default=",".join(VERSIONS))
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    chosen = list(cases(options.releases.split(","), options.models))
    with ThreadPoolExecutor(options.jobs) as pool:
        for count, (case, found) in enumerate(zip(chosen, pool.map(measure, chosen), strict=True)):
            if "error" in found:
                print(f"{case.onnxruntime} {case.key}: {found['error']}", file=sys.stderr)
            print(f"\r{count + 1} of {len(chosen)}", end="", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
