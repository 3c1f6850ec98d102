"""Candidates: changes that save enough to be kept, their order of preference, and the result."""

from dataclasses import dataclass

from memdiag.fixing.changes import Change
from memdiag.fixing.model_writer import SavedModel
from memdiag.records.measured_change import Figures
from memdiag.verify.acceptance import takes_less_memory, takes_less_time
from memdiag.verify.model_evaluator import LatencyComparisons, ModelEvaluation


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Changes that save enough memory to be kept.

    Attributes:
        changes: the changes, at least one.
        before: the figures of the model without them.
        after: the figures of the model with them.
        evaluation: the comparison of the whole model with the original.
        is_valid: whether the model passes `onnx.checker`.
        kept_count: number of the original's files that the model needs.
        file_count: number of all files that it needs.
    """

    changes: tuple[Change, ...]
    before: Figures
    after: Figures
    evaluation: ModelEvaluation
    is_valid: bool | None
    kept_count: int
    file_count: int

    @property
    def name(self) -> str:
        """The names of the changes."""
        return " + ".join(change.name for change in self.changes)

    @property
    def is_exact(self) -> bool:
        """Whether all kernels stay."""
        return all(change.is_exact for change in self.changes)

    @property
    def comparisons(self) -> LatencyComparisons:
        """The latency comparisons of the changed model with the original."""
        return self.evaluation.comparisons


@dataclass(frozen=True, kw_only=True)
class RewrittenModel:
    """The staged model with all accepted changes, and its comparison with the original.

    Attributes:
        output: the staged model.
        evaluation: outputs and latency next to the original.
        figures: its memory, measured once.
        is_valid: whether it passes `onnx.checker`.
        same_kernels: whether no change replaces a kernel.
    """

    output: SavedModel
    evaluation: ModelEvaluation
    figures: Figures
    is_valid: bool | None
    same_kernels: bool


def preferred_candidate(
    first: Candidate, second: Candidate, *, least_share: float = 0.0
) -> tuple[Candidate, str]:
    """Return the better of two candidates, and the reason.

    The first of these criteria in which the candidates differ decides:

    1. memory, if one candidate certainly takes less, by more than `least_share` of the peak;
    2. time, if one candidate certainly takes less;
    3. the number of files of the original that the model needs;
    4. the number of all files that it needs;
    5. whether the arithmetic is that of the original.

    Otherwise it is the first candidate.
    """
    criteria = (
        (takes_less_memory(first.after, second.after, least_share=least_share), "takes less"),
        (
            takes_less_time(first.comparisons, second.comparisons),
            "takes as much, and less time",
        ),
        (
            _is_smaller_number(first.kept_count, second.kept_count),
            "is as good, and needs fewer of the original's files",
        ),
        (_is_smaller_number(first.file_count, second.file_count), "is as good, in fewer files"),
        (
            _is_smaller_number(not first.is_exact, not second.is_exact),
            "is as good, and changes no bit",
        ),
    )
    for is_better, reason in criteria:
        if is_better is not None:
            return (first if is_better else second), reason
    return first, "is as good, as far as it is certain"


def _is_smaller_number(first: int, second: int) -> bool | None:
    return None if first == second else first < second
