"""Sizes just below and just above what ``memdiag estimate --fit`` answers, in plain processes."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import memdiag
from memdiag.model.inputs import make_array, plan_inputs
from memdiag.model.model_file import open_model
from memdiag.units import MIB

pytestmark = [pytest.mark.slow, pytest.mark.measures, pytest.mark.timeout(900)]

PLAIN = """
import json, sys
import numpy, onnxruntime
model, *files = sys.argv[1:]
session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
feeds = {each.name: numpy.load(file) for each, file in zip(session.get_inputs(), files)}
for _ in range(3):
    session.run(None, feeds)
(line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(1024 * int(line.split()[1]))
"""
"""A program without memdiag, which prints the largest resident set that it had."""


def peak_bytes(model: Path, dims: dict[str, int], folder: Path) -> int:
    """Return the peak of a plain process that runs `model` three times at `dims`."""
    with open_model(model) as file:
        plans = plan_inputs(file, dims=dims, given={})
    files = [folder / f"{index}.npy" for index in range(len(plans))]
    for plan, path in zip(plans, files, strict=True):
        np.save(path, make_array(plan, 0))
    command = [sys.executable, "-c", PLAIN, str(model), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: int = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("name", "dims", "limit"),
    [
        ("minilm_int8", {}, 384),
        ("magika", {}, 160),
        ("tashkeel_bilstm", {}, 256),
        ("tashkeel_rawi_v3", {}, 128),
        ("smart_turn", {}, 160),
        ("tashkeel_rawi", {"sequence": [16, 64], "batch_size": 8}, 128),
    ],
)
def test_a_size_that_surely_fits_does_and_one_that_does_not_exceeds_the_limit(
    real_models: dict[str, Path],
    tmp_path: Path,
    name: str,
    dims: dict[str, int | list[int]],
    limit: int,
) -> None:
    model = real_models[name]
    fit = memdiag.estimate(model, dims=dims, fit_bytes=limit * MIB, details=False).fit
    assert fit is not None
    assert fit.trial == "ran"
    assert fit.surely is not None
    assert fit.too_large is not None

    def peak(size: int) -> int:
        return peak_bytes(model, {**fit.others, **dict.fromkeys(fit.dims, size)}, tmp_path)

    assert peak(fit.surely) <= limit * MIB < peak(fit.too_large)
    # The answer is no empty one: between both there is at most as much again.
    assert fit.too_large <= 2.5 * fit.surely


def test_no_size_is_named_that_the_model_cannot_run(
    real_models: dict[str, Path], tmp_path: Path
) -> None:
    """A table of 512 positions."""
    model = real_models["minilm_int8"]
    dims: dict[str, int | list[int]] = {"batch": 1, "sequence": [16, 4096]}
    fit = memdiag.estimate(model, dims=dims, fit_bytes=1024 * MIB, details=False).fit
    assert fit is not None
    assert (fit.surely, fit.probably, fit.fails_at) == (512, 512, 513)
    assert peak_bytes(model, {"batch": 1, "sequence": 512}, tmp_path) <= 1024 * MIB
    with pytest.raises(subprocess.CalledProcessError):
        peak_bytes(model, {"batch": 1, "sequence": 513}, tmp_path)
