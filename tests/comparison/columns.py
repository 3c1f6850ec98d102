"""Columns made by hand, with figures that are easy to tell apart."""

import msgspec

from memdiag.comparison.changes import column_changes
from memdiag.comparison.comparable import ComparableFigures
from memdiag.records.attribution import Attribution
from memdiag.records.comparison import (
    ColumnFigures,
    ColumnGrowth,
    ComparisonColumn,
    FigureChange,
    GraphSize,
    Latency,
    MeasuredBytes,
    MeasuredSeconds,
    PhaseFigures,
)
from memdiag.records.growth import Slope, Verdict
from memdiag.records.profile import PhaseName
from memdiag.units import MIB
from tests.reports import profiles


def mib(median: float, spread: float = 0.0) -> MeasuredBytes:
    """Return a figure in MiB that scatters by `spread` to both sides."""
    low, middle, high = (round((median + by) * MIB) for by in (-spread, 0, spread))
    return MeasuredBytes(median=middle, low=low, high=high)


def seconds(median: float, spread: float = 0.0) -> MeasuredSeconds:
    return MeasuredSeconds(median=median, low=median - spread, high=median + spread)


def phase(name: PhaseName, peak: float, kept: float, duration: float = 0.1) -> PhaseFigures:
    return PhaseFigures(
        phase=name,
        duration=seconds(duration),
        peak=mib(peak),
        peak_kind="exact",
        kept=mib(kept),
    )


def measured(
    peak: float = 1000,
    steady: float = 500,
    *,
    spread: float = 1.0,
    load: float = 1.0,
    **more: object,
) -> ColumnFigures:
    """Return figures in MiB and seconds, as of five processes."""
    made = ColumnFigures(
        times=5,
        peak=mib(peak, spread),
        peak_phase="constant_fold",
        peak_kind="exact",
        steady=mib(steady, spread),
        anonymous=mib(steady - 10, spread),
        file=mib(10),
        load=seconds(load, 0.01),
        phases=(
            phase("parse", 500, 500, load / 2),
            phase("constant_fold", peak, 0, load / 4),
            phase("prepack", steady, steady - 500, load / 4),
        ),
    )
    return msgspec.structs.replace(made, **more)


def growth(bytes_per_run: float = 0.0, verdict: Verdict = "flat") -> ColumnGrowth:
    """Return a growth of malloc blocks, known to 2 %, or another verdict without growth."""
    if not bytes_per_run:
        return ColumnGrowth(verdict=verdict, owner=None, slope=None, runs=1000)
    low, high = 0.98 * bytes_per_run, 1.02 * bytes_per_run
    slope = Slope(bytes_per_unit=bytes_per_run, low=low, high=high)
    return ColumnGrowth(verdict="leak", owner="heap", slope=slope, runs=1000)


def column(
    label: str,
    figures: ColumnFigures | None = None,
    *,
    attribution: Attribution | None = None,
    ratio: tuple[float, float, float] | None = None,
    **more: object,
) -> ComparisonColumn:
    """Return a column that was measured; `ratio` is that of its latency to the first one's."""
    middle, low, high = ratio or (None, None, None)
    latency_s = 0.01 * (middle or 1.0)
    made = ComparisonColumn(
        label=label,
        status="completed",
        message="",
        model="models/model.onnx",
        onnxruntime="1.31.1",
        graph=GraphSize(nodes=12, initializers=3, parameters=1000, saved_bytes=500 * MIB),
        measured=figures or measured(),
        latency=Latency(
            median_s=latency_s,
            low_s=0.9 * latency_s,
            high_s=1.1 * latency_s,
            runs=50,
            ratio=middle,
            ratio_low=low,
            ratio_high=high,
            pairs=15 if ratio else 0,
        ),
        profile=msgspec.structs.replace(profiles.tied_if(), attribution=attribution),
    )
    return msgspec.structs.replace(made, **more)


def with_profile(column: ComparisonColumn, **changes: object) -> ComparisonColumn:
    """Return `column` with these fields of its profile changed."""
    assert column.profile is not None
    return msgspec.structs.replace(
        column, profile=msgspec.structs.replace(column.profile, **changes)
    )


def with_session(column: ComparisonColumn, **changes: object) -> ComparisonColumn:
    """Return `column` with these fields of its profile's session changed."""
    assert column.profile is not None
    return with_profile(column, session=msgspec.structs.replace(column.profile.session, **changes))


def retaining(column: ComparisonColumn, size_mib: int) -> ComparisonColumn:
    """Return `column` with a profile of which malloc retained `size_mib`."""
    return with_profile(column, allocator_retained_bytes=size_mib * MIB)


def changes_between(before: ComparisonColumn, after: ComparisonColumn) -> list[FigureChange]:
    return list(column_changes(before, after, ComparableFigures())[0])
