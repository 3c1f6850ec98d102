"""Candidates: changes that save enough to be kept, their order of preference, and the result."""

from dataclasses import dataclass
from typing import NamedTuple

from memdiag.fixing.changes import Change
from memdiag.fixing.model_writer import SavedModel
from memdiag.records.measured_change import Figures
from memdiag.verify.acceptance import takes_less_memory, takes_less_time
from memdiag.verify.model_evaluator import Comparisons, ModelEvaluation
from memdiag.verify.outputs import Bound


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A change that saves enough memory to be kept.

    Attributes:
        change: the change.
        before: the figures of the model without the change.
        after: the figures of the model with it.
        evaluation: the comparison of the whole model with the original.
        is_valid: whether the model passes `onnx.checker`.
        digest: hash of the model's files.
        kept_count: number of the original's files that the model needs.
        file_count: number of all files that it needs.
        is_confirmed: whether it was measured as thoroughly as is required of a result.
    """

    change: Change
    before: Figures
    after: Figures
    evaluation: ModelEvaluation
    is_valid: bool | None
    digest: bytes
    kept_count: int
    file_count: int
    is_confirmed: bool = False

    @property
    def comparisons(self) -> Comparisons:
        """The latency comparisons of the changed model with the original."""
        return self.evaluation.comparisons


class UndecidedChange(NamedTuple):
    """Outcome of a change that saves memory and may be too slow.

    Attributes:
        reason: the saving, and the latency ratio that may exceed the limit.
    """

    reason: str


@dataclass(frozen=True, kw_only=True)
class VerifiedResult:
    """The published model and its comparison with the original.

    Attributes:
        output: the published model.
        evaluation: outputs and latency beside the original.
        bound: the allowed difference of outputs.
        before, after: the figures of the original and of the published model.
        verified_on: the releases of onnxruntime on which outputs were compared.
        measured_once: whether its memory was measured in one process only.
    """

    output: SavedModel
    evaluation: ModelEvaluation
    bound: Bound
    before: Figures
    after: Figures
    verified_on: tuple[str, ...]
    measured_once: bool = False


def preferred(
    first: Candidate, second: Candidate, *, least_share: float = 0.0
) -> tuple[Candidate, str]:
    """Return the better of two candidates, and the reason.

    The first of these that differs decides:

    1. memory, if one certainly takes less, by more than `least_share` of the peak;
    2. time, if one certainly takes less;
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
            _is_less(first.kept_count, second.kept_count),
            "is as good, and needs fewer of the original's files",
        ),
        (_is_less(first.file_count, second.file_count), "is as good, in fewer files"),
        (
            _is_less(not first.change.is_exact, not second.change.is_exact),
            "is as good, and changes no bit",
        ),
    )
    for is_better, why in criteria:
        if is_better is not None:
            return (first if is_better else second), why
    return first, "is as good, as far as it is certain"


def _is_less(first: int, second: int) -> bool | None:
    return None if first == second else first < second
