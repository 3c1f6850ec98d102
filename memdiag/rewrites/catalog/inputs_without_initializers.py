"""Remove weights from the graph's inputs, so that they are constants to onnxruntime.

An initializer that is also listed as an input is only a default, which is neither folded nor
packed: what could be computed once is computed in every run. Most exporters list initializers
without intent.

The drawback is that callers can no longer set such an input.
"""

from memdiag.records.finding import Finding
from memdiag.rewrites.edited_weights import is_main_initializer
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.rewrites.rewrite import Rewrite

REWRITE = Rewrite(
    name="inputs-without-initializers",
    summary="remove weights from the graph's inputs, so that they are constants",
    arithmetic="reordered",
)


def check(editor: ModelEditor, finding: Finding) -> str | None:
    """Return why none of the weights can be removed from the inputs; None if one can."""
    if any(_is_listed_initializer(editor, name) for name in finding.weights):
        return None
    return "none of the weights is listed as an input"


def apply(editor: ModelEditor, finding: Finding) -> bool:
    """Remove the weights from the inputs; return whether any was there."""
    listed_names = [name for name in finding.weights if _is_listed_initializer(editor, name)]
    for name in listed_names:
        value = editor.value(name)
        if value is not None and value.is_graph_input():
            editor.model.graph.inputs.remove(value)
    return bool(listed_names)


def _is_listed_initializer(editor: ModelEditor, name: str) -> bool:
    value = editor.value(name)
    return value is not None and is_main_initializer(editor, value) and value.is_graph_input()
