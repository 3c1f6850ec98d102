"""Constant folding turns something small into a constant that is large.

Nodes whose inputs are all constant are evaluated when a session is made, and their results kept as
weights. Expand, Tile, ConstantOfShape, Range, Gather and Concat can make much of little; a Cast
from float16 doubles its input; Reshape or Slice of a weight that is needed as it is, too, makes a
second copy of it.

## Why it costs

The result is resident for the session's life, whatever the file's size: a model of a few
kilobytes can take gigabytes. Nodes that do the same have one result, but each Conv that a
BatchNormalization is folded into has a copy of its own. While a node is evaluated, releases up to
1.23 hold its result three times. Since 1.27 a node is not folded when its results would take more
than 1 GiB (`optimization.constant_folding_max_output_size_in_bytes`); smaller ones are, on all
releases.

## What to do

- Let the consumer broadcast: most operators do that by themselves, so that an Expand or Tile before
  them can go. Gather from the small operand, and expand what was gathered.
- Store the weight in the type that it is used in, or gather first and cast what was gathered.
- `grow-later`: move the Expand, Tile or Cast behind the node that can do with the small operand.
- `fp16-to-fp32`: store the weight in the type that it is cast to.
- `keep-unfolded`: list the small operand among the inputs, so that it is no constant; the large one
  is then computed in every run.
- `folding-size-limit`: set the option above to a smaller number of bytes (since 1.27).
- `disable-constant-folding`: leave the optimizer `ConstantFolding` out, on all releases.

With either option the node runs each time instead: its result is then in the arena while it is
used, and the next node takes its place.

## Not reported

- Results that replace what they are computed from, or are less than half as much again.
- Transposed copies: see `shared-weight-transposed`.
- Growth of less than 1 MiB in all nodes of one operator together.

The last three remedies are not named where the largest node, with its operands that are folded
too, needs clearly more in each run than folding adds: without folding such a model takes more
memory.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from memdiag.model.graph_index import Use
from memdiag.ort.conv_fusion import batch_normalization_after
from memdiag.ort.folding import LIMITED_SINCE
from memdiag.ort.folds import Fold
from memdiag.ort.packing import Packed
from memdiag.records.finding import ExpectedCopies, Finding
from memdiag.records.weights import Weight
from memdiag.rules.examined import Examined, qualified
from memdiag.rules.folded import (
    Folded,
    Results,
    buffers,
    left_in_arena,
)
from memdiag.rules.load_peak import LoadPeak, Made, alone
from memdiag.rules.rule import Rule
from memdiag.rules.wording import some_of
from memdiag.units import KIB, MIB, format_size

RULE = Rule(
    code="MD301",
    name="folding-grows",
    summary="Constant folding makes a large constant of something small",
    remedies=(
        "grow-later",
        "fp16-to-fp32",
        "keep-unfolded",
        "folding-size-limit",
        "disable-constant-folding",
    ),
)

_LEAST = MIB
_CLEARLY_MORE = 1.25
_UNFOLDING = ("keep-unfolded", "folding-size-limit", "disable-constant-folding")
"""The remedies that have the nodes evaluated in every run."""
_LEAST_NODE = 64 * KIB
_GROWN_LATER = frozenset({"Expand", "Tile", "ConstantOfShape", "Cast"})
_GROWTH = 1.5
"""What is there after folding, over what was before, from which a node is reported."""


class _Grown(NamedTuple):
    """A folded node, and the weights that it was made from and that go or stay."""

    copy: Folded
    goes: tuple[Weight, ...]
    stays: tuple[Weight, ...]


def detect(examined: Examined) -> Iterator[Finding]:
    """Yield a finding for each operator whose folded results are larger than what they replace."""
    results = Results(examined)
    needed: dict[Weight, bool] = {}
    groups: dict[str, list[_Grown]] = defaultdict(list)
    for fold in examined.folds:
        if not fold.stays or fold.nbytes < _LEAST_NODE or fold.node.op_type == "Transpose":
            continue
        for weight in fold.weights:
            if weight not in needed:
                needed[weight] = _is_needed(results, weight)
        grown = _Grown(
            results.of(fold),
            tuple(one for one in fold.weights if not needed[one]),
            tuple(one for one in fold.weights if needed[one]),
        )
        before = sum(one.nbytes for one in fold.weights)
        after = fold.nbytes + sum(one.nbytes for one in grown.stays)
        if after >= _GROWTH * before:
            groups[fold.node.op_type].append(grown)
    for operator, found in groups.items():
        yield from _judge(examined, operator, found)


def _judge(examined: Examined, operator: str, found: list[_Grown]) -> Iterator[Finding]:
    folds = [one.copy.fold for one in found]
    results = sum(fold.nbytes for fold in folds)
    sources = sum(weight.nbytes for weight in {w for fold in folds for w in fold.weights})
    replaced = sum(weight.nbytes for weight in {w for one in found for w in one.goes})
    beside = {weight for one in found for weight in one.stays if weight.nbytes >= _LEAST_NODE}
    held = _held(examined, [one.copy for one in found])
    growth = sum(held) - replaced
    if growth < _LEAST:
        return
    in_run = _in_run(examined, found)
    unfolding_saves = in_run < _CLEARLY_MORE * growth
    detail = _detail(examined, sum(held), replaced, [qualified(one) for one in beside])
    if not unfolding_saves:
        detail += (
            f" Evaluating these nodes in every run instead saves no memory: the largest needs"
            f" {format_size(in_run)} in each run, more than the {format_size(growth)} that folding"
            " adds."
        )
    nodes = [examined.node(fold.scope, fold.node) for fold in folds]
    yield RULE.finding(
        examined,
        _message(operator, folds, nodes, results, sources),
        detail=detail,
        weights=(qualified(weight) for fold in folds for weight in fold.weights),
        nodes=nodes,
        graph=_common_graph(examined, folds),
        nbytes=growth,
        peak_bytes=max(growth, _peak(examined, found)),
        phase="constant_fold",
        expected=_expected(examined, found),
        remedies=_remedies(examined, operator, folds, unfolding_saves=unfolding_saves),
    )


def _in_run(examined: Examined, found: list[_Grown]) -> int:
    """Return the bytes that the largest node needs in each run if nothing is folded.

    Its result and those of its operands that were folded too are then in the arena at once.
    """
    largest = 0
    for one in found:
        fold = one.copy.fold
        needed = fold.nbytes
        for name in {*fold.node.input} - {""}:
            home = fold.scope.defining_scope(name)
            index = examined.folds.index_of(home, name) if home is not None else None
            needed += examined.folds[index].nbytes if index is not None else 0
        largest = max(largest, needed)
    return largest


def _is_needed(results: Results, weight: Weight) -> bool:
    """Return whether anything that is not folded reads the weight itself."""
    return results.is_output(weight) or bool(results.plain_uses(weight))


def _held(examined: Examined, found: list[Folded]) -> tuple[int, int, int]:
    """Return the bytes of results that stay, of packed copies of them, and left in the arena."""
    runtime = examined.runtime
    kept = 0
    packs: list[tuple[object, Packed | None]] = []
    left: list[Folded] = []
    for one in found:
        is_read = one.is_kept or not one.packs
        is_shared = is_read
        for place, pack in enumerate(one.packs):
            own = place < len(one.uses) and _is_fused(examined, one.uses[place])
            # What a BatchNormalization is folded into is no longer the same as for other nodes.
            kept += one.fold.nbytes if own and pack is None else 0
            is_read = is_read or (pack is None and not own)
            is_shared = is_shared or not own
            packs.append(((one.fold.node, one.fold.scope, place if own else None), pack))
        kept += one.fold.nbytes if is_read else 0
        left += [one] if is_shared else []
    return kept, sum(buffers(runtime, packs)), left_in_arena(left, runtime)


def _is_fused(examined: Examined, use: Use) -> bool:
    """Return whether a BatchNormalization is folded into the operand at `use`."""
    scope, conv = use.scope, use.node
    node = batch_normalization_after(scope, conv) if use.input_index == 1 else None
    if node is None:
        return False
    homes = {
        name: scope.defining_scope(name) for name in (*conv.input[1:], *node.input[1:]) if name
    }
    return all(
        home is not None
        and name not in home.inputs
        and (
            examined.folds.index_of(home, name) is not None
            or examined.weight(scope, name) is not None
        )
        for name, home in homes.items()
    )


def _peak(examined: Examined, found: list[_Grown]) -> int:
    """Return what the peak would be lower by, were nothing made of the sources."""
    peaks = LoadPeak(examined)
    sources = {weight: None for grown in found for weight in grown.copy.fold.weights}
    made: dict[Weight, list[Made]] = defaultdict(list)
    for grown in found:
        for weight in grown.copy.fold.weights:
            made[weight].append(Made(grown.copy, weight))
    loads = [peaks.load(weight)._replace(folds=tuple(made[weight])) for weight in sources]
    return peaks.saved(loads, [alone(weight) for weight in sources])


def _message(operator: str, folds: list[Fold], nodes: list[str], results: int, sources: int) -> str:
    size = format_size(results)
    if len(folds) == 1:
        shape = " × ".join(map(str, folds[0].shape)) or "scalar"
        size += f" ({folds[0].dtype} {shape})"
        subject = f"{nodes[0]} ({operator}) is"
    else:
        subject = f"{len(folds):,} {operator} nodes ({some_of(nodes)}) are"
    if not sources:
        return f"{subject} evaluated at load: {size} are computed from shapes alone."
    return f"{subject} evaluated at load: {format_size(sources)} become {size}."


def _detail(examined: Examined, held: int, replaced: int, beside: list[str]) -> str:
    place = f"in place of {format_size(replaced)}" if replaced else "in addition to the file's own"
    if beside:
        place = f"beside {some_of(sorted(beside))}"
    return f"onnxruntime {examined.runtime} keeps {format_size(held)} for it, {place}."


def _expected(examined: Examined, found: list[_Grown]) -> Iterator[ExpectedCopies]:
    """Yield the copies that the X-ray knows by a layout of their own: half floats made wider."""
    folds = [one.copy.fold for one in found]
    weights = {weight for fold in folds for weight in fold.weights}
    if (
        all(fold.node.op_type == "Cast" and fold.dtype == "float" for fold in folds)
        and all(weight.dtype in ("float16", "bfloat16") for weight in weights)
        and not any(one.copy.is_freed for one in found)
    ):
        yield ExpectedCopies(
            weights=tuple(qualified(weight) for weight in weights),
            kind="cast",
            count=len(folds),
            bytes=sum(fold.nbytes for fold in folds),
        )


def _remedies(
    examined: Examined, operator: str, folds: list[Fold], *, unfolding_saves: bool
) -> tuple[str, ...]:
    """Return the remedies that fit the operator and the release, and are predicted to save."""
    unfit = set() if unfolding_saves else {*_UNFOLDING}
    if operator not in _GROWN_LATER:
        unfit.add("grow-later")
    dtypes = {weight.dtype for fold in folds for weight in fold.weights}
    if operator != "Cast" or "float16" not in dtypes:
        unfit.add("fp16-to-fp32")
    if examined.runtime < LIMITED_SINCE:
        unfit.add("folding-size-limit")
    return tuple(name for name in RULE.remedies if name not in unfit)


def _common_graph(examined: Examined, folds: Iterable[Fold]) -> str:
    paths = {examined.graphs.path(fold.scope) for fold in folds}
    return paths.pop() if len(paths) == 1 else ""
