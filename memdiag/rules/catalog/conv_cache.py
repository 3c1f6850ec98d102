"""onnxruntime 1.24 to 1.26 keeps memory for each new input of a Conv, on Arm processors with SME.

A defect of these releases ([report](https://github.com/microsoft/onnxruntime/issues/28231),
[fix](https://github.com/microsoft/onnxruntime/pull/28363)): the KleidiAI kernel of Conv keeps its
packed input by a hash of the content. Each new image or recording adds an entry, and none is
removed.

## Why it costs

Memory grows with each run whose input is new. This was **reported, not measured here**, as memdiag
is developed on x86: 11 MB a call with 1.24.1 to 1.26.0 and none with 1.23.0
([report](https://github.com/dmarzzz/VoxTerm/pull/166)); 25 to 31 MB an image with 1.24 and none
with 1.28 ([report](https://github.com/LrGenius/LrGeniusAI/pull/231)). Apple's M4 and M5 have SME;
an M1 was reported not to grow.

The finding claims no bytes and does not set the exit code of `memdiag check`.

## What to do

- Use onnxruntime 1.27.1 or newer. (1.27.0 no longer keeps the inputs, but was
  [reported](https://github.com/k2-fsa/sherpa-onnx/issues/3791) to compute such convolutions wrong.)
- Or set the session config entry `mlas.disable_kleidiai` to `1`, which makes convolutions slower.

`memdiag leak model.onnx` measures it on the machine concerned.

## Not reported

On other processors than the one that runs `memdiag check`. Convolutions that this kernel does not
take: other than 2-D, kernels smaller than 3 × 3, a batch, one output channel in a group, or
different padding at the edges.
"""

from collections.abc import Iterator

from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.processor import has_sme
from memdiag.ort.releases import CONV_CACHE_FIXED_SINCE
from memdiag.records.finding import Finding
from memdiag.rules.float_convs import FloatConv, float_convs
from memdiag.rules.rule import Rule
from memdiag.units import plural, some_of

RULE = Rule(
    code="MD803",
    name="conv-cache",
    summary="onnxruntime 1.24 to 1.26 keeps memory for each new input of a Conv, on Arm with SME",
    is_advisory=True,
)

_MIN_CACHED_KERNEL_SIZE = 3


def detect(ctx: AnalysisContext) -> Iterator[Finding]:
    """Yield at most one finding: the Conv nodes with that kernel, on such a machine and release."""
    if ctx.runtime >= CONV_CACHE_FIXED_SINCE or not has_sme():
        return
    names = [conv.name for conv in float_convs(ctx) if _is_computed_by_kleidiai(conv)]
    if names:
        yield RULE.finding(
            ctx,
            f"onnxruntime {ctx.runtime} keeps memory for each new input of the "
            f"{plural(len(names), 'convolution')} {some_of(names)} on this processor (reported, "
            "not measured)",
            detail="It is a defect of 1.24 to 1.26 on Arm processors with SME. Use 1.27.1 or "
            "newer, or set the session config entry mlas.disable_kleidiai to 1.",
            nodes=names,
            phase="steady",
        )


def _is_computed_by_kleidiai(conv: FloatConv) -> bool:
    """Return whether KleidiAI's caching kernel computes `conv`."""
    return (
        len(conv.kernel) == 2
        and min(conv.kernel) >= _MIN_CACHED_KERNEL_SIZE
        and conv.outputs > 1
        and conv.batch in (None, 1)
        and len(set(conv.pads)) <= 1
        and not conv.is_auto_padded
    )
