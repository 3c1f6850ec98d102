"""A model run under a release of onnxruntime, to hold predictions against what the X-ray saw."""

from pathlib import Path

import pytest

import memdiag
from benchmarks.environments import ProvisionError
from benchmarks.runtimes import runtime
from memdiag.records.attribution import Attribution

NEWEST = "1.31.1"
"""The release that the tests run with; others have environments of their own."""


def xray(model: Path, version: str = NEWEST, *, run: bool = True) -> Attribution:
    """Return what is resident after two runs of `model`, or after loading it alone."""
    python = None
    if version != NEWEST:
        try:
            python = runtime(version)
        except ProvisionError as error:
            pytest.skip(str(error))
    profile = memdiag.profile(
        model,
        python=python,
        # Blocks of freed weights would otherwise stay in malloc's heap, more or less by chance.
        environment={"MALLOC_MMAP_THRESHOLD_": "131072"},
        threads=1,
        runs=1,
        run=run,
    )
    assert profile.attribution is not None, profile.outcome.message
    return profile.attribution


def private(found: Attribution) -> int:
    """Return what the model and its session took, without the weights mapped from a file."""
    mapped = sum(copy.resident_bytes for copy in found.copies if copy.backing.kind == "file")
    return above_baseline(found) - mapped


def above_baseline(found: Attribution) -> int:
    """Return what the model and its session took of the resident set."""
    assert found.baseline_bytes is not None
    return found.resident_bytes - found.baseline_bytes
