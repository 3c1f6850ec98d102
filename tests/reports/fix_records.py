"""Fixes with made-up figures that hang together."""

from typing import Any

import msgspec

from memdiag.records.device import Device
from memdiag.records.fix import FIX_SCHEMA, Fix, Point, Remedy
from memdiag.records.measured_change import Figures, LatencyAt
from memdiag.units import MIB


def remedy(name: str, *weights: str, status: Any = "applied") -> Remedy:
    return Remedy(name=name, rule="a-rule", status=status, reason="because", weights=weights)


def figures(peak: int, steady: int, mapped: int, disk: int, unread: int = 0) -> Figures:
    """Figures in MiB."""
    return Figures(
        peak_bytes=peak * MIB,
        peak_spread_bytes=2 * MIB,
        steady_bytes=steady * MIB,
        steady_spread_bytes=0,
        anonymous_bytes=(steady - mapped) * MIB,
        file_and_shared_bytes=mapped * MIB,
        load_s=0.65,
        latency_s=0.004,
        disk_bytes=disk * MIB,
        unread_table_bytes=unread * MIB,
    )


def latency(inputs: str, ratio: float, low: float, high: float) -> LatencyAt:
    return LatencyAt(
        inputs=inputs,
        before_s=0.01,
        after_s=0.01 * ratio,
        ratio=ratio,
        low=low,
        high=high,
        pairs=25,
    )


def point(
    *options: str,
    at: tuple[int, int] | None,
    ratio: float | None = None,
    on_front: bool = False,
    fits: bool = True,
    problem: str = "",
) -> Point:
    """Return a point that takes the peak and steady memory `at`, in MiB."""
    return Point(
        option_names=options,
        session_options={"session.disable_prepacking": "1"} if options else {},
        environment={},
        run_options={},
        disabled_optimizers=(),
        shared_arena=False,
        saved_options={},
        figures=msgspec.structs.replace(figures(*at, 0, 60), peak_spread_bytes=0) if at else None,
        ratio=ratio,
        low=ratio - 0.05 if ratio and options else None,
        high=ratio + 0.05 if ratio and options else None,
        on_front=on_front,
        fits=fits,
        problem=problem,
    )


DEFAULTS = point(at=(200, 150), ratio=1.0, on_front=True)
CHOSEN = point("disable-prepacking", "mmap-threshold", at=(150, 75), ratio=1.02, on_front=True)
POINTS = (
    DEFAULTS,
    point("disable-prepacking", at=(150, 90), ratio=1.01),
    point("mmap-threshold", at=(195, 148)),
    CHOSEN,
    point("optimization-off", at=(100, 60), ratio=2.5, on_front=True, fits=False),
    point("save-prepacked", at=None, fits=False, problem="it does not run: \x1b[31m" + 300 * "x"),
)
REWRITTEN = point("rewrite", at=(559, 540), ratio=1.02, on_front=True)


def fix(chosen_point: Point = CHOSEN, points: tuple[Point, ...] = POINTS, **changes: Any) -> Fix:
    """Return a fix by options alone."""
    made = Fix(
        schema=FIX_SCHEMA,
        model="dir/m.onnx",
        onnxruntime="1.31.1",
        before=points[0].figures,
        after=chosen_point.figures,
        latencies=(latency("size 4", 1.02, 0.97, 1.07),),
        largest_difference=0.0,
        bound=1e-4,
        bound_reason="sums reordered",
        notes=("a note",),
        duration_s=12.0,
        points=points,
        chosen=chosen_point.option_names,
        program="import onnxruntime as ort\n" if chosen_point.option_names else "",
        session_count=20,
    )
    return msgspec.structs.replace(made, **changes)


def on_gpu() -> Fix:
    """Return a fix of the memory on a GPU, in which common advice saved nothing."""

    def gpu_point(*options: str, at: tuple[int, int], **fields: Any) -> Point:
        settings = {
            "session_options": {"enable_mem_pattern": "false"} if options else {},
            "providers": ("CUDAExecutionProvider",),
            "provider_options": (
                {"CUDAExecutionProvider": {"arena_extend_strategy": "kSameAsRequested"}}
                if options
                else {}
            ),
        }
        return msgspec.structs.replace(point(*options, at=at, **fields), **settings)

    defaults = gpu_point(at=(1193, 1193), ratio=1.0, on_front=True)
    chosen = gpu_point(
        "patterns-off", "device-same-as-requested", at=(879, 879), ratio=1.01, on_front=True
    )
    return fix(
        chosen,
        (
            defaults,
            gpu_point("patterns-off", at=(937, 937), ratio=1.0),
            gpu_point("device-same-as-requested", at=(1081, 979), ratio=1.0),
            gpu_point("cudnn-heuristic", at=(1193, 1193)),
            gpu_point("cudnn-small-workspace", at=(1193, 1191)),
            chosen,
        ),
        model="dir/conv.onnx",
        device=Device(name="NVIDIA H100 80GB HBM3"),
        bound_reason="products of factors that kernels on the GPU may round to TF32",
    )


def verified(**changes: Any) -> Fix:
    """Return a fix by rewrites, whose model needs the original's weights."""
    defaults = point(at=(1583, 1500), ratio=1.0, on_front=True)
    made = fix(
        REWRITTEN,
        (defaults, REWRITTEN),
        output_files=("dir/m.fixed.onnx", "dir/m.onnx"),
        kept_files=("dir/m.onnx",),
        kept_bytes=500 * MIB,
        remedies=(
            remedy("slow-one", "w", status="rejected"),
            remedy("good-one", "w"),
            remedy("no-one", "v", status="refused"),
        ),
        before=figures(1583, 1500, 8, 500),
        after=figures(559, 540, 510, 501),
        latencies=(latency("size 1", 0.99, 0.97, 1.01), latency("size 4", 1.02, 0.98, 1.05)),
        largest_difference=2.4e-6,
        bound=6.1e-5,
        bound_reason="sums of 1,024 products",
        is_valid=True,
        oldest_onnxruntime="1.20.0",
        duration_s=34.0,
        command=("memdiag", "fix", "dir/m.onnx"),
    )
    return msgspec.structs.replace(made, **changes)


def nothing_helps() -> Fix:
    rejected = remedy("slow-one", "w", status="rejected")
    return fix(DEFAULTS, (DEFAULTS,), remedies=(rejected,), latencies=())


def unmeasured() -> Fix:
    """Return a search that ended before the original itself was measured."""
    return Fix(
        schema=FIX_SCHEMA,
        model="dir/m.onnx",
        onnxruntime="1.31.1",
        duration_s=3.0,
        remedies=(remedy("good-one", "w", status="untried"),),
        untried=("arena-off",),
        ended_by="time_limit",
        command=("memdiag", "fix", "dir/m.onnx", "--time-limit", "60"),
    )


ALL = (fix, verified, nothing_helps, unmeasured)
