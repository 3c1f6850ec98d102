"""Estimates for a GPU with made-up figures that hang together."""

import msgspec

from memdiag.device.ledger import ledger_row
from memdiag.records.device import Ledger
from memdiag.records.device_estimate import DeviceConfiguration, DeviceEstimate, DeviceFit
from memdiag.records.dimension import Dimension
from memdiag.units import MIB

LIMIT = 8 * 1000**3
CONTEXT = 500 * MIB


def ledger() -> Ledger:
    """Return 800 MiB: the context, 100 MiB of weights, and the rest of an arena and cuBLAS."""
    rows = (
        ledger_row("context", CONTEXT, "computed"),
        ledger_row("weights", 100 * MIB, "computed"),
        ledger_row("values", 20 * MIB, "computed"),
        ledger_row("empty_arena", 50 * MIB, "computed"),
        ledger_row("cublas", 128 * MIB, "computed"),
        ledger_row("rounding", 2 * MIB, "computed"),
    )
    return Ledger(mark="runs", used_bytes=800 * MIB, rows=rows, is_coarse=False)


def configuration(
    *changes: str, size: int, largest: int | None = None, sessions: int = 0, processes: int = 0
) -> DeviceConfiguration:
    """Return a configuration of `size` MiB; the largest size is not searched of a single change."""
    is_searched = len(changes) != 1
    return DeviceConfiguration(
        changes=changes,
        low_bytes=size * MIB,
        high_bytes=size * MIB,
        fit=DeviceFit(
            is_searched=is_searched,
            largest_size=largest,
            sessions=sessions,
            processes=processes,
        ),
    )


def with_limit() -> DeviceEstimate:
    """Return an estimate with what fits into 8 GB."""
    same, small = "arena_extend_strategy=kSameAsRequested", "CUBLAS_WORKSPACE_CONFIG=:16:8"
    batch = Dimension(name="batch", size=4, role="batch", source="given", reason="given")
    return DeviceEstimate(
        model="models/dense.onnx",
        onnxruntime="1.31.1",
        dimensions=(batch,),
        runs=({"batch": 4},),
        ledger=ledger(),
        context_device="NVIDIA H100 80GB HBM3",
        limit_bytes=LIMIT,
        searched=("batch",),
        configurations=(
            configuration(size=800, largest=512, sessions=23, processes=9),
            configuration(same, size=760, sessions=27, processes=10),
            configuration("enable_mem_pattern=0", size=800, sessions=23, processes=9),
            configuration(small, size=672, sessions=41, processes=11),
            configuration(same, small, size=632, largest=620, sessions=54, processes=12),
        ),
        notes=("not considered: prefer_nhwc",),
        duration_s=0.25,
    )


def of_convolutions() -> DeviceEstimate:
    """Return an estimate without a limit, of a model with convolutions, for another GPU."""
    estimate = with_limit()
    configurations = tuple(
        msgspec.structs.replace(
            configuration, high_bytes=configuration.high_bytes + 100 * MIB, fit=None
        )
        for configuration in estimate.configurations
    )
    return msgspec.structs.replace(
        estimate,
        runs=({"batch": 4}, {"batch": 8}),
        configurations=configurations,
        context_device="",
        limit_bytes=None,
        searched=(),
    )


def with_unknown_sizes() -> DeviceEstimate:
    """Return an estimate of which nobody can say what fits."""
    estimate = with_limit()
    given = msgspec.structs.replace(estimate.given, fit=None)
    return msgspec.structs.replace(estimate, unknown_values=3, configurations=(given,))
