"""The copies of weights that an X-ray should list if a finding is right."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from memdiag.ort.analysis import qualified_name
from memdiag.records.attribution import CopyKind
from memdiag.records.finding import ExpectedCopies
from memdiag.records.weights import Weight


def expected_copies(
    weights: Iterable[Weight], sizes: Iterable[tuple[CopyKind, int]]
) -> Iterator[ExpectedCopies]:
    """Yield for each kind the copies of `weights`, weights of equal content.

    `sizes` has an entry for each copy: its kind, and its size in bytes.
    """
    names = tuple(map(qualified_name, weights))
    by_kind: dict[CopyKind, list[int]] = defaultdict(list)
    for kind, nbytes in sizes:
        by_kind[kind].append(nbytes)
    for kind, of_kind in by_kind.items():
        yield ExpectedCopies(weights=names, kind=kind, count=len(of_kind), bytes=sum(of_kind))
