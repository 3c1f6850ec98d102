"""Weights move from the model file to an aligned data file beside it, which is mapped.

A session then maps the weights that no kernel packs instead of copying them, all processes share
the pages, and the peak while the model file is parsed is gone.

It hurts where a model has to be one file.
"""

from memdiag.records.finding import Finding
from memdiag.remedies.draft import Draft
from memdiag.remedies.rewrite import Rewrite

REWRITE = Rewrite(
    name="externalize",
    summary="move the weights to an aligned data file beside the model",
    rules=(
        "constant-nodes",
        "embedded-weights",
        "external-data-unused",
        "sparse-densified",
        "typed-fields",
    ),
    arithmetic="same",
)


def check(draft: Draft, finding: Finding) -> str | None:
    """Return why the weights cannot be moved; None if they can."""
    return "they are moved already" if draft.storage is not None else None


def apply(draft: Draft, finding: Finding) -> bool:
    """Have the draft saved with external data; return whether that is new."""
    if draft.storage is not None:
        return False
    draft.storage = "external"
    return True
