"""A tuning with made-up figures that hang together."""

from memdiag.records.tuning import TUNING_SCHEMA, Point, Tuning

from memdiag.records.fix import Fix
from memdiag.records.measured_change import Figures, LatencyAt
from memdiag.units import MIB


def figures(peak: int, steady: int) -> Figures:
    """Figures in MiB."""
    return Figures(
        peak_bytes=peak * MIB,
        peak_spread_bytes=0,
        steady_bytes=steady * MIB,
        steady_spread_bytes=0,
        anonymous_bytes=steady * MIB,
        file_bytes=0,
        load_s=0.2,
        latency_s=0.01,
        disk_bytes=60 * MIB,
    )


def point(
    *options: str,
    at: tuple[int, int] | None,
    ratio: float | None = None,
    on_front: bool = False,
    fits: bool = True,
    problem: str = "",
) -> Point:
    return Point(
        options=options,
        session_options={"session.disable_prepacking": "1"} if options else {},
        environment={},
        run_options={},
        disabled_optimizers=(),
        shared_arena=False,
        saved_options={},
        figures=figures(*at) if at else None,
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


def tuning(
    chosen: Point = CHOSEN,
    points: tuple[Point, ...] = POINTS,
    *,
    fix: Fix | None = None,
    sessions: int = 1,
) -> Tuning:
    return Tuning(
        schema=TUNING_SCHEMA,
        model="dir/m.onnx",
        onnxruntime="1.31.1",
        before=points[0].figures,
        after=chosen.figures,
        latencies=(
            LatencyAt(
                inputs="size 4",
                before_s=0.01,
                after_s=0.0102,
                ratio=1.02,
                low=0.97,
                high=1.07,
                pairs=25,
            ),
        ),
        largest_difference=0.0,
        bound=1e-4,
        bound_reason="sums reordered",
        notes=("a note",),
        duration_s=12.0,
        points=points,
        chosen=chosen.options,
        program="import onnxruntime as ort\n" if chosen.options else "",
        session_count=20,
        sessions=sessions,
        fix=fix,
    )
