"""Cost of a sweep, and errors by neighbours: ``python -m benchmarks.sweeps``.

About 100 models (real ones, exported ones and sample models of several sizes) are measured under
three releases, several jobs at once; then some of these jobs one at a time, and the small models
on local clusters. Figures of the same job are compared. The table goes to ``docs/sweeps.md``.
"""

import argparse
import os
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import memdiag
from benchmarks.exported_models import exported_models
from benchmarks.readme import replace_part, table
from benchmarks.real_models import real_models
from memdiag.records.sweep import Sweep, SweepPoint
from memdiag.units import MIB, format_duration
from sample_models import load_recipes

PAGE = Path(__file__).parents[1] / "docs" / "sweeps.md"
RELEASES = ("1.24.4", "1.31.1", "1.32.0")
SAMPLES = (
    *(("plain_mlp", megabytes) for megabytes in (8, 64, 256)),
    *((name, 64) for name in ("tied_if", "qdq_matmul", "matmul_nbits", "crnn", "phi_like")),
)
ALONE = 20
CLUSTER_MODELS = 15
SEED = 0


class Timed(NamedTuple):
    """A sweep.

    Attributes:
        answers: its answers.
        seconds: how long it took.
    """

    answers: Sweep
    seconds: float

    @property
    def points(self) -> dict[tuple[str, str | None], SweepPoint]:
        """The completed points, by model and release."""
        return {
            (series.model, point.onnxruntime): point
            for series in self.answers.series
            for point in series.points
            if point.peak_bytes is not None
        }

    @property
    def job_s(self) -> float:
        """The seconds that all jobs took, one after another."""
        points = (point for series in self.answers.series for point in series.points)
        return sum(point.duration_s or 0.0 for point in points)


def run(models: Sequence[Path], store: Path, releases: Sequence[str], **arguments: object) -> Timed:
    """Return a sweep of `models`."""
    started = time.monotonic()
    answers = memdiag.sweep(*models, store=store, onnxruntime=releases, **arguments)  # type: ignore[arg-type] # of several types
    return Timed(answers, time.monotonic() - started)


def differences(one: Timed, other: Timed) -> dict[str, list[float]]:
    """Return the differences of the figures of equal jobs, as shares of the larger one.

    A difference counts as a share of 1 MiB at least.
    """
    found: dict[str, list[float]] = {"peak": [], "steady": []}
    for key, point in other.points.items():
        before = one.points[key]
        for name, first, second in (
            ("peak", before.peak_bytes, point.peak_bytes),
            ("steady", before.steady_bytes, point.steady_bytes),
        ):
            if first is not None and second is not None:
                found[name].append(abs(first - second) / max(first, second, MIB))
                if found[name][-1] > 0.02:
                    print(f"{key}: {name} {first:,} and {second:,} B")
    return found


def _text(found: Mapping[str, Sequence[float]]) -> str:
    return "; ".join(
        f"{name}: {sum(each <= 0.02 for each in shares)} of {len(shares)} within 2 %, at most"
        f" {100 * max(shares):.2g} %"
        for name, shares in found.items()
    )


def _linked(models: Mapping[str, Path], folder: Path) -> list[Path]:
    """Return links to `models` that have their names."""
    links = []
    for name, path in models.items():
        link = folder / name / f"{name}.onnx"
        link.parent.mkdir(parents=True)
        for file in path.parent.glob(f"{path.stem}*"):
            (link.parent / file.name).symlink_to(file.resolve())
        if not link.exists():
            link.symlink_to(path.resolve())
        links.append(link)
    return links


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, help="measure so many models only, at random")
    options = parser.parse_args()
    generator = random.Random(SEED)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipes = load_recipes()
        samples = {}
        for recipe, megabytes in SAMPLES:
            path = folder / f"{recipe}_{megabytes}.onnx"
            recipes[recipe].build(megabytes, path, False)
            samples[path.stem] = path
        known = {**real_models(), **exported_models(), **samples}
        models = _linked(known, folder / "models")
        if options.models:
            models = generator.sample(models, options.models)
        whole = run(models, folder / "whole", RELEASES)
        count = sum(len(series.points) for series in whole.answers.series)
        cores = os.cpu_count() or 1
        more = 100 * (whole.seconds * cores / whole.job_s - 1)
        rows = [
            [
                f"{len(models)} models × {len(RELEASES)} releases, {cores} jobs at once",
                f"{format_duration(whole.seconds)}: {more:.1f} % more than the sum of the times of"
                f" the jobs by {cores} ({format_duration(whole.job_s / count)} a job);"
                f" {len(whole.points)} of {count} completed",
            ]
        ]
        print(rows[-1], flush=True)
        done = {Path(model).stem for model, _ in whole.points}
        completed = [each for each in models if each.stem in done]
        sample = generator.sample(completed, min(ALONE, len(completed)))
        alone = run(sample, folder / "alone", RELEASES[-1:], processes=1)
        rows.append([f"{len(alone.points)} of these jobs alone", _text(differences(whole, alone))])
        print(rows[-1], flush=True)
        small = sorted(models, key=lambda path: path.stat().st_size)[:CLUSTER_MODELS]
        for workers in (2, 4):
            cluster = run(
                small,
                folder / f"cluster{workers}",
                RELEASES[:2],
                on="local-cluster",
                processes=workers,
            )
            rows.append(
                [
                    f"{len(small)} models × 2 releases, local cluster of {workers} workers",
                    f"{len(cluster.points)} of {2 * len(small)} completed in"
                    f" {format_duration(cluster.seconds)};"
                    f" compared with the first row: {_text(differences(whole, cluster))}",
                ]
            )
            print(rows[-1], flush=True)
    replace_part("sweep", table(["", ""], rows), PAGE)


if __name__ == "__main__":
    main()
