"""Changes that are worth having, which of two is the better one, and what proves the result."""

from dataclasses import dataclass
from typing import NamedTuple

from memdiag.api.fixing.changes import Change
from memdiag.api.fixing.files import Output
from memdiag.records.fix import Figures
from memdiag.verify.bench import Verdict
from memdiag.verify.judgement import Races, takes_less, takes_less_time
from memdiag.verify.outputs import Bound


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A change that is worth having: what the model takes with it, and before it.

    `verdict` is that of the whole model beside the original, `digest` its contents', `kept_count`
    how many of the original's files it needs, and `file_count` how many in all.
    """

    change: Change
    before: Figures
    after: Figures
    verdict: Verdict
    is_valid: bool | None
    digest: bytes
    kept_count: int
    file_count: int

    @property
    def races(self) -> Races:
        """Its latencies beside the original's."""
        return self.verdict.races


class Undecided(NamedTuple):
    """A change that saves memory, of which it could not be measured whether it is too slow."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What was found of the result beside the original, and where it is.

    `verified_on` are the releases of onnxruntime on which it gives what the original gives.
    """

    output: Output
    verdict: Verdict
    bound: Bound
    before: Figures
    after: Figures
    verified_on: tuple[str, ...]


def preferred(one: Candidate, other: Candidate) -> tuple[Candidate, str]:
    """Return the better of two candidates, and what speaks for it.

    That is memory, or else time, where it can be told. Otherwise a model that needs fewer of the
    original's files is preferred, then fewer files at all, then one whose arithmetic is the
    original's, then the first.
    """
    orders = (
        (takes_less(one.after, other.after), "takes less"),
        (takes_less_time(one.races, other.races), "takes as much, and less time"),
        (_is_less(one.kept_count, other.kept_count), "is as good, and stands alone"),
        (_is_less(one.file_count, other.file_count), "is as good, in fewer files"),
        (_is_less(_is_inexact(one), _is_inexact(other)), "is as good, and changes no bit"),
    )
    for is_better, why in orders:
        if is_better is not None:
            return (one if is_better else other), why
    return one, "is as good"


def _is_inexact(candidate: Candidate) -> bool:
    return not candidate.change.is_exact


def _is_less(one: int, other: int) -> bool | None:
    return None if one == other else one < other
