"""A weight is used both as it is and through Transpose, which makes a copy of it at load.

The classic case is a tied embedding: Gather reads the rows of a table, and the output projection
multiplies with the same table through Transpose. The two uses may be in one graph or in the
branches and bodies of If, Loop and Scan, and Identity, Cast or Reshape may be on the way.

## Why it costs

Constant folding evaluates the Transpose and keeps the result as a weight of its own, in each
subgraph that has one: one copy a branch. MatMul then packs that copy once more. For a weight of
500 MB this gives, embedded in the model, at the peak and at steady state:

- up to 1.22: 2.5 GB and 1.5 GB; the transposed copy stays in the arena after it was packed;
- 1.23: 2.5 GB and 1.0 GB; 1.24 to 1.28: 1.5 GB and 1.0 GB: it is freed, the packed copy stays;
- 1.29 to 1.31.1: 1.5 GB and, where a subgraph has the Transpose, 1.5 GB, for there it is not freed.

Before 1.29 it stays where a later branch has a constant of the same name, such as its own
Transpose of the weight: the runtime counts by name what is left to pack.

At the peak Transpose's input, which is copied for the evaluation, and its output are there at once.
A weight in an external file takes one copy less: it stays mapped.

## What to do

- `separate-packed-weight`: let the products read an initializer of their own over the same bytes
  of external data. It is packed and let go, and of the other one only gathered rows are ever read:
  one copy remains, and products take no longer.
- `product-by-rows`: multiply by the weight as it lies, in the form that suits the number of rows.
  One copy remains, and a single row takes no longer; some sizes between do.
- `overridable-weight`: list the weight among the graph's inputs as well (it need not be given).
  It is then no constant to the runtime: nothing folds or packs it, and one copy remains.
- `gemm-transposed`, `fused-matmul-transposed`: replace Transpose and MatMul by Gemm or FusedMatMul
  with `transB`, which read the weight as it is. The packed copy remains, unless
  `disable-prepacking` ends it, too. `transpose-small-side` turns input and product instead.
- `disable-constant-folding` with `disable-prepacking`: the same by session options alone; the
  Transpose then runs each time.

Weights with the same content share packed copies since 1.21: they have one finding together.

## Not reported

- A weight that is only used through Transpose, once: the original is freed.
- Transpose before Gemm alone: the runtime makes `transB` of it, without a copy.
- A Transpose that moves only axes of size 1, weights that a caller may override, and those
  whose copies are below 64 KiB.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from memdiag.model.graph_index import MAX_CALL_DEPTH, Node, Scope, integers
from memdiag.model.readers import SAME_ORDER
from memdiag.ort.folds import Fold
from memdiag.ort.packing import ARENA_FREED_SINCE, PACKED_SHARED_SINCE
from memdiag.records.attribution import CopyKind
from memdiag.records.finding import ExpectedCopies, Finding
from memdiag.records.weights import Weight
from memdiag.rules.examined import Examined, qualified
from memdiag.rules.folded import Folded, Results, buffers, left_in_arena
from memdiag.rules.groups import names
from memdiag.rules.load_peak import LoadPeak, Made, alone
from memdiag.rules.rule import Rule
from memdiag.rules.wording import some_of
from memdiag.units import KIB, format_size

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

_LEAST = 64 * KIB
_MOST_STEPS = 8
# Rewrites of a product by a transposed matrix.
_OF_PRODUCTS = {
    "separate-packed-weight",
    "product-by-rows",
    "gemm-transposed",
    "fused-matmul-transposed",
    "transpose-small-side",
}
_SAME_VALUES = SAME_ORDER | {"Cast"}


class _Turned(NamedTuple):
    """A folded copy that holds a weight transposed, and the node that turns it."""

    copy: Folded
    transpose: str


def detect(examined: Examined) -> Iterator[Finding]:
    """Yield a finding for each weight of which transposed copies stay beside another form."""
    results, peaks = Results(examined), LoadPeak(examined)
    by_weight: dict[Weight, list[_Turned]] = defaultdict(list)
    for fold in examined.folds:
        # Beside the weight itself there are the axes and shapes that a Reshape takes.
        large = [one for one in fold.weights if one.nbytes >= _LEAST]
        if len(large) == 1 and fold.stays and fold.nbytes >= _LEAST:
            transpose = _transpose(examined, fold)
            if transpose:
                by_weight[large[0]].append(_Turned(results.of(fold), transpose))
    used_twice = {
        weight: turned
        for weight, turned in by_weight.items()
        if results.plain_uses(weight) or results.is_output(weight) or len(turned) > 1
    }
    for group in _groups(examined, list(used_twice)):
        yield from _judge(examined, results, peaks, {one: used_twice[one] for one in group})


def _groups(examined: Examined, weights: list[Weight]) -> Iterator[list[Weight]]:
    """Yield `weights` in groups of the same content, which share their packed copies."""
    alike = Counter((one.dtype, one.shape) for one in weights)
    left = dict.fromkeys(weights)
    for weight in weights:
        if weight not in left:
            continue
        group = [weight]
        form = weight.dtype, weight.shape
        if alike[form] > 1 and examined.runtime >= PACKED_SHARED_SINCE:
            same = examined.same_as(weight)
            group += [
                one
                for one in same
                if one in left and one != weight and (one.dtype, one.shape) == form
            ]
        for one in group:
            del left[one]
        yield group


def _judge(
    examined: Examined,
    results: Results,
    peaks: LoadPeak,
    by_weight: dict[Weight, list[_Turned]],
) -> Iterator[Finding]:
    weights = list(by_weight)
    plain = [use for weight in weights for use in results.plain_uses(weight)]
    is_output = any(results.is_output(weight) for weight in weights)
    held = _Held(examined, peaks, by_weight)
    if held.nbytes < _LEAST:
        return
    turned = [one for several in by_weight.values() for one in several]
    transposes = [one.transpose for one in turned]
    nodes = [examined.node(one.scope, one.node) for one, _ in plain]
    readers = [examined.node(use.scope, use.node) for one in turned for use in one.copy.uses]
    yield RULE.finding(
        examined,
        _message(weights, nodes, transposes, readers, is_output),
        detail=held.detail(),
        weights=map(qualified, weights),
        nodes=[*nodes, *transposes, *readers],
        graph=_common_graph(examined, turned),
        nbytes=held.nbytes,
        peak_bytes=held.peak_bytes,
        phase="constant_fold",
        expected=held.expected(),
        retained_bytes=held.retained,
        remedies=_remedies(weights, turned),
    )


def _message(
    weights: list[Weight],
    nodes: list[str],
    transposes: list[str],
    readers: list[str],
    is_output: bool,
) -> str:
    plainly = some_of(nodes) if nodes else "the graph's output" if is_output else ""
    behind = some_of(list(dict.fromkeys(transposes)))
    by = f" by {some_of(list(dict.fromkeys(readers)))}" if readers else ""
    several = len(weights) > 1
    as_is = "as they are" if several else "as it is"
    used = f"{as_is} by {plainly} and{by}" if plainly else by[1:]
    copies = f"{len(transposes)} transposed copies" if len(transposes) > 1 else "a transposed copy"
    size = format_size(weights[0].nbytes)
    which = f"({size} each, with the same content) are" if several else f"({size}) is"
    return (
        f"{names(weights)} {which} used {used} through {behind}, "
        f"which {'are' if several else 'is'} folded to {copies}."
    )


def _common_graph(examined: Examined, turned: list[_Turned]) -> str:
    paths = {examined.graphs.path(one.copy.fold.scope) for one in turned}
    return paths.pop() if len(paths) == 1 else ""


class _Held:
    """What one release of the runtime holds of a weight that it also transposes, in bytes.

    Or of several weights with the same content.
    """

    def __init__(
        self,
        examined: Examined,
        peaks: LoadPeak,
        by_weight: dict[Weight, list[_Turned]],
    ) -> None:
        self.runtime = runtime = examined.runtime
        self.weights = list(by_weight)
        content = self.weights[0]
        copies = [one.copy for turned in by_weight.values() for one in turned]
        loads = [
            peaks.load(weight, content)._replace(
                folds=tuple(Made(one.copy, content) for one in turned)
            )
            for weight, turned in by_weight.items()
        ]
        # The original goes when nothing reads it, or when all that reads it packs it.
        self.originals = [load.weight.nbytes for load in loads if load.stays]
        in_arena = runtime < ARENA_FREED_SINCE
        self.retained = sum(load.nbytes for load in loads if load.packs and not load.stays)
        self.retained = self.retained * in_arena + left_in_arena(copies, runtime)
        self.turned = [one.fold.nbytes for one in copies if not one.is_freed]
        self.packs = buffers(runtime, chain.from_iterable(map(peaks.packs, loads)))
        kept = sum(self.originals) + self.retained + sum(self.turned) + sum(self.packs)
        self.nbytes = max(kept - sum(weight.nbytes for weight in self.weights), 0)
        self.peak_bytes = peaks.saved(loads, [alone(weight) for weight in self.weights])

    def expected(self) -> Iterator[ExpectedCopies]:
        """Yield the copies that the X-ray would see."""
        kinds: dict[CopyKind, list[int]] = {"transposed": self.turned, "packed": self.packs}
        for kind, sizes in kinds.items():
            if sizes:
                yield ExpectedCopies(
                    weights=tuple(map(qualified, self.weights)),
                    kind=kind,
                    count=len(sizes),
                    bytes=sum(sizes),
                )

    def detail(self) -> str:
        """Return a sentence on what stays in memory."""
        parts = []
        if self.originals:
            count = len(self.originals)
            parts.append(f"the {count} originals" if count > 1 else "the original")
        if self.turned:
            parts.append(
                f"{_copies(len(self.turned), 'transposed')} of {format_size(sum(self.turned))}"
            )
        if self.packs:
            parts.append(f"{_copies(len(self.packs), 'packed')} of {format_size(sum(self.packs))}")
        if self.retained:
            parts.append(f"{format_size(self.retained)} that the arena does not give back")
        listed = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
        return (
            f"onnxruntime {self.runtime} keeps {listed}; the peak is "
            f"{format_size(self.peak_bytes)} higher than it need be."
        )


def _copies(count: int, kind: str) -> str:
    return f"{count} {kind} copies" if count > 1 else f"one {kind} copy"


def _transpose(examined: Examined, fold: Fold) -> str:
    """Return the name of the node that turns a weight into `fold`.

    Empty if it is not turned, or if anything else is done to its values.
    """
    scope, node, shape = fold.scope, fold.node, fold.shape
    transpose = ""
    for _ in range(_MOST_STEPS):
        if node.op_type == "Transpose":
            axes = integers(node, "perm") or tuple(reversed(range(len(shape))))
            moved = [axis for axis, size in zip(axes, shape, strict=False) if size != 1]
            if moved != sorted(moved):
                transpose = examined.node(scope, node)
        elif node.op_type not in _SAME_VALUES:
            return ""
        found = _maker(scope, node.input[0])
        if found is None:
            return transpose
        scope, node = found
        kind = examined.shapes.of(scope, node.output[0])
        if kind is None or kind.shape is None:
            return ""
        shape = tuple(size or 0 for size in kind.shape)
    return ""


def _maker(scope: Scope, name: str) -> tuple[Scope, Node] | None:
    """Return the node that makes the value `name`, also outside of the function; not a Constant."""
    for _ in range(MAX_CALL_DEPTH + _MOST_STEPS):
        home = scope.defining_scope(name)
        if home is None:
            return None
        producer = home.producers.get(name)
        if producer is not None and producer.op_type == "Identity" and producer.input:
            scope, name = home, producer.input[0]
        elif producer is not None:
            return None if producer.op_type == "Constant" else (home, producer)
        elif home.is_function and home.owner is not None and home.parent is not None:
            place = home.inputs.index(name)
            if place >= len(home.owner.input):
                return None
            scope, name = home.parent, home.owner.input[place]
        else:
            return None
    return None


def _remedies(weights: list[Weight], turned: list[_Turned]) -> tuple[str, ...]:
    """Return the remedies that fit: only the main graph's initializers can be made overridable."""
    unfit: set[str] = set()
    readers = {use.node.op_type for one in turned for use in one.copy.uses}
    ranks = {len(one.copy.fold.shape) for one in turned}
    if any(weight.graph or weight.place != "initializer" for weight in weights):
        unfit |= {"overridable-weight", "product-by-rows", "separate-packed-weight"}
    if not readers <= {"MatMul", "FusedMatMul"} or ranks != {2}:
        unfit |= _OF_PRODUCTS
    return tuple(name for name in RULE.remedies if name not in unfit)
