"""What moved between two releases of onnxruntime: ``python -m benchmarks.new_release``.

``--python NEW`` names an interpreter with the new release, ``--before OLD`` one with the old one
(default: that of memdiag). Neither needs memdiag. Prints Markdown: options, configuration
keys, operators and providers that only one release has; and for each sample model the phases and
graph transformers that only one log has, the kinds and sizes of copies of weights (packed ones
included), and memory that differs by more than `NOISE_BYTES` and `NOISE_SHARE`.

``docs/new_release.md`` says what to do with the answers.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from memdiag import profile
from memdiag.records.profile import Profile
from memdiag.units import format_size
from sample_models import load_recipes

MODELS = ("crnn", "matmul_nbits", "plain_mlp", "qdq_matmul", "subgraph_weights", "tied_if")
"""The sample models: products in each precision, convolutions, recurrences and subgraphs."""

MEGABYTES = 8
NOISE_BYTES = 1 << 20
NOISE_SHARE = 0.02

Facts = Mapping[str, Sequence[str]]

_FACTS = r"""
import json, pathlib, re
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as state

def public(instance):
    return sorted(name for name in dir(instance) if not name.startswith("_"))

keys = set()
pattern = re.compile(rb"(?<![\w.])(?:session|optimization|memory|mlas|ep)\.[a-z0-9_.]{3,80}(?=\0)")
for path in pathlib.Path(onnxruntime.__file__).parent.rglob("*.so*"):
    keys.update(found.decode() for found in pattern.findall(path.read_bytes()))
print(json.dumps({
    "session options": public(onnxruntime.SessionOptions()),
    "run options": public(onnxruntime.RunOptions()),
    "configuration keys": sorted(keys),
    "operators": sorted({
        f"{each.domain or 'ai.onnx'} {each.name} {each.since_version}"
        for each in state.get_all_operator_schema()
    }),
    "providers": onnxruntime.get_all_providers(),
}))
"""
"""A program that prints what a release has, for its own interpreter."""


def facts_of(python: Path) -> Facts:
    """Return the names that the release of an interpreter has, by their kind."""
    done = subprocess.run([python, "-c", _FACTS], capture_output=True, text=True, check=True)
    facts: Facts = json.loads(done.stdout)
    return facts


def changed_names(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """Return a line for each name that is in one of two lists: ``+ new`` or ``- old``."""
    new = [f"+ `{name}`" for name in sorted(set(after) - set(before))]
    return new + [f"- `{name}`" for name in sorted(set(before) - set(after))]


def changed_profile(before: Profile, after: Profile) -> list[str]:
    """Return a sentence for each difference of two profiles of a model."""
    lines = []
    if before.outcome.status != after.outcome.status:
        statuses = f"{before.outcome.status} → {after.outcome.status}"
        lines.append(f"outcome: {statuses} {after.outcome.message}".rstrip())
    phases = [[phase.name for phase in each.phases] for each in (before, after)]
    lines += [f"phase {line}" for line in changed_names(*phases)]
    steps = [[span.name for span in each.spans] for each in (before, after)]
    lines += [f"step of the log {line}" for line in changed_names(*steps)]
    copies = [_copies(each) for each in (before, after)]
    for key in sorted(set(copies[0]) | set(copies[1])):
        old, new = (each.get(key, 0) for each in copies)
        if old != new:
            lines.append(f"copies in the layout {key}: {format_size(old)} → {format_size(new)}")
    figures = {
        f"peak of {phase.name}": (phase.peak_rss_bytes - before.baseline_rss_bytes, found)
        for phase in before.phases
        if (found := _peak(after, phase.name)) is not None and phase.name != "start"
    }
    if before.steady_rss_bytes is not None and after.steady_rss_bytes is not None:
        steady = (each.steady_rss_bytes or 0 for each in (before, after))
        old, new = (
            size - each.baseline_rss_bytes
            for size, each in zip(steady, (before, after), strict=True)
        )
        figures["steady"] = (old, new)
    for name, (old, new) in figures.items():
        if abs(new - old) > max(NOISE_BYTES, NOISE_SHARE * old):
            lines.append(f"{name}: {format_size(old)} → {format_size(new)} above the baseline")
    return lines


def _peak(profile: Profile, name: str) -> int | None:
    for phase in profile.phases:
        if phase.name == name:
            return phase.peak_rss_bytes - profile.baseline_rss_bytes
    return None


def _copies(profile: Profile) -> Mapping[str, int]:
    """Return the bytes of all copies by their layout."""
    sizes: Counter[str] = Counter()
    for copy in profile.attribution.copies if profile.attribution is not None else ():
        sizes[copy.layout] += copy.bytes
    return sizes


def report(title: str, lines: Sequence[str]) -> None:
    """Print a list below a title; that nothing moved without lines."""
    print(f"\n### {title}\n")
    print("\n".join(f"- {line}" for line in lines) or "Nothing moved.", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what moved and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.new_release")
    parser.add_argument("--python", type=Path, required=True, help="with the new release")
    parser.add_argument(
        "--before", type=Path, default=Path(sys.executable), help="with the old release"
    )
    parser.add_argument("--models", nargs="*", choices=MODELS, default=MODELS)
    given = parser.parse_args(arguments)
    pythons = (given.before.absolute(), given.python.absolute())
    before, after = map(facts_of, pythons)
    print("## What moved between two releases of onnxruntime")
    for kind in after:
        report(kind.capitalize(), changed_names(before.get(kind, ()), after[kind]))
    recipes = load_recipes()
    with tempfile.TemporaryDirectory() as folder:
        for name in given.models:
            path = Path(folder) / f"{name}.onnx"
            recipes[name].build(MEGABYTES, path, False)
            pinned = {"MALLOC_MMAP_THRESHOLD_": "131072"}
            old, new = (profile(path, python=python, environment=pinned) for python in pythons)
            releases = f"{old.environment.onnxruntime} → {new.environment.onnxruntime}"
            report(f"{name}, {releases}", changed_profile(old, new))
    return 0


if __name__ == "__main__":
    sys.exit(main())
