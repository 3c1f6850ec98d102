"""A weight is stored a second time as its transpose.

Of two matrices one is the other's transpose, bit for bit: mostly an embedding that is
tied to the output projection, exported once for Gather and once, transposed, for MatMul.

## Why it costs

The file stores the values twice, and so does the session: the embedding stays for Gather,
the transpose stays as a packed copy for MatMul (or as it is, where nothing packs it). One
matrix in memory would do for both.

## What to do

`gemm-transposed`: let the MatMul be a Gemm (or FusedMatMul) with transB=1 that reads the
first matrix; the second is gone from file and load. The kernel still packs a copy for
itself. `overridable-weight` (list the matrix among the graph's inputs too) or the option
`disable-prepacking` ends that copy as well; the products may then be slower.
`separate-packed-weight` leaves the packed copy alone, and of the matrix what Gather reads.

The bytes given are what a single matrix, unpacked, would save.

## Not reported

- Pairs below 64 KiB, vectors, elements of less than a byte.
- Matrices that look the same all over, like zeros: a sample of their elements is equal.
- Matrices of rank 3 and more, except with leading axes of length 1.
- Matrices of more than 32 MiB that no file has as they are: sparse ones, and whole numbers in
  typed fields.
"""

from collections.abc import Iterator

from memdiag.model.transposes import transposed_weight_pairs
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.session_constants import LoadedWeight, packed_buffers
from memdiag.records.attribution import CopyKind
from memdiag.records.finding import ExpectedCopies, Finding
from memdiag.records.weights import Weight, qualified_name
from memdiag.rules.equal_weight_groups import (
    MIN_EQUAL_BYTES,
    direct_reader_names,
    is_listed_by_name,
)
from memdiag.rules.expected_copies import expected_copies
from memdiag.rules.rule import Rule
from memdiag.units import format_size

RULE = Rule(
    code="MD102",
    name="stored-transpose",
    summary="A weight stored a second time as its transpose",
    remedies=(
        "merge-transposed",
        "separate-packed-weight",
        "product-by-rows",
        "gemm-transposed",
        "fused-matmul-transposed",
        "transpose-small-side",
        "overridable-weight",
        "disable-prepacking",
    ),
)


def detect(ctx: AnalysisContext) -> Iterator[Finding]:
    """Yield a finding for each pair of matrices where one is the transpose of the other."""
    if not ctx.reads_weights:
        return
    repeated = {weight for group in ctx.equal_weights for weight in group[1:]}
    candidates = [
        weight
        for weight in ctx.model_file.weights
        if weight.nbytes >= MIN_EQUAL_BYTES
        and weight.origin != "attribute"
        and ctx.graphs.scopes(weight)
        and weight not in repeated
    ]
    for weight, transposed in transposed_weight_pairs(ctx.model_file, candidates):
        yield _stored_transpose_finding(ctx, weight, transposed)


def _stored_transpose_finding(ctx: AnalysisContext, weight: Weight, transposed: Weight) -> Finding:
    session, size, pair = ctx.session, weight.nbytes, (weight, transposed)
    loaded = [session.weight(matrix) for matrix in pair]
    originals = sum(matrix.is_read or matrix.is_kept for matrix in loaded)
    folded = sum(copy.nbytes for matrix in pair for copy in session.folded_copies(matrix))
    packed = sum(buffer.nbytes for matrix in loaded for buffer in packed_buffers([matrix]))
    nbytes = max(0, originals * size + folded + packed - size)
    external = (matrix for matrix in pair if matrix.storage == "external")
    single = LoadedWeight.unpacked(next(external, weight))
    is_listed = all(is_listed_by_name(ctx, matrix) for matrix in pair)
    originals_text = f"originals of {format_size(originals * size)}" if originals else "no original"
    copies_text = f"copies of {format_size(folded + packed)}" if folded + packed else "no copies"
    return RULE.finding(
        ctx,
        f"{qualified_name(transposed)} ({format_size(size)}, {list(transposed.shape)}) is the "
        f"transpose of {qualified_name(weight)}, stored a second time.",
        detail=(
            f"onnxruntime {ctx.runtime} keeps {originals_text} and {copies_text}, "
            f"where one matrix of {format_size(size)} would do."
        ),
        weights=map(qualified_name, pair),
        nodes=direct_reader_names(ctx, pair),
        nbytes=nbytes,
        peak_bytes=ctx.peak_reduction(loaded, [single]),
        phase="steady" if nbytes else "parse",
        expected=_expected_matrix_copies(ctx, loaded) if is_listed and nbytes else (),
    )


def _expected_matrix_copies(
    ctx: AnalysisContext, loaded: list[LoadedWeight]
) -> Iterator[ExpectedCopies]:
    """Return the copies of both matrices that an X-ray should list."""
    sizes: list[tuple[CopyKind, int]] = []
    for index, matrix in enumerate(loaded):
        # In memory the second matrix is a transpose of the first, in a mapped file an original.
        is_transposed = index == 1 and matrix.weight.storage != "external"
        kind: CopyKind = "transposed" if is_transposed else "original"
        sizes += [(kind, matrix.weight.nbytes)] * matrix.original_copies
        copies = ctx.session.folded_copies(matrix.weight)
        sizes += [(copy.kind, copy.nbytes) for copy in copies]
        buffers = packed_buffers([matrix])
        sizes += [(buffer.kind, buffer.nbytes) for buffer in buffers]
    return expected_copies([matrix.weight for matrix in loaded], sizes)
