"""Copies of weights that an X-ray should list if a finding is right."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from memdiag.records.attribution import CopyKind
from memdiag.records.finding import ExpectedCopies
from memdiag.records.weights import Weight, qualified_name


def expected_copies(
    weights: Iterable[Weight], sizes: Iterable[tuple[CopyKind, int]]
) -> Iterator[ExpectedCopies]:
    """Yield the expected copies of `weights`, which have equal content, for each kind.

    `sizes` has the kind and the size in bytes of each copy.
    """
    names = tuple(map(qualified_name, weights))
    sizes_by_kind: dict[CopyKind, list[int]] = defaultdict(list)
    for kind, nbytes in sizes:
        sizes_by_kind[kind].append(nbytes)
    for kind, kind_sizes in sizes_by_kind.items():
        yield ExpectedCopies(weights=names, kind=kind, count=len(kind_sizes), bytes=sum(kind_sizes))
