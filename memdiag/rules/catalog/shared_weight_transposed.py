"""A weight is used both as it is and through Transpose, which makes a copy of it at load.

The classic case is a tied embedding: Gather reads the rows of a table, and the output projection
multiplies with the same table through Transpose. The two uses may be in one graph or in the
branches and bodies of If, Loop and Scan, and Identity, Cast or Reshape may be on the way.

## Why it costs

Constant folding evaluates the Transpose and keeps the result as a weight of its own, in each
subgraph that has one: one copy a branch. MatMul then packs that copy once more. For a weight of
500 MB this gives, embedded in the model, at the peak and at steady state:

- 1.24 to 1.28: 1.5 GB and 1.0 GB: it is freed after it was packed, the packed copy stays;
- 1.29 to 1.31.1: 1.5 GB and, where a subgraph has the Transpose, 1.5 GB: there the copy is not
  freed.

Before 1.29 the transposed copy stays where a later branch has a constant of the same name, such
as its own Transpose of the weight: the runtime counts the constants left to pack by name.

At the peak a copy of Transpose's input, made for the evaluation, and its output are both in memory.
A weight in an external file takes one copy less: it stays mapped.

## What to do

- `separate-packed-weight`: let the products read an initializer of their own over the same bytes
  of external data. This initializer is packed and freed, and of the original only gathered rows
  are ever read: one copy remains, and products take no longer.
- `product-by-rows`: multiply by the weight as it is stored, in the form that suits the number of
  rows. One copy remains, and a single row takes no longer; some numbers of rows between do.
- `overridable-weight`: list the weight among the graph's inputs as well (it need not be given).
  It is then no constant to the runtime: nothing folds or packs it, and one copy remains.
- `gemm-transposed`, `fused-matmul-transposed`: replace Transpose and MatMul by Gemm or
  FusedMatMul with `transB`, which read the weight as it is. The packed copy remains, unless
  `disable-prepacking` ends it, too. `transpose-small-side` transposes input and product instead.
- `disable-constant-folding` with `disable-prepacking`: the same by session options alone; the
  Transpose then runs each time.

Weights with the same content share packed copies: they have one finding together.

## Not reported

- A weight that is only used through Transpose, once: the original is freed.
- Transpose before Gemm alone: the runtime makes `transB` of it, without a copy.
- A Transpose that moves only axes of size 1, weights that a caller may override, and those
  whose copies are below 64 KiB.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from memdiag.model.graph_index import MAX_CALL_DEPTH, Node, Scope, integers_attribute
from memdiag.model.readers import SAME_ORDER_OPERATORS
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.constant_folding import Fold
from memdiag.ort.session_constants import FoldedResult, LoadedWeight, packed_buffers
from memdiag.records.attribution import CopyKind
from memdiag.records.finding import ExpectedCopies, Finding
from memdiag.records.weights import Weight, qualified_name
from memdiag.rules.expected_copies import expected_copies
from memdiag.rules.finding_words import common_graph, node_names, some_weights
from memdiag.rules.rule import Rule
from memdiag.units import KIB, format_size, some_of

RULE = Rule(
    code="MD103",
    name="shared-weight-transposed",
    summary="A weight used as it is and through Transpose, which is folded to a copy at load",
    remedies=(
        "separate-packed-weight",
        "product-by-rows",
        "overridable-weight",
        "gemm-transposed",
        "fused-matmul-transposed",
        "transpose-small-side",
        "disable-constant-folding",
        "disable-prepacking",
    ),
)

_MIN_TRANSPOSED_COPY_BYTES = 64 * KIB
_MAX_TRANSPOSE_STEPS = 8
# Rewrites of a product by a transposed matrix.
_PRODUCT_REMEDIES = {
    "separate-packed-weight",
    "product-by-rows",
    "gemm-transposed",
    "fused-matmul-transposed",
    "transpose-small-side",
}
_VALUE_KEEPING_OPERATORS = SAME_ORDER_OPERATORS | {"Cast"}


class _TransposedCopy(NamedTuple):
    """A folded copy with the values of a weight in another order.

    Attributes:
        result: the result of constant folding.
        transpose: the name of the node that transposes.
    """

    result: FoldedResult
    transpose: str


def detect(ctx: AnalysisContext) -> Iterator[Finding]:
    """Yield a finding for each weight that stays in memory both transposed and in another form."""
    copies_by_weight: dict[Weight, list[_TransposedCopy]] = defaultdict(list)
    for fold in ctx.folds:
        # A fold also reads small weights, such as the shape of a Reshape.
        large = [weight for weight in fold.weights if weight.nbytes >= _MIN_TRANSPOSED_COPY_BYTES]
        if len(large) == 1 and fold.stays and fold.nbytes >= _MIN_TRANSPOSED_COPY_BYTES:
            transpose = _transposing_node_name(ctx, fold)
            if transpose:
                copy = _TransposedCopy(ctx.session.result(fold), transpose)
                copies_by_weight[large[0]].append(copy)
    used_twice = {
        weight: copies
        for weight, copies in copies_by_weight.items()
        if ctx.session.weight(weight).is_used or len(copies) > 1
    }
    for group in _equal_content_groups(ctx, list(used_twice)):
        yield from _transposed_copy_findings(ctx, {weight: used_twice[weight] for weight in group})


def _equal_content_groups(ctx: AnalysisContext, weights: list[Weight]) -> Iterator[list[Weight]]:
    """Yield `weights` in groups of equal content, whose packed copies are shared."""
    counts = Counter((weight.dtype, weight.shape) for weight in weights)
    remaining = dict.fromkeys(weights)
    for weight in weights:
        if weight not in remaining:
            continue
        group = [weight]
        form = weight.dtype, weight.shape
        if counts[form] > 1:
            group += [
                twin
                for twin in ctx.equal_to(weight)
                if twin in remaining and twin != weight and (twin.dtype, twin.shape) == form
            ]
        for member in group:
            del remaining[member]
        yield group


def _transposed_copy_findings(
    ctx: AnalysisContext, copies_by_weight: dict[Weight, list[_TransposedCopy]]
) -> Iterator[Finding]:
    weights = list(copies_by_weight)
    costs = _TransposeCosts(ctx, copies_by_weight)
    if costs.nbytes < _MIN_TRANSPOSED_COPY_BYTES:
        return
    copies = [copy for weight_copies in copies_by_weight.values() for copy in weight_copies]
    transposes = [copy.transpose for copy in copies]
    nodes = node_names(ctx, [use for loaded in costs.weights for use in loaded.uses])
    readers = node_names(ctx, [use for copy in copies for use in copy.result.uses])
    is_output = any(loaded.is_exposed for loaded in costs.weights)
    yield RULE.finding(
        ctx,
        _transposed_copy_message(weights, nodes, transposes, readers, is_output=is_output),
        detail=costs.kept_copies_sentence(),
        weights=map(qualified_name, weights),
        nodes=[*nodes, *transposes, *readers],
        graph=common_graph(ctx, [copy.result.fold for copy in copies]),
        nbytes=costs.nbytes,
        peak_bytes=costs.peak_bytes,
        phase="constant_fold",
        expected=costs.expected_transposed_copies(),
        remedies=_transposed_copy_remedies(weights, copies),
    )


def _transposed_copy_message(
    weights: list[Weight],
    nodes: list[str],
    transposes: list[str],
    readers: list[str],
    *,
    is_output: bool,
) -> str:
    users_text = some_of(nodes) if nodes else "the graph's output" if is_output else ""
    through = some_of(list(dict.fromkeys(transposes)))
    readers_text = f" by {some_of(readers)}" if readers else ""
    is_group = len(weights) > 1
    as_is = "as they are" if is_group else "as it is"
    uses_text = f"{as_is} by {users_text} and{readers_text}" if users_text else readers_text[1:]
    copies = f"{len(transposes)} transposed copies" if len(transposes) > 1 else "a transposed copy"
    size = format_size(weights[0].nbytes)
    subject = f"({size} each, with the same content) are" if is_group else f"({size}) is"
    return (
        f"{some_weights(weights)} {subject} used {uses_text} through {through}, "
        f"which {'are' if is_group else 'is'} folded to {copies}."
    )


class _TransposeCosts:
    """The memory of a weight that is also used transposed, or of several weights of equal content.

    Attributes:
        weights: the weights; their transposed copies are their only results of folding.
        originals, transposed, packed: the sizes of the copies that stay.
        nbytes: the memory beyond one copy of each weight at steady state.
        peak_bytes: the memory beyond one copy of each weight at the peak.
    """

    def __init__(
        self, ctx: AnalysisContext, copies_by_weight: dict[Weight, list[_TransposedCopy]]
    ) -> None:
        session = ctx.session
        self._runtime = ctx.runtime
        content = next(iter(copies_by_weight))
        self.weights = [
            replace(
                session.weight(weight), results=tuple(copy.result for copy in copies)
            ).with_content_key(content)
            for weight, copies in copies_by_weight.items()
        ]
        results = [result for loaded in self.weights for result in loaded.results]
        # The original is freed if nothing reads it, or if every kernel that reads it packs it.
        self.originals = [loaded.weight.nbytes for loaded in self.weights if loaded.is_read]
        self.transposed = [result.fold.nbytes for result in results if not result.is_freed]
        constants = [constant for loaded in self.weights for constant in (loaded, *loaded.results)]
        self.packed = [buffer.nbytes for buffer in packed_buffers(constants)]
        kept_bytes = sum(self.originals) + sum(self.transposed) + sum(self.packed)
        self.nbytes = max(kept_bytes - sum(loaded.weight.nbytes for loaded in self.weights), 0)
        unpacked = [LoadedWeight.unpacked(loaded.weight) for loaded in self.weights]
        self.peak_bytes = ctx.peak_reduction(self.weights, unpacked)

    def expected_transposed_copies(self) -> Iterator[ExpectedCopies]:
        """Return the copies that an X-ray should list."""
        sizes: list[tuple[CopyKind, int]] = [("transposed", nbytes) for nbytes in self.transposed]
        sizes += [("packed", nbytes) for nbytes in self.packed]
        return expected_copies([loaded.weight for loaded in self.weights], sizes)

    def kept_copies_sentence(self) -> str:
        parts = []
        if self.originals:
            count = len(self.originals)
            parts.append(f"the {count} originals" if count > 1 else "the original")
        if self.transposed:
            copies = _counted_copies_text(len(self.transposed), "transposed")
            parts.append(f"{copies} of {format_size(sum(self.transposed))}")
        if self.packed:
            copies = _counted_copies_text(len(self.packed), "packed")
            parts.append(f"{copies} of {format_size(sum(self.packed))}")
        listed = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
        return (
            f"onnxruntime {self._runtime} keeps {listed}; the peak is "
            f"{format_size(self.peak_bytes)} higher than necessary."
        )


def _counted_copies_text(count: int, kind: str) -> str:
    return f"{count} {kind} copies" if count > 1 else f"one {kind} copy"


def _transposing_node_name(ctx: AnalysisContext, fold: Fold) -> str:
    """Return the name of the Transpose between a weight and the folded result `fold`.

    Return an empty text if there is none, or if another node changes the values.
    """
    scope, node, shape = fold.scope, fold.node, fold.shape
    transpose = ""
    for _ in range(_MAX_TRANSPOSE_STEPS):
        if node.op_type == "Transpose":
            axes = integers_attribute(node, "perm") or tuple(reversed(range(len(shape))))
            moved = [axis for axis, size in zip(axes, shape, strict=False) if size != 1]
            if moved != sorted(moved):
                transpose = ctx.graphs.qualified(scope, node)
        elif node.op_type not in _VALUE_KEEPING_OPERATORS:
            return ""
        if not node.input:  # a damaged model
            return ""
        producer = _producing_node(scope, node.input[0])
        if producer is None:
            return transpose
        scope, node = producer
        kind = ctx.shapes.of(scope, node.output[0])
        if kind is None or kind.shape is None:
            return ""
        shape = tuple(size or 0 for size in kind.shape)
    return ""


def _producing_node(scope: Scope, name: str) -> tuple[Scope, Node] | None:
    """Return the node that computes the value `name`, with its scope; None for a constant.

    Identity nodes are skipped, and arguments of function calls are followed.
    """
    for _ in range(MAX_CALL_DEPTH + _MAX_TRANSPOSE_STEPS):
        defining = scope.defining_scope(name)
        if defining is None:
            return None
        producer = defining.producers.get(name)
        if producer is not None and producer.op_type == "Identity" and producer.input:
            scope, name = defining, producer.input[0]
        elif producer is not None:
            return None if producer.op_type == "Constant" else (defining, producer)
        else:
            argument = defining.argument(name)
            if argument is None:
                return None
            scope, name = argument
    return None


def _transposed_copy_remedies(
    weights: list[Weight], copies: Sequence[_TransposedCopy]
) -> tuple[str, ...]:
    """Return the remedies that apply to these weights and the operators that read the copies."""
    unfit: set[str] = set()
    operators = {use.node.op_type for copy in copies for use in copy.result.uses}
    ranks = {len(copy.result.fold.shape) for copy in copies}
    if any(weight.graph or weight.origin != "initializer" for weight in weights):
        unfit |= {"overridable-weight", "product-by-rows", "separate-packed-weight"}
    if not operators <= {"MatMul", "FusedMatMul"} or ranks != {2}:
        unfit |= _PRODUCT_REMEDIES
    return tuple(name for name in RULE.remedies if name not in unfit)
