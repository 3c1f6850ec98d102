"""A model run under a release of onnxruntime, to hold predictions against what was measured."""

from pathlib import Path
from typing import Literal

import pytest

import memdiag
from benchmarks.environments import ProvisionError
from benchmarks.runtimes import runtime
from memdiag.ort.runtime import Runtime
from memdiag.records.attribution import Attribution
from memdiag.records.profile import Profile

NEWEST = str(Runtime.installed())
"""The release that the tests run with; others have environments of their own."""


def profile(
    model: Path,
    version: str = NEWEST,
    *,
    run: bool = True,
    disabled_optimizers: tuple[str, ...] = (),
    xray: Literal["steady", "none"],
) -> Profile:
    """Return the profile of two runs of `model`, or of loading it alone."""
    python = None
    if version != NEWEST:
        try:
            python = runtime(version)
        except ProvisionError as error:
            pytest.skip(str(error))
    return memdiag.profile(
        model,
        python=python,
        # Blocks of freed weights would otherwise stay in malloc's heap, more or less by chance.
        environment={"MALLOC_MMAP_THRESHOLD_": "131072"},
        session_options={"intra_op_num_threads": "1"},
        runs=1,
        run=run,
        disabled_optimizers=disabled_optimizers,
        xray=xray,
    )


def xray(
    model: Path,
    version: str = NEWEST,
    *,
    run: bool = True,
    disabled_optimizers: tuple[str, ...] = (),
) -> Attribution:
    """Return what is resident after two runs of `model`, or after loading it alone."""
    found = profile(model, version, run=run, disabled_optimizers=disabled_optimizers, xray="steady")
    assert found.attribution is not None, found.outcome.message
    return found.attribution


def peak(model: Path, version: str = NEWEST, *, disabled_optimizers: tuple[str, ...] = ()) -> int:
    """Return how far the peak of two runs of `model` is above the baseline."""
    found = profile(model, version, disabled_optimizers=disabled_optimizers, xray="none")
    assert found.outcome.status == "completed", found.outcome.message
    return found.peak_rss_bytes - found.baseline_rss_bytes


def private_peak(model: Path, version: str = NEWEST) -> int:
    """Return how far the largest sample of private memory is above the first one."""
    found = profile(model, version, xray="none")
    sampled = [size for size in found.samples.anonymous_bytes if size is not None]
    assert found.outcome.status == "completed", found.outcome.message
    return max(sampled) - sampled[0]


def private(found: Attribution) -> int:
    """Return what the model and its session took, without the weights mapped from a file."""
    mapped = sum(copy.resident_bytes for copy in found.copies if copy.backing.kind == "file")
    return above_baseline(found) - mapped


def above_baseline(found: Attribution) -> int:
    """Return what the model and its session took of the resident set."""
    assert found.baseline_bytes is not None
    return found.resident_bytes - found.baseline_bytes
