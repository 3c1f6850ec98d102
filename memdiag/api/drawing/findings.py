"""The drawings of a model's findings: the nodes around each, as the model has them."""

from collections.abc import Sequence

import msgspec

from memdiag.api.drawing.drawn import Places, draw
from memdiag.api.drawing.neighbourhood import around
from memdiag.errors import MemdiagError
from memdiag.model.model_file import ModelFile
from memdiag.records.finding import Finding
from memdiag.rewrites.model_editor import ModelEditor

MOST_DRAWN = 20
"""Findings that are drawn, the costliest ones."""

_MOST_NODES = 30_000
"""Nodes in a model: a draft takes about a tenth of a millisecond a node."""

_LONGEST_REASON = 200


def with_drawings(
    findings: Sequence[Finding], file: ModelFile
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Return `findings`, in the open model, the first of them with drawings; and what went wrong.

    Nothing here fails, and no weight is read: what cannot be drawn is left out.
    """
    if not findings or file.node_count > _MOST_NODES:
        return tuple(findings), ()
    try:
        draft = ModelEditor(file)
        places = Places(draft)
    except MemdiagError:
        return tuple(findings), ()  # a graph that cannot be rewritten
    except Exception as error:  # likewise
        return tuple(findings), (_defect("the findings", error),)
    drawn: list[Finding] = []
    notes: list[str] = []
    for finding in findings[:MOST_DRAWN]:
        try:
            drawing = draw(around(draft, finding), places, finding.graph)
            drawn.append(msgspec.structs.replace(finding, drawing=drawing))
        except Exception as error:  # a defect of one drawing must not lose a profile
            notes.append(_defect(f"a finding of rule {finding.name}", error))
            drawn.append(finding)
    return (*drawn, *findings[MOST_DRAWN:]), tuple(dict.fromkeys(notes))


def _defect(what: str, error: Exception) -> str:
    reason = f"{type(error).__name__}: {error}"[:_LONGEST_REASON]
    return f"{what} could not be drawn, which is a defect of memdiag's; please report it ({reason})"
