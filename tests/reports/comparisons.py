"""Comparisons made by hand, of columns that are easy to tell apart."""

import msgspec

from memdiag.comparison.changes import column_changes
from memdiag.comparison.columns import with_profiles
from memdiag.comparison.comparable import ComparableFigures
from memdiag.records.comparison import (
    COMPARISON_SCHEMA,
    Bisection,
    Comparison,
    ComparisonColumn,
    ComparisonKind,
    CopyChange,
    FigureChange,
    GraphSize,
    OptimizerRun,
)
from memdiag.units import MIB
from tests.comparison.columns import column, growth, measured
from tests.reports import gpus, profiles

PACKED = "lm_head/MatMul now packs model.shared.weight"


def change(metric: str, to: str, **more: object) -> FigureChange:
    made = FigureChange(
        metric="steady",
        phase=None,
        from_="1.24.4",
        to=to,
        bytes=500 * MIB,
        ratio=1.5,
        why=PACKED,
    )
    return msgspec.structs.replace(made, metric=metric, **more)


def comparison(
    *columns: ComparisonColumn, kind: ComparisonKind = "onnxruntime", **more: object
) -> Comparison:
    made = Comparison(
        schema=COMPARISON_SCHEMA,
        kind=kind,
        columns=columns,
        changes=(),
        copies=(),
        bisection=None,
        notes=(),
        duration_s=12.5,
    )
    return msgspec.structs.replace(made, **more)


def versions() -> Comparison:
    """Return three versions, the second of which is not to be had."""
    return comparison(
        column("1.24.4", measured(1555, 1055)),
        ComparisonColumn(
            label="1.30.9",
            status="unavailable",
            message="onnxruntime==1.30.9: there is no such version.",
            model="models/model.onnx",
        ),
        column("1.31.1", measured(1563, 1563, load=2.0), ratio=(1.3, 1.2, 1.4)),
        changes=(
            change("steady", "1.31.1"),
            change("kept", "1.31.1", phase="prepack"),
            change("latency", "1.31.1", bytes=0, ratio=1.3, why=""),
        ),
        copies=(
            CopyChange(
                from_="1.24.4",
                to="1.31.1",
                kind="packed",
                weights=("model.shared.weight",),
                count=1,
                bytes=500 * MIB,
                made_by="prepack · lm_head/MatMul",
            ),
        ),
        notes=("outputs that are random are not compared: z",),
    )


def optimizers() -> Comparison:
    """Return the original and all optimizers, one of which hangs."""
    run = OptimizerRun(version="1.0", duration_s=2.5, peak_rss_bytes=700 * MIB)
    graph = GraphSize(nodes=12_345, initializers=160, parameters=22_617_680, saved_bytes=500 * MIB)
    names = ("onnxruntime-extended", "onnxoptimizer", "onnxscript", "memdiag-fix")
    return comparison(
        column("original", graph=graph),
        *(
            column(name, optimizer=run, graph=graph, largest_difference=2.4e-6, ratio=(1, 0.9, 1.1))
            for name in names
        ),
        ComparisonColumn(
            label="onnxsim",
            status="timeout",
            message="the optimizer did not end within 30 min",
            model="models/model.onnx",
        ),
        kind="optimizers",
    )


def nothing() -> Comparison:
    """Return a comparison of which nothing could be measured."""
    dead = ComparisonColumn(
        label="a.onnx", status="failed", message="parse: no such file", model="a.onnx"
    )
    return comparison(dead, msgspec.structs.replace(dead, label="b.onnx"), kind="models")


def alike() -> Comparison:
    """Return two columns of the same model."""
    return comparison(column("m.onnx"), column("m.onnx (2)", largest_difference=0.0), kind="models")


def bisected() -> Comparison:
    """Return the search for a jump, which was found."""
    search = Bisection(metric="steady", before="1.24.4", after="1.31.1", candidates=12)
    return msgspec.structs.replace(versions(), bisection=search)


def gpus_compared() -> Comparison:
    """Return profiles with memory on a GPU, of two strategies of the arena, and one on the CPU."""
    columns = [
        with_profiles(
            ComparisonColumn(label=label, status="completed", message="", model="dense.onnx"),
            [profile],
        )
        for label, profile in (
            ("default", gpus.recorded_profile("dense_default")),
            ("same", gpus.recorded_profile("dense_same")),
            ("cpu", profiles.tied_if()),
        )
    ]
    changes = [
        change
        for column in columns[1:]
        for change in column_changes(columns[0], column, ComparableFigures())[0]
    ]
    return comparison(*columns, kind="profiles", changes=tuple(changes))


def bisected_growth() -> Comparison:
    """Return the search for the end of a leak, which was found."""
    search = Bisection(metric="growth", before="1.20.1", after="1.21.0", candidates=5)
    columns = (column("1.20.1", growth=growth(11_305)), column("1.21.0", growth=growth()))
    return comparison(*columns, bisection=search)


ALL = (versions, optimizers, nothing, alike, gpus_compared, bisected, bisected_growth)
