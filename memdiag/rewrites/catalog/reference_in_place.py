"""Refer to the weights in the original's own file.

The new model is a few kilobytes, and a session maps the weights from the original's file: nothing
is copied, neither on disk nor in memory.

The drawback is that the new model needs the original, which must not change. Only weights at
suitably aligned offsets can be referenced.
"""

from memdiag.records.finding import Finding
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.rewrites.rewrite import Rewrite
from memdiag.rewrites.saving import IN_PLACE_ALIGNMENT, is_aligned

REWRITE = Rewrite(
    name="reference-in-place",
    summary="refer to the weights where they are in the original file",
    arithmetic="same",
)


def check(editor: ModelEditor, finding: Finding) -> str | None:
    """Return why the weights cannot be referenced; None if they can."""
    if editor.storage is not None:
        return "its weights are in another file already"
    if not is_aligned(editor, IN_PLACE_ALIGNMENT):
        return (
            "the file cannot be mapped: its weights are not at multiples of"
            f" {IN_PLACE_ALIGNMENT} bytes"
        )
    return None


def apply(editor: ModelEditor, finding: Finding) -> bool:
    """Set the storage to references; return whether that is new."""
    if check(editor, finding) is not None:
        return False
    editor.storage = "in_place"
    return True
