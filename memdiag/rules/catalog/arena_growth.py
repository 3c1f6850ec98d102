"""Free dimensions let the arena grow to the size that the largest input needs, and stay so large.

onnxruntime takes the memory of activations from an arena. The arena grows with each
input that is larger than those before, at least doubling its last region, and releases
nothing until the session ends, so that one long text or large batch sets the
resident memory of a server permanently. With memory patterns (on by default) each new
combination of input shapes also gets one block planned for it, which must fit next to the
pieces that earlier shapes left.

## Why it costs

The finding states the memory that activations take at once, at the sizes that it names and at
twice each of these sizes. It is computed from inferred shapes: a value counts from the node that
computes it to the last node that reads it, in the order of execution, with shared buffers counted
once, and without values that the runtime fuses away (Gelu, sums behind convolutions, products of
quantized weights). The arena takes more from the system, because it grows by doubling and also
serves the scratch memory of kernels; a second run in the same shapes allocates its planned block
in addition to the memory that the first run left. On models of text and images with 1.31.1, 2.1
to 3.3 times the figure stayed resident after a few runs, and almost nothing with the arena off.

## What to do

- Give the sizes that you really use: `--dim batch=16,sequence=512`. Where one is not
  given, a realistic size is assumed (`memdiag check` lists them), and the finding
  claims no bytes.
- `arena-shrinkage` sets the run option `memory.enable_memory_arena_shrinkage` to
  `cpu:0`: unused memory is released to the system after each run, and allocated again in
  the next one.
- `arena-off` sets `enable_cpu_mem_arena` to False; set `MALLOC_MMAP_THRESHOLD_=131072`
  in the environment with it, or glibc may keep what was freed.
- `patterns-off` sets `enable_mem_pattern` to False, for inputs of many different shapes.
- Pad or split the inputs to a few sizes.

## Not reported

Activations of less than 64 MiB; at assumed sizes also activations of less than a quarter of the
weights. Values whose shape depends on the data count as nothing.
"""

from collections.abc import Iterator

from memdiag.ort.activations import ActivationPeak, DimensionSizes, choose_dimensions
from memdiag.ort.analysis import AnalysisContext
from memdiag.records.finding import Finding
from memdiag.rules.finding_words import free_dimensions_text
from memdiag.rules.rule import Rule
from memdiag.units import MIB, format_size

RULE = Rule(
    code="MD601",
    name="arena-growth",
    summary="Free dimensions let the arena grow to the size of the largest input, permanently",
    remedies=("arena-shrinkage", "arena-off", "patterns-off"),
)

_MIN_ARENA_GROWTH_BYTES = 64 * MIB
_MIN_ASSUMED_SHARE = 0.25
"""The share of the bytes of the weights from which activations at assumed sizes are reported."""
_MAX_DOUBLED_DIMENSIONS = 4


def detect(ctx: AnalysisContext) -> Iterator[Finding]:
    """Yield at most one finding: the memory of activations and its growth with free dimensions."""
    sizes = choose_dimensions(ctx.model_file, ctx.sizes)
    if not sizes.by_name:
        return
    weight_bytes = ctx.model_file.weight_bytes
    min_bytes = (
        max(_MIN_ARENA_GROWTH_BYTES, _MIN_ASSUMED_SHARE * weight_bytes)
        if sizes.assumed
        else _MIN_ARENA_GROWTH_BYTES
    )
    if not ctx.activations_may_exceed(min_bytes - 1, sizes.by_name):
        return
    activations = ctx.activations(sizes.by_name)
    if activations.peak_bytes < min_bytes or activations.scope is None or activations.node is None:
        return
    assumed_text = ", assumed sizes" if sizes.assumed else ""
    yield RULE.finding(
        ctx,
        f"Activations take about {format_size(activations.peak_bytes)} at "
        f"{free_dimensions_text(sizes.by_name)}{assumed_text}"
        f"{_doubled_dimensions_clause(ctx, sizes, activations)}",
        detail="The arena keeps at least as much from one run to the next; memory patterns can "
        "take as much again from the second run on, and for each new combination of input shapes.",
        nodes=[ctx.graphs.qualified(activations.scope, activations.node)],
        nbytes=0 if sizes.assumed else activations.peak_bytes,
        peak_bytes=0,
        run_bytes=0 if sizes.assumed else activations.peak_bytes,
        phase="first_run",
    )


def _doubled_dimensions_clause(
    ctx: AnalysisContext, sizes: DimensionSizes, activations: ActivationPeak
) -> str:
    """Return a clause with the memory of activations at twice the size of each free dimension."""
    dimensions_by_peak: dict[str, list[str]] = {}
    for name, size in list(sizes.by_name.items())[:_MAX_DOUBLED_DIMENSIONS]:
        activations_doubled = ctx.activations({**sizes.by_name, name: 2 * size})
        # A graph that does not fit the doubled size leaves shapes unknown.
        if (
            size
            and activations_doubled.unknown <= activations.unknown
            and activations_doubled.peak_bytes > activations.peak_bytes
        ):
            peak_text = format_size(activations_doubled.peak_bytes)
            dimensions_by_peak.setdefault(peak_text, []).append(f"{name}={2 * size}")
    return "".join(
        f"; {peak_text} at {' or '.join(dimensions)}"
        for peak_text, dimensions in dimensions_by_peak.items()
    )
