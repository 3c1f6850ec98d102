"""Sweeps for the tests of reports, written by hand."""

from typing import Any

import msgspec

from memdiag.records.sweep import (
    ExceededBudget,
    FindingGroup,
    PlacedModel,
    Placement,
    PlacementMachine,
    Sweep,
    SweepPoint,
    SweepSeries,
    SweepStep,
    WastingModel,
)

MIB = 1 << 20
RELEASES = ("1.22.1", "1.24.4", "1.32.0")
DAY_S = 86_400.0


def point(model: str, number: int, peak: int | None, **values: Any) -> SweepPoint:
    """Return the point of `model` on a release; `peak` in MiB, None if it failed."""
    fields: dict[str, Any] = {
        "key": f"{number}{model.encode(errors='replace').hex()}",
        "digest": model,
        "onnxruntime": RELEASES[number],
        "started_s": 1_767_225_600 + number * DAY_S,
        "status": "completed" if peak is not None else "failed",
        "peak_bytes": None if peak is None else peak * MIB,
        "steady_bytes": None if peak is None else (peak - peak // 10) * MIB,
        "peak_phase": "" if peak is None else "prepack",
        "estimated_peak_bytes": None if peak is None else round(peak * 1.02 * MIB),
    }
    return SweepPoint(**(fields | values))


def step(series: SweepSeries, number: int, **values: Any) -> SweepStep:
    """Return the step of the peak before point `number`."""
    before, after = series.points[number - 1], series.points[number]
    assert before.peak_bytes is not None
    assert after.peak_bytes is not None
    fields: dict[str, Any] = {
        "figure": "peak",
        "before_key": before.key,
        "key": after.key,
        "before_bytes": before.peak_bytes,
        "after_bytes": after.peak_bytes,
        "noise_bytes": MIB,
        "phase": "prepack",
    }
    return SweepStep(**(fields | values))


def series(model: str, *peaks: int | None, **values: Any) -> SweepSeries:
    """Return a series with a point on each of the first releases."""
    return SweepSeries(
        **{"model": model, "address": f"zoo/{model}", "machine": "Linux x86_64 avx2 glibc"}
        | {"weight_bytes": 40 * MIB}
        | values,
        points=tuple(point(model, number, peak) for number, peak in enumerate(peaks)),
    )


def with_step(model: str, *peaks: int | None, at: int, is_new: bool = False) -> SweepSeries:
    """Return a series with a step before point `at`."""
    made = series(model, *peaks)
    return SweepSeries(
        **{n: getattr(made, n) for n in ("model", "address", "machine", "weight_bytes", "points")},
        steps=(step(made, at, is_new=is_new),),
    )


def over_budget(record: Sweep) -> Sweep:
    """Return `record` with a job that exceeds the budget: the last one."""
    sentence = "peak 899 MiB exceeds 500 MiB by 399 MiB"
    *others, last = record.series
    points = (*last.points[:-1], msgspec.structs.replace(last.points[-1], key="over"))
    return msgspec.structs.replace(
        record,
        series=(*others, msgspec.structs.replace(last, points=points)),
        exceeded=(ExceededBudget(key="over", sentences=(sentence,)),),
    )


def sweep(*, against: str = "", **values: Any) -> Sweep:
    """Return a sweep with waste, steps and a failure."""
    wasting = series("minilm.onnx", 220, 221, 220, avoidable_bytes=90 * MIB)
    failed = series("broken.onnx", None, None, None)
    sentence = "zoo/broken.onnx: the file ends inside initializer 'w'."
    failed = SweepSeries(
        **{name: getattr(failed, name) for name in ("model", "address", "machine")},
        points=tuple(point("broken.onnx", n, None, sentence=sentence) for n in range(3)),
    )
    fields: dict[str, Any] = {
        "store": "sweep",
        "against": against,
        "releases": RELEASES,
        "series": (
            with_step("albert.onnx", 500, 500, 712, at=2, is_new=bool(against)),
            failed,
            wasting,
            with_step("vits.onnx", 300, 250, 250, at=1),
            series("vits.onnx", 900, 901, 899, dims="tokens=512"),
        ),
        "findings": (
            FindingGroup(
                rule="shared-weight-transposed",
                model_count=1,
                steady_bytes=90 * MIB,
                peak_bytes=90 * MIB,
                message="embed.weight is stored three times.",
                remedy="memdiag fix",
                models=(
                    WastingModel(
                        model="minilm.onnx",
                        address="zoo/minilm.onnx",
                        key=wasting.points[-1].key,
                        steady_bytes=90 * MIB,
                        peak_bytes=90 * MIB,
                    ),
                ),
            ),
        ),
        "noise_share": 0.004,
    }
    return Sweep(**(fields | values))


def placement(*machines: int, unplaced: int = 0) -> Placement:
    """Return machines of 1 GiB with so many models of 300 MiB, and models that fit on none."""
    sizes = {"steady_bytes": 200 * MIB, "peak_bytes": 300 * MIB}
    model = PlacedModel(model="albert.onnx", key="a", **sizes)
    return Placement(
        machines=tuple(
            PlacementMachine(
                memory_bytes=1024 * MIB,
                needed_bytes=(200 * count + 100) * MIB if count else 0,
                models=count * (model,),
            )
            for count in machines
        ),
        margin=0.1,
        unplaced=unplaced * (model,),
    )


def placed() -> Sweep:
    """Return a sweep with waste, steps, a failure and a placement."""
    return sweep(placement=placement(1))
