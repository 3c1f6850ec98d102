"""How thoroughly the search of a fix measures."""

from dataclasses import dataclass

from memdiag.verify.latency import CLEARLY_ABOVE, QUICK_PAIRS


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How thoroughly changes and the result are measured.

    Attributes:
        is_quick: whether comparisons have few pairs of runs, with the first inputs and with all in
            turn, so that they only reveal what is clearly slower, and candidates are not measured
            again.
        pairs: pairs of runs with which a change that saves memory is compared.
        final_pairs: pairs of runs with which the result is compared.
        processes: the processes of each model in which the memory of a candidate that is accepted,
            and that of the result, is measured.
        doubt: by which factor the allowed slowdown has to be exceeded for a change to count as
            slower.
        least_share: a difference of memory below this share of the peak is ignored, so that latency
            decides between two candidates.
    """

    is_quick: bool
    pairs: int
    final_pairs: int
    processes: int
    doubt: float
    least_share: float


THOROUGH = Effort(is_quick=False, pairs=16, final_pairs=32, processes=3, doubt=1.0, least_share=0.0)
"""For a result that is published as it is."""

QUICK = Effort(
    is_quick=True,
    pairs=QUICK_PAIRS,
    final_pairs=QUICK_PAIRS,
    processes=1,
    doubt=CLEARLY_ABOVE,
    least_share=0.05,  # few pairs do not reveal which is slower, so a little memory decides nothing
)
"""For a result that is verified again."""
