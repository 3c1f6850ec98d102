"""One model on several versions of onnxruntime: the comparison, and how it is shown."""

import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from math import isnan, nan
from typing import NamedTuple

from benchmarks.reproduced.claims import Claim, Setting, quotient
from memdiag.api.compare import compare
from memdiag.model.model_file import open_model
from memdiag.records.comparison import (
    Comparison,
    ComparisonColumn,
    MeasuredSeconds,
    Metric,
)
from memdiag.records.phases import PhaseName
from sample_models import load_recipes

MB = 1e6
VERSIONS = ("1.19.2", "1.20.1", "1.22.1", "1.23.2", "1.24.4")
"""Those that have a cached environment; the newest is the one of this interpreter."""

RUNS = 3
OPTIMIZATION: tuple[PhaseName, ...] = ("optimize", "constant_fold")
_WORTH_SAYING = 0.02


class Runtimes(NamedTuple):
    """What was measured of one model on several versions, and the size of its largest weight."""

    comparison: Comparison
    largest_bytes: int

    @property
    def newest(self) -> str:
        """The version of this interpreter."""
        return self.comparison.columns[-1].label

    def figure(self, version: str, of: Callable[[ComparisonColumn], float]) -> float:
        """Return a figure of a version, NaN where it was not measured."""
        column = next((one for one in self.comparison.columns if one.label == version), None)
        return of(column) if column is not None and column.measured is not None else nan


def on_versions(
    recipe: str,
    megabytes: float,
    setting: Setting,
    *,
    external: bool = False,
    dims: Mapping[str, int] | None = None,
) -> Runtimes:
    """Build a sample of `megabytes` and measure it on all versions."""
    path = setting.folder / f"{recipe}.onnx"
    load_recipes()[recipe].build(megabytes * setting.scale, path, external)
    with open_model(path) as file:
        largest = max(weight.nbytes for weight in file.weights)
        files = file.files
    found = compare(
        path,
        onnxruntime=[*VERSIONS, sys.executable],
        dims=dims or {},
        runs=RUNS,
        repeats=setting.rounds,
        on_progress=lambda words: setting.say(f"{recipe}: {words}"),
    )
    for one in files:
        one.unlink()
    return Runtimes(found, largest)


def peak(column: ComparisonColumn) -> float:
    """Return the peak above the baseline, in MB."""
    return column.measured.peak.median / MB if column.measured else nan


def steady(column: ComparisonColumn) -> float:
    """Return steady memory above the baseline, in MB."""
    return column.measured.steady.median / MB if column.measured else nan


def resident(column: ComparisonColumn) -> float:
    """Return the whole process's resident set at the end, in MB."""
    base = column.profile.baseline_rss_bytes if column.profile else nan
    return steady(column) + base / MB


def load(column: ComparisonColumn) -> float:
    """Return the seconds of session creation."""
    return column.measured.load.median if column.measured else nan


def peak_in(*phases: PhaseName) -> Callable[[ComparisonColumn], float]:
    """Return what gives the largest peak of `phases` above the baseline, in MB."""

    def of(column: ComparisonColumn) -> float:
        found = column.measured.phases if column.measured else ()
        return max((one.peak.median / MB for one in found if one.phase in phases), default=nan)

    return of


def steps(
    found: Runtimes,
    what: str,
    public: Mapping[str, float],
    unit: str,
    of: Callable[[ComparisonColumn], float],
) -> list[Claim]:
    """Return a claim for each two neighbours of `public`, which has figures in `unit` by version.

    Ours are what `of` gives, in MB.
    """
    claims = []
    for (one, claimed), (other, later) in pairwise(public.items()):
        before, after = found.figure(one, of), found.figure(other, of)
        claims.append(
            Claim(
                f"{what}, {one} → {other}",
                f"{claimed:,} → {later:,} {unit}",
                later / claimed,
                in_words(before, after, "MB"),
                quotient(after, before),
            )
        )
    return claims


def causes(found: Runtimes, metrics: Iterable[Metric]) -> list[str]:
    """Return what changed from each version to the next beyond doubt, and why, in sentences."""
    sentences = []
    for change in found.comparison.changes:
        small = change.ratio is not None and abs(change.ratio - 1) < _WORTH_SAYING
        if change.metric in metrics and change.why and not small:
            sentences.append(
                f"{change.from_} → {change.to}: {change.metric} {change.bytes / MB:+,.0f} MB"
                f" ({change.why})."
            )
    return sentences


def in_words(before: float, after: float, unit: str) -> str:
    """Return two figures with an arrow, or that one is missing."""
    if isnan(before) or isnan(after):
        return "a version is missing"
    digits = 0 if min(before, after) >= 20 else 2
    return f"{before:,.{digits}f} → {after:,.{digits}f} {unit}"


def seconds(found: MeasuredSeconds) -> str:
    """Return a median and its spread."""
    return f"{found.median:.2f} ({found.low:.2f}–{found.high:.2f})"
