"""The predicted constants of a session: which kernel reads or packs each of them.

`PredictedSession` predicts them for one model and release. Its results for one weight or one result
of constant folding are in `session_constants`. The memory that all constants, or some, take at each
moment of loading is in `loading`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from heapq import nlargest
from typing import NamedTuple

from memdiag.model.graph_index import GraphIndex, Node, Scope, Use
from memdiag.model.model_file import ModelFile
from memdiag.model.readers import SAME_ORDER_OPERATORS, WeightReader
from memdiag.model.shapes import ModelShapes
from memdiag.ort.constant_folding import Fold, Folds
from memdiag.ort.fusions import kernel_of
from memdiag.ort.prepacking import NCHWC_BLOCK, packed_buffer
from memdiag.ort.releases import SUBGRAPH_WEIGHTS_KEPT_SINCE
from memdiag.ort.runtime import Runtime
from memdiag.ort.session_constants import FoldedResult, LoadedWeight, PackedUse
from memdiag.records.attribution import CopyKind
from memdiag.records.weights import Weight

MAX_LARGEST_WEIGHTS = 64
"""Number of the largest weights among which the largest other weight is searched for."""

_COPY_KINDS: dict[str, CopyKind] = {"Transpose": "transposed", "Cast": "cast"}


class FoldedCopy(NamedTuple):
    """A copy of a weight that constant folding makes and that is resident at steady state.

    Attributes:
        kind: the kind of copy that the X-ray reports.
        nbytes: its size.
        signature: equal for copies that would be one if their weights were one.
    """

    kind: CopyKind
    nbytes: int
    signature: tuple[object, ...]


class FoldingMemory(NamedTuple):
    """The memory of constant folding.

    Attributes:
        peak_bytes: the maximum at any time.
        kept_bytes: the bytes of the results that stay when everything is evaluated.
        results_bytes: the bytes of the results that are there at the maximum.
        all_bytes: the bytes of all results, before results that nothing reads are dropped.
        fold: the fold that is evaluated at the maximum; None if nothing is evaluated.
    """

    peak_bytes: int
    kept_bytes: int
    results_bytes: int = 0
    all_bytes: int = 0
    fold: Fold | None = None


class PredictedSession:
    """The constants of a session that one release would create from a model.

    Args:
        model_file, graphs, shapes: the model.
        folds: what constant folding evaluates.
        readers: returns the readers of a weight.
        runtime: the release.
        block: the channels of a block of convolutions.
    """

    def __init__(
        self,
        model_file: ModelFile,
        graphs: GraphIndex,
        shapes: ModelShapes,
        folds: Folds,
        readers: Callable[[Weight], Iterable[WeightReader]],
        runtime: Runtime,
        block: int = NCHWC_BLOCK,
    ) -> None:
        self.runtime = runtime
        self._block = block
        self._model_file = model_file
        self._graphs = graphs
        self._shapes = shapes
        self.folds = folds
        self._readers = readers
        self._weights: dict[Weight, LoadedWeight] = {}
        self._results: dict[tuple[Scope, str], FoldedResult] = {}

    def weight(self, weight: Weight) -> LoadedWeight:
        """Return `weight` as the session loads it, with its uses and folded results."""
        if weight not in self._weights:
            self._weights[weight] = self._load_weight(weight)
        return self._weights[weight]

    def remaining_readers(self, weight: Weight) -> list[WeightReader]:
        """Return the nodes of the optimized graph that read `weight` itself."""
        return [
            reader
            for reader in direct_readers(self._readers(weight))
            if not self.folds.is_folded(reader.scope, reader.node)
        ]

    def result(self, fold: Fold) -> FoldedResult:
        """Return the result of `fold`, which stays after folding, with its uses."""
        key = fold.scope, fold.output
        if key not in self._results:
            # The runtime merges duplicates of one graph: only the first result remains.
            folds = [fold, *self.folds.duplicates(fold)]
            self._results[key] = FoldedResult(
                fold=fold,
                uses=tuple(use for twin in folds for use in self._uses_of_fold(twin)),
                is_exposed=any(twin.output in twin.scope.output_names for twin in folds),
                is_kept=self.is_kept(fold.scope, fold.output),
            )
        return self._results[key]

    def is_freed(self, weight: Weight) -> bool:
        """Return whether `weight` itself is gone when the session is ready.

        That is so if every use packs it, or if it has no use.
        """
        loaded = self.weight(weight)
        is_own = bool(weight.graph) and weight.origin == "initializer"
        if is_own and loaded.uses and self.runtime >= SUBGRAPH_WEIGHTS_KEPT_SINCE:
            return False
        return not loaded.is_read

    def is_kept(self, scope: Scope, name: str) -> bool:
        """Return whether the constant `name` of `scope` stays although every use packs it.

        A constant of a subgraph does since 1.29. Older releases count by name alone, over all
        graphs, the nodes that still have to pack a constant. Sibling branches may use one name: the
        count reaches zero at the last branch, whose constant is freed, while the others stay.
        """
        if scope.parent is None or scope.is_function:
            return False
        if self.runtime >= SUBGRAPH_WEIGHTS_KEPT_SINCE:
            return True
        order = self.scope_order
        return scope in order and self._last_with_name.get(name, 0) > order[scope]

    def folded_copies(self, weight: Weight) -> list[FoldedCopy]:
        """Return the folded copies of `weight` alone that are resident at steady state."""
        copies: list[FoldedCopy] = []
        visited: set[Node] = set()
        for reader in self._readers(weight):
            steps = [step for step in reader.path if step.node.op_type != "Identity"]
            if not steps or reader.node.op_type == "Identity" or reader.node in self.folds.nodes:
                continue
            scope = steps[-1].scope
            fold = self.folds.of_node(steps[-1].node)
            if fold is None or fold.node in visited or len(fold.weights) != 1:
                continue
            is_packed = self._packed_use(reader.use, fold.dtype, fold.shape).buffer is not None
            if is_packed and not self.is_kept(scope, fold.output):
                continue
            visited.add(fold.node)
            kinds = [_COPY_KINDS[name] for name in reader.through if name in _COPY_KINDS]
            step_signatures = tuple(_node_signature(step.node) for step in steps)
            signature = (id(scope), fold.shape, fold.dtype, *step_signatures)
            kind = kinds[-1] if kinds else "original"
            copies.append(FoldedCopy(kind, fold.nbytes, signature))
        return copies

    def folding_memory(self, folds: Iterable[Fold] | None = None) -> FoldingMemory:
        """Return the memory of evaluating `folds` and the folds of their operands; all by default.

        The originals of weights are not counted.
        """
        results_bytes = kept_bytes = 0
        peak = FoldingMemory(0, 0)
        for fold in self._folds_with_operands(folds) if folds is not None else self.folds:
            if fold.merged_into is not None:
                continue
            # A Shape does not read the elements of its input: nothing is copied.
            names = set() if fold.node.op_type == "Shape" else set(fold.node.input)
            copies = sum(self._operand_bytes(fold, name) for name in names)
            results_bytes += fold.nbytes
            kept_bytes += fold.nbytes if fold.stays else 0
            bytes_at_fold = results_bytes + copies
            if bytes_at_fold > peak.peak_bytes:
                peak = FoldingMemory(bytes_at_fold, 0, results_bytes, 0, fold)
        return peak._replace(kept_bytes=kept_bytes, all_bytes=results_bytes)

    @cached_property
    def largest_weights(self) -> Sequence[Weight]:
        """The `MAX_LARGEST_WEIGHTS` largest weights, the largest first."""
        return nlargest(
            MAX_LARGEST_WEIGHTS, self._model_file.weights, key=lambda weight: weight.nbytes
        )

    def _load_weight(self, weight: Weight) -> LoadedWeight:
        remaining = self.remaining_readers(weight)
        scopes = self._graphs.scopes(weight)
        is_overridable = self._graphs.is_overridable(weight)
        uses: tuple[PackedUse, ...] = ()
        if not is_overridable:
            uses = tuple(
                self._packed_use(reader.use, weight.dtype, weight.shape) for reader in remaining
            )
        loaded = LoadedWeight(
            weight=weight,
            content_key=weight,
            uses=uses,
            is_exposed=is_overridable or any(weight.name in scope.output_names for scope in scopes),
            # A node of a file in ORT format has no copy of the subgraph inside it.
            depth=0 if self._model_file.is_ort_format else subgraph_depth(self._graphs, weight),
            results=tuple(
                replace(self.result(fold), content_key=(weight, fold.dtype, fold.shape))
                for fold in self.folds.of_weight(weight)
                if fold.stays
            ),
        )
        if not loaded.is_packed_only:
            return loaded
        return replace(
            loaded,
            is_kept=loaded.is_prepacked
            and any(self.is_kept(scope, weight.name) for scope in scopes),
        )

    def _uses_of_fold(self, fold: Fold) -> Iterator[PackedUse]:
        """Yield the uses of a folded value, also behind Identity and in functions."""
        first_value = (fold.scope, fold.output)
        pending, visited = [first_value], {first_value}
        while pending:
            for use in Scope.uses(*pending.pop()):
                body = use.scope.call(use.node)
                following = None
                if use.node.op_type == "Identity":
                    following = use.scope, use.node.output[0]
                elif body is not None and use.input_index < len(body.inputs):
                    following = body, body.inputs[use.input_index]
                if following is not None:
                    if following not in visited:
                        visited.add(following)
                        pending.append(following)
                elif not self.folds.is_folded(use.scope, use.node):
                    yield self._packed_use(use, fold.dtype, fold.shape)

    def _packed_use(self, use: Use, dtype: str, shape: tuple[int, ...]) -> PackedUse:
        graphs = self._graphs
        buffer = packed_buffer(graphs, self.runtime, use, dtype, shape, self._block)
        is_packed = buffer is not None
        fuses = not self._model_file.is_ort_format
        kernel = None
        if is_packed:
            declared = self._shapes.as_declared
            kernel = kernel_of(graphs, declared, use.scope, use.node, fuses=fuses)
        return PackedUse(use, buffer, kernel)

    @cached_property
    def scope_order(self) -> dict[Scope, int]:
        """The order in which graphs are initialized: each graph before its subgraphs.

        Functions are inlined by then, and their names made unique.
        """
        scopes = (scope for _, scope in self._graphs if not scope.is_function)
        return {scope: index for index, scope in enumerate(scopes)}

    @cached_property
    def _last_with_name(self) -> dict[str, int]:
        """The position in `scope_order` of the last graph with a constant of each name."""
        last_positions: dict[str, int] = {}
        constants = [
            (scope, weight.name)
            for weight in self._model_file.weights
            if weight.graph
            for scope in self._graphs.scopes(weight)
        ]
        constants += [(fold.scope, fold.output) for fold in self.folds if fold.stays]
        for scope, name in constants:
            last_positions[name] = max(self.scope_order.get(scope, 0), last_positions.get(name, 0))
        return last_positions

    def _folds_with_operands(self, folds: Iterable[Fold]) -> Iterator[Fold]:
        """Yield `folds` and the folds that compute their operands, in topological order."""
        needed: set[int] = set()
        pending = list(folds)
        while pending:
            fold: Fold | None = pending.pop()
            if fold is not None and fold.merged_into is not None:
                fold = self.folds.of_value(*fold.merged_into)
            index = self.folds.index_of(fold.scope, fold.output) if fold is not None else None
            if fold is None or index is None or index in needed:
                continue
            needed.add(index)
            operands = (self.folds.of_value(fold.scope, name) for name in fold.node.input)
            pending += [operand for operand in operands if operand is not None]
        return (self.folds[index] for index in sorted(needed))

    def _operand_bytes(self, fold: Fold, name: str) -> int:
        operand = self.folds.of_value(fold.scope, name)
        if operand is not None:
            return operand.nbytes
        kind = self._shapes.of(fold.scope, name) if name else None
        return 0 if kind is None else kind.nbytes or 0


def direct_readers(weight_readers: Iterable[WeightReader]) -> list[WeightReader]:
    """Return the readers of a weight that read the weight itself in a session.

    Identity nodes are removed and calls of functions inlined by then.
    """
    return [
        reader
        for reader in weight_readers
        if reader.node.op_type != "Identity"
        and all(step.node.op_type == "Identity" for step in reader.path)
        and reader.scope.call(reader.node) is None
    ]


def subgraph_depth(graphs: GraphIndex, weight: Weight) -> int:
    """Return the number of subgraphs around `weight`, up to the function that contains it."""
    scopes = graphs.scopes(weight) if weight.graph else ()
    scope: Scope | None = scopes[0] if scopes else None
    depth = 0
    while scope is not None and scope.parent is not None and not scope.is_function:
        scope = scope.parent
        depth += 1
    return depth


def _node_signature(node: Node) -> tuple[object, ...]:
    """Return a key that is equal for nodes with the same operator, attributes and other inputs."""
    attributes = sorted(
        attribute.SerializeToString(deterministic=True) for attribute in node.attribute
    )
    other_inputs = node.input[1:] if node.op_type not in SAME_ORDER_OPERATORS else ()
    return node.domain, node.op_type, *attributes, *other_inputs
