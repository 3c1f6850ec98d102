"""Constants of one name in several graphs: the runtime tells them apart too late to free them all.

Sibling branches may use one name for constants of their own. While kernels pack, the runtime counts
the nodes that still need a constant by its name alone, over all graphs. The count reaches zero at
the last of the namesakes: it is freed, and those before it stay, although nothing reads them.
"""

from collections.abc import Iterable

from memdiag.model.graph_index import GraphIndex, Scope
from memdiag.ort.folds import Fold
from memdiag.records.weights import Weight


class Namesakes:
    """Finds which constants of subgraphs have namesakes that are packed after them.

    `folds` are the nodes that are folded, `weights` those of the model.
    """

    def __init__(
        self, graphs: GraphIndex, weights: Iterable[Weight], folds: Iterable[Fold]
    ) -> None:
        # Graphs are made ready in this order: outer ones first, then the bodies of each node.
        # Those of functions are no scopes of their own by then, and their names made unique.
        ready = (scope for _, scope in graphs if not scope.is_function)
        self._order = {scope: place for place, scope in enumerate(ready)}
        self._last: dict[str, int] = {}
        for weight in weights:
            for scope in graphs.scopes(weight) if weight.graph else ():
                self._note(scope, weight.name)
        for fold in folds:
            if fold.stays:
                self._note(fold.scope, fold.output)

    def _note(self, scope: Scope, name: str) -> None:
        place = self._order.get(scope, 0)
        self._last[name] = max(place, self._last.get(name, 0))

    def followed(self, scope: Scope, name: str) -> bool:
        """Return whether a graph made ready after `scope` has a constant called `name` as well."""
        return scope in self._order and self._last.get(name, 0) > self._order[scope]
