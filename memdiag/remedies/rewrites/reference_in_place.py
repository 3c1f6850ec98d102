"""Weights stay where they lie in the original, which the new model refers to.

The new model is a few kilobytes, and a session maps the weights from the original's own file:
nothing is copied, neither on disk nor in memory.

It hurts where the two files are parted: the new one is worth nothing without the original, which
must not change. Only weights whose offsets suit the kernels can stay.
"""

from memdiag.records.finding import Finding
from memdiag.remedies.draft import Draft
from memdiag.remedies.rewrite import Rewrite
from memdiag.remedies.saving import IN_PLACE_ALIGNMENT, aligned

REWRITE = Rewrite(
    name="reference-in-place",
    summary="refer to the weights where they lie in the original file",
    rules=("embedded-weights",),
    arithmetic="same",
)


def check(draft: Draft, finding: Finding) -> str | None:
    """Return why the weights cannot stay where they lie; None if they can."""
    if draft.storage is not None:
        return "they are moved already"
    if not aligned(draft, IN_PLACE_ALIGNMENT):
        return f"weights do not lie at multiples of {IN_PLACE_ALIGNMENT} bytes in the file"
    return None


def apply(draft: Draft, finding: Finding) -> bool:
    """Have the draft saved as references; return whether that is new."""
    if check(draft, finding) is not None:
        return False
    draft.storage = "in_place"
    return True
