"""Move the weights from the model file to an aligned data file next to it, which is mapped.

A session then maps the weights that no kernel packs instead of copying them, all processes share
the pages, and the peak while the model file is parsed is gone.

The drawback is that the model is two files.
"""

from memdiag.records.finding import Finding
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.rewrites.rewrite import Rewrite

REWRITE = Rewrite(
    name="externalize",
    summary="move the weights to an aligned data file next to the model",
    arithmetic="same",
)


def check(editor: ModelEditor, finding: Finding) -> str | None:
    """Return why the weights cannot be moved; None if they can."""
    return "its weights are in another file already" if editor.storage is not None else None


def apply(editor: ModelEditor, finding: Finding) -> bool:
    """Set the storage to external data; return whether that is new."""
    if editor.storage is not None:
        return False
    editor.storage = "external"
    return True
