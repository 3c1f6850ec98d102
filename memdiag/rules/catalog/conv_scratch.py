"""onnxruntime 1.23.2 to 1.26 reserves a large buffer for each thread of some convolutions.

A defect of these releases ([report](https://github.com/microsoft/onnxruntime/issues/28466),
[fix](https://github.com/microsoft/onnxruntime/pull/28482)): a float32 Conv with a batch or with
groups allocates, for each thread, a buffer for the whole input unfolded into a matrix, and uses a
small part of the buffer.

## Why it costs

The arena grows by *pixels of the output × elements of the kernel × input channels of a group* × 4
bytes, times the threads of the session, up to batch × groups. Little of it becomes resident, as it
is not written; but the allocation fails where address space is limited (`ulimit -v`) or memory is
committed when it is allocated (`vm.overcommit_memory=2`). Growth of address space in two
runs, measured in MiB:

| Conv | threads | 1.23.2 to 1.26.0 | 1.27.0, 1.32.0 |
| --- | --- | --- | --- |
| 3-D, 16 channels, batch of 2, 32 × 64 × 64 | 2 | 497 to 498 | 18 |
| the same | 1 | 281 | 66 |
| 3-D, 4 groups of 8 channels, 32 × 64 × 64 | 4 | 545 | 2 to 66 |
| 2-D, 4 groups of 10 channels, 256 × 256 | 4 | 149 | 66 |
| 2-D, 30 channels, batch of 4, 512 × 512 | 4 | 2,180 to 2,244 | 464 to 528 |
| 1-D, 16 groups of 48 channels, kernel 128 | 2 | 76 to 100 | 0 |

1.23.2, 1.24.4, 1.25.1 and 1.26.0 were tried. Their peak of the resident set was up to
63 MiB higher.

The buffer is address space rather than memory, so the finding claims no bytes and does not set
the exit code of `memdiag check`.

## What to do

- Use onnxruntime 1.27 or newer.
- Or give the session fewer threads: `intra_op_num_threads`.

## Not reported

- Less than 256 MiB with 8 threads.
- Convolutions of unknown size: give the sizes with `--dim`.
- 2-D convolutions that onnxruntime converts to its blocked layout, which have other kernels.
  Without groups, these have less than 16 channels or a multiple of 4; with groups, they are
  depthwise, or their groups have multiples of 8 channels.
- 1 × 1 convolutions.
"""

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.releases import CONV_SCRATCH_SHARED_SINCE
from memdiag.records.finding import Finding
from memdiag.rules.float_convs import FloatConv, float_convs
from memdiag.rules.rule import Rule
from memdiag.units import MIB, format_size

RULE = Rule(
    code="MD802",
    name="conv-scratch",
    summary="onnxruntime 1.23.2 to 1.26 reserves a large buffer for each thread of a Conv",
    is_advisory=True,
)

_MIN_CONV_SCRATCH_BYTES = 256 * MIB
_ASSUMED_THREAD_COUNT = 8
_CHANNEL_BLOCK = 8
_LARGE_CHANNEL_BLOCK = 16
"""Channels of a block where registers have 256 bits, and where they have 512."""

_CHANNEL_MULTIPLE = 4
"""Channels of a multiple of this can be reordered into blocks."""


class _ConvScratch(NamedTuple):
    """The buffers of one Conv.

    Attributes:
        nbytes: the bytes for each thread.
        threads: the largest number of threads that have one.
        name: the name of the node.
    """

    nbytes: int
    threads: int
    name: str


def detect(ctx: AnalysisContext) -> Iterator[Finding]:
    """Yield at most one finding: the Conv nodes with large buffers, under a release with them."""
    if ctx.runtime >= CONV_SCRATCH_SHARED_SINCE:
        return
    large = [scratch for conv in float_convs(ctx) if (scratch := _conv_scratch(conv)) is not None]
    large.sort(key=lambda scratch: -scratch.nbytes * min(scratch.threads, _ASSUMED_THREAD_COUNT))
    if not large:
        return
    largest = large[0]
    others_text = f", and {len(large) - 1} more do so" if len(large) > 1 else ""
    yield RULE.finding(
        ctx,
        f"{largest.name} reserves {format_size(largest.nbytes)} for each thread of the session, up "
        f"to {largest.threads:,} times, in each run under onnxruntime {ctx.runtime}{others_text}",
        detail="It is a defect of 1.23.2 to 1.26 and takes address space, but little of it becomes "
        "resident. Use a newer release, or fewer threads.",
        nodes=[scratch.name for scratch in large],
        phase="first_run",
    )


def _conv_scratch(conv: FloatConv) -> _ConvScratch | None:
    """Return the buffers of `conv`; None if they are small or unknown, or if there are none."""
    sizes = [size for size in conv.output if size]
    if len(sizes) < len(conv.output) or _can_use_blocked_layout(conv) or _is_pointwise_conv(conv):
        return None
    pixels = prod(sizes[2:])
    threads = sizes[0] * conv.groups
    if threads < 2 or conv.outputs > pixels:  # otherwise another algorithm, or one buffer for all
        return None
    nbytes = 4 * pixels * max(conv.inputs * prod(conv.kernel), conv.outputs)
    if nbytes * min(threads, _ASSUMED_THREAD_COUNT) < _MIN_CONV_SCRATCH_BYTES:
        return None
    return _ConvScratch(nbytes, threads, conv.name)


def _can_use_blocked_layout(conv: FloatConv) -> bool:
    """Return whether the optimizer may replace `conv` by one in the blocked layout."""
    if len(conv.kernel) != 2:
        return False
    if conv.groups == 1:
        return conv.inputs < _LARGE_CHANNEL_BLOCK or conv.inputs % _CHANNEL_MULTIPLE == 0
    is_depthwise = conv.inputs == 1 and conv.outputs == 1
    return is_depthwise or (
        conv.inputs % _CHANNEL_BLOCK == 0 and conv.outputs % _CHANNEL_BLOCK == 0
    )


def _is_pointwise_conv(conv: FloatConv) -> bool:
    """Return whether `conv` is a product with its input as it is, without a buffer."""
    return prod(conv.kernel) == 1 and not any(conv.pads) and max(conv.strides, default=1) == 1
