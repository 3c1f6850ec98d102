"""Estimates with made-up figures that hang together."""

from typing import Any

import msgspec

from memdiag.records.dimension import Dimension
from memdiag.records.estimate import (
    Calibration,
    Estimate,
    EstimatedPhase,
    EstimatedPoint,
    EstimatedTerm,
    Fit,
    LiveTensor,
    TermName,
)
from memdiag.records.phases import PhaseName
from memdiag.units import MIB

LIMIT = 400 * MIB
BASELINE = 50 * MIB


def terms(**sizes: int) -> tuple[EstimatedTerm, ...]:
    """Return terms of sizes in MiB; the weights name the largest one."""
    names: dict[str, TermName] = {
        "weights": "weights",
        "converted": "weight being converted",
        "packed": "packed weights",
        "activations": "activations",
        "block": "planned block",
    }
    return tuple(
        EstimatedTerm(
            name=names[name], bytes=size * MIB, largest="embed.weight" if name == "weights" else ""
        )
        for name, size in sizes.items()
    )


def phase(
    name: PhaseName,
    peak: tuple[EstimatedTerm, ...],
    kept: tuple[EstimatedTerm, ...],
    cause: str = "",
) -> EstimatedPhase:
    """Return a phase whose sizes are the sums of its terms."""
    return EstimatedPhase(
        name=name,
        peak_bytes=sum(term.bytes for term in peak),
        kept_bytes=sum(term.bytes for term in kept),
        cause=cause,
        peak_terms=peak,
        kept_terms=kept,
    )


def point(batch: int = 1, tokens: int = 128) -> EstimatedPoint:
    """Return a point: 100 MiB of weights, 200 MiB while loading, a MiB for 32 tokens."""
    activations = batch * tokens // 32
    weights = terms(weights=100)
    run = terms(weights=100, packed=50, activations=activations)
    steady = (*run, *terms(block=activations))
    phases = (
        phase("optimize", terms(weights=100, converted=100), weights, "embed.weight"),
        phase("first_run", run, run, "layer/MatMul"),
        phase("steady", steady, steady),
    )
    largest = max(phases, key=lambda phase: phase.peak_bytes)
    return EstimatedPoint(
        dims={"batch": batch, "tokens": tokens},
        peak_bytes=largest.peak_bytes,
        peak_phase=largest.name,
        steady_bytes=phases[-1].kept_bytes,
        low_bytes=largest.peak_bytes - 10 * MIB,
        usual_bytes=largest.peak_bytes + 5 * MIB,
        high_bytes=largest.peak_bytes + 20 * MIB,
        pinned_high_bytes=largest.peak_bytes + 10 * MIB,
        phases=phases,
        live=(
            LiveTensor(
                name="scores",
                dtype="float",
                shape=(batch, 8, tokens, tokens),
                bytes=32 * batch * tokens * tokens,
                producer="layer/MatMul",
                last_use="layer/Softmax",
                growth={"batch": 2.0, "tokens": 4.0},
            ),
        ),
    )


def dimension(name: str, size: int, role: str) -> Dimension:
    """Return a free dimension."""
    return Dimension(name=name, size=size, role=role, source="chosen", reason="by its name")


def single(baseline_bytes: int | None = None) -> Estimate:
    """Return an estimate at one point."""
    return Estimate(
        model="models/encoder.onnx",
        onnxruntime="1.32.0",
        options={},
        load_from="path",
        runs=10,
        baseline_bytes=baseline_bytes,
        dimensions=(dimension("batch", 1, "batch"), dimension("tokens", 128, "sequence")),
        points=(point(),),
        duration_s=0.2,
    )


def grid() -> Estimate:
    """Return an estimate at two times three sizes, with a limit."""
    return msgspec.structs.replace(
        single(),
        points=tuple(point(batch, tokens) for batch in (1, 16) for tokens in (128, 256, 512)),
        fit=fit(),
        notes=("2 values have sizes that depend on the data",),
    )


def line() -> Estimate:
    """Return an estimate at three sizes of one dimension."""
    return msgspec.structs.replace(
        single(), points=tuple(point(batch) for batch in (1, 32, 64)), fit=fit()
    )


def measured() -> Estimate:
    """Return an estimate that was corrected by measured points."""
    calibration = tuple(
        Calibration(
            dims={"batch": batch, "tokens": 128},
            estimated_bytes=estimated * MIB,
            corrected_bytes=corrected * MIB,
            measured_bytes=measured * MIB,
            is_held_out=batch == 32,
        )
        for batch, estimated, corrected, measured in (
            (1, 200, 210, 210),
            (32, 406, 420, 400),
            (64, 662, 700, 700),
        )
    )
    return msgspec.structs.replace(line(), calibration=calibration)


def fit(surely: int | None = 31, probably: int | None = 33, **fields: Any) -> Fit:
    """Return the largest batches that fit into `LIMIT`, at 128 tokens; 40 do not."""
    known: dict[str, Any] = {
        "dims": ("batch",),
        "others": {"tokens": 128},
        "too_large": 40,
        "low_bytes": 370 * MIB,
        "usual_bytes": 398 * MIB,
        "high_bytes": 420 * MIB,
        "trial": "ran",
    }
    return Fit(limit_bytes=LIMIT, surely=surely, probably=probably, **(known | fields))
