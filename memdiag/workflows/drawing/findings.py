"""The drawings of a model's findings: as it is, and as the first rewrite that applies makes it."""

from collections.abc import Iterator, Sequence

import msgspec

from memdiag.errors import MemdiagError
from memdiag.graph.reader import ModelFile
from memdiag.records.drawing import Drawing, RemediedDrawing
from memdiag.records.finding import Finding
from memdiag.remedies.draft import Draft
from memdiag.remedies.rewrite import Rewriter
from memdiag.remedies.rewrites import rewriters
from memdiag.workflows.drawing.drawn import Places, draw
from memdiag.workflows.drawing.neighbourhood import Neighbourhood, after, around, wiring

MOST_DRAWN = 20
"""Findings that are drawn, the costliest ones."""

_MOST_NODES = 30_000
"""Nodes in all drafts together: a draft takes about a tenth of a millisecond a node."""

_LONGEST_REASON = 200


def with_drawings(
    findings: Sequence[Finding], file: ModelFile
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Return `findings`, in the open model, the first of them with drawings; and what went wrong.

    Nothing here fails: what cannot be drawn is left out.
    """
    if not findings or file.node_count > _MOST_NODES:
        return tuple(findings), ()
    drawings = _Drawings(file)
    drawn = tuple(drawings.of(finding) for finding in findings[:MOST_DRAWN])
    return (*drawn, *findings[MOST_DRAWN:]), tuple(dict.fromkeys(drawings.notes))


class _Drawings:
    """Draws one finding after the other, each on a draft that no rewrite has changed."""

    def __init__(self, file: ModelFile) -> None:
        self.notes: list[str] = []
        self._file = file
        self._left = _MOST_NODES
        self._draft: Draft | None = None
        self._places: Places | None = None

    def of(self, finding: Finding) -> Finding:
        """Return `finding` with its drawings, as far as there are any."""
        try:
            return self._drawn(finding)
        except MemdiagError:
            return finding  # a graph that cannot be rewritten
        except Exception as error:  # a defect of one drawing must not lose a profile
            what = f"{type(error).__name__}: {error}"[:_LONGEST_REASON]
            self.notes.append(
                f"a finding of rule {finding.name} could not be drawn, which is a defect of"
                f" memdiag's; please report it ({what})"
            )
            self._draft = None
            return finding

    def _drawn(self, finding: Finding) -> Finding:
        draft, places = self._unchanged()
        if draft is None or places is None:
            return finding
        shown = around(draft, finding)
        drawing = draw(shown, places, finding.graph)
        if drawing is None:
            return finding
        remedied = self._remedied(finding, draft, places, shown, drawing)
        return msgspec.structs.replace(finding, drawing=drawing, remedied=remedied)

    def _unchanged(self) -> tuple[Draft | None, Places | None]:
        if self._draft is None and self._left >= self._file.node_count:
            self._left -= self._file.node_count
            self._draft = Draft(self._file)
            self._places = Places(self._draft)
        return self._draft, self._places

    def _remedied(
        self,
        finding: Finding,
        draft: Draft,
        places: Places,
        shown: Neighbourhood,
        drawing: Drawing,
    ) -> RemediedDrawing | None:
        """Return what the first rewrite that applies makes of what is `shown`.

        None where none applies, and where what it changes is not to be seen.
        """
        names = [places.of_value(weight) for weight in shown.weights]
        before = wiring(shown)
        for rewriter in _rewriters(finding):
            if rewriter.check(draft, finding) is not None:
                continue
            self._draft = None
            if not rewriter.apply(draft, finding):
                return None
            now = Places(draft, places)
            made = now.order.keys() - places.order.keys()
            there = after(shown, before, map(draft.value, names), made)
            changed = draw(there, now, finding.graph)
            if changed is None or _looks_like(changed, drawing):
                return None
            return RemediedDrawing(rewrite=rewriter.rewrite.name, drawing=changed)
        return None


def _rewriters(finding: Finding) -> Iterator[Rewriter]:
    """Yield the safe rewrites among the finding's remedies, in their order."""
    known = {one.rewrite.name: one for one in rewriters() if one.rewrite.safe}
    yield from (known[name] for name in finding.remedies if name in known)


def _looks_like(one: Drawing, other: Drawing) -> bool:
    """Return whether two drawings differ in their emphasis at most."""
    return _plain(one) == _plain(other)


def _plain(drawing: Drawing) -> Drawing:
    nodes = (msgspec.structs.replace(node, emphasis=False) for node in drawing.nodes)
    return msgspec.structs.replace(drawing, nodes=tuple(nodes), omitted=0)
