"""A weight is stored a second time as its transpose.

Of two matrices one is the other's transpose, bit for bit: mostly an embedding that is
tied to the output projection, exported once for Gather and once, transposed, for MatMul.

## Why it costs

The file holds the values twice, and so does the session: the embedding stays for Gather,
the transpose stays as a packed copy for MatMul (or as it is, where nothing packs it). One
matrix in memory would do for both.

## What to do

`gemm-transposed`: let the MatMul be a Gemm (or FusedMatMul) with transB=1 that reads the
first matrix; the second is gone from file and load. The kernel still packs a copy for
itself. `overridable-weight` (list the matrix among the graph's inputs too) or the option
`disable-prepacking` ends that copy as well; the products may then be slower.
`separate-packed-weight` leaves the packed copy alone, and of the matrix what Gather reads.

The bytes given are what one matrix, unpacked, would spare.

## Not reported

- Pairs below 64 KiB, vectors, elements of less than a byte.
- Matrices that look the same all over, like zeros: a sample of their elements is equal.
- Matrices of rank 3 and more, but for leading axes of length 1.
- Matrices of more than 32 MiB that no file has as they are: sparse ones, and whole numbers in
  typed fields.
"""

from collections.abc import Iterator

from memdiag.model.transposes import transposes
from memdiag.records.attribution import CopyKind
from memdiag.records.finding import ExpectedCopies, Finding
from memdiag.records.weights import Weight
from memdiag.rules.examined import Examined, qualified
from memdiag.rules.groups import LEAST_BYTES, listed_by_name
from memdiag.rules.load_peak import LoadPeak, alone
from memdiag.rules.residents import Resident, Residents
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


def detect(examined: Examined) -> Iterator[Finding]:
    """Yield a finding for each pair of matrices."""
    if not examined.reads_weights:
        return
    residents, peaks = Residents(examined), LoadPeak(examined)
    repeated = {weight for group in examined.same_content for weight in group[1:]}
    candidates = [
        weight
        for weight in examined.model.weights
        if weight not in repeated and _may_be_one(examined, weight)
    ]
    for one, other in transposes(examined.model, candidates):
        yield _finding(examined, peaks, (one, other), (residents.of(one), residents.of(other)))


def _may_be_one(examined: Examined, weight: Weight) -> bool:
    return (
        weight.nbytes >= LEAST_BYTES
        and weight.place != "attribute"
        and bool(examined.graphs.scopes(weight))
    )


def _finding(
    examined: Examined,
    peaks: LoadPeak,
    pair: tuple[Weight, Weight],
    both: tuple[Resident, Resident],
) -> Finding:
    one, other = pair
    size = one.nbytes
    originals = sum(each.original or each.retained or each.kept for each in both)
    folded = sum(copy.nbytes for each in both for copy in each.folded)
    packs = sum(pack.nbytes for each in both for pack in each.packs)
    nbytes = max(0, originals * size + folded + packs - size)
    external = (weight for weight in pair if weight.storage == "external")
    seen = all(listed_by_name(examined, weight) for weight in pair)
    held = f"originals of {format_size(originals * size)}" if originals else "no original"
    copies = f"copies of {format_size(folded + packs)}" if folded + packs else "no copies"
    return RULE.finding(
        examined,
        f"{qualified(other)} ({format_size(size)}, {list(other.shape)}) is the transpose of "
        f"{qualified(one)}, stored a second time.",
        detail=(
            f"onnxruntime {examined.runtime} keeps {held} and {copies}, "
            f"where one matrix of {format_size(size)} would do."
        ),
        weights=map(qualified, pair),
        nodes=(
            examined.node(reader.scope, reader.node)
            for weight in pair
            for reader in examined.readers(weight)
            if not reader.path
        ),
        nbytes=nbytes,
        peak_bytes=peaks.saved(
            [peaks.load(weight) for weight in pair], [alone(next(external, one))]
        ),
        retained_bytes=sum(
            each.retained_bytes(weight) for weight, each in zip(pair, both, strict=True)
        ),
        phase="steady" if nbytes else "parse",
        expected=tuple(_expected(pair, both)) if seen and nbytes else (),
    )


def _expected(
    pair: tuple[Weight, Weight], both: tuple[Resident, Resident]
) -> Iterator[ExpectedCopies]:
    """Yield the copies that the X-ray would see of both, by kind."""
    sizes: dict[CopyKind, list[int]] = {}
    for place, (weight, stays) in enumerate(zip(pair, both, strict=True)):
        # In memory the second one is the first one's transpose, in a mapped file it is itself.
        turned = place == 1 and weight.storage != "external"
        kind: CopyKind = "transposed" if turned else "original"
        sizes.setdefault(kind, []).extend([weight.nbytes] * stays.originals)
        for copy in stays.folded:
            if not copy.retained:
                sizes.setdefault(copy.kind, []).append(copy.nbytes)
        for pack in stays.packs:
            sizes.setdefault(pack.kind, []).append(pack.nbytes)
    labels = tuple(map(qualified, pair))
    for kind, found in sizes.items():
        if found:
            yield ExpectedCopies(weights=labels, kind=kind, count=len(found), bytes=sum(found))
