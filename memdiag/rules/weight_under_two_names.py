"""An If, Loop or Scan reads a weight under two names, of which Identity makes one.

Exporters write an Identity where one parameter has several names, as those that are tied do.

## Why it costs

onnxruntime drops an Identity and lets its readers take the weight itself, in subgraphs too. But
where a body of a node already reads the weight by one name, what reads it by the other in the
same node's bodies is left alone (1.20 to 1.31.1), and the Identity is folded like any other node:
into a copy of the weight.

The copy stays if a reader takes it as it is, as Gather does, while one takes the weight so, too.
If kernels pack both, one packed copy is shared since 1.21; up to 1.22 the place of the folded one
stays in the arena nonetheless. The peak is higher by the copy, and up to 1.23, where folding copies
what it reads, by two.

## What to do

`remove-identities`: let the readers take the weight under its own name. Every value stays as it is.

## Not reported

- An Identity of a weight in any other place: it is dropped, and costs nothing.
- One whose output is an output of its graph, or that is in a function; weights that a caller may
  override, which are not folded.
- Copies below 64 KiB.
"""

from collections.abc import Iterator
from typing import NamedTuple

from memdiag.model.graph_index import Scope
from memdiag.model.readers import Reader
from memdiag.ort.packing import ARENA_FREED_SINCE, direct, overridable, packed
from memdiag.records.finding import ExpectedCopies, Finding
from memdiag.records.weights import Weight
from memdiag.rules.examined import Examined, qualified
from memdiag.rules.folded import LEAN_FOLDING_SINCE
from memdiag.rules.rule import Rule
from memdiag.rules.wording import counted, some_of
from memdiag.units import KIB, format_size

RULE = Rule(
    code="MD106",
    name="weight-under-two-names",
    summary="A weight read under two names by one If, Loop or Scan, which is copied for that",
    remedies=("remove-identities",),
)

_LEAST = 64 * KIB


class _Alias(NamedTuple):
    """The names that mean one copy of a weight, and the Identity that made it; None for itself."""

    names: set[str]
    identity: Reader | None


def detect(examined: Examined) -> Iterator[Finding]:
    """Yield a finding for each weight that is copied for the sake of its names."""
    free = overridable(examined.model)
    for weight in examined.model.weights:
        homes = examined.graphs.scopes(weight)
        if (
            weight.nbytes >= _LEAST
            and weight.place in ("initializer", "constant")
            and not (weight.name in free and not weight.graph)
            and not any(scope.is_function for scope in homes)
        ):
            aliases = _aliases(examined, weight)
            if len(aliases) > 1:
                yield from _finding(examined, weight, aliases)


def _aliases(examined: Examined, weight: Weight) -> list[_Alias]:
    """Return the weight, and each copy of it, with the names by which they are read."""
    found = [_Alias({weight.name}, None)]
    for reader in examined.readers(weight):
        scope, node = reader.scope, reader.node
        chained = all(step.node.op_type == "Identity" for step in reader.path)
        if node.op_type != "Identity" or not node.output or not chained or scope.is_function:
            continue
        source = next(alias for alias in found if reader.name in alias.names)
        output = node.output[0]
        if output not in scope.outputs and _is_blocked(scope, output, source.names):
            found.append(_Alias({output}, reader))
        else:
            source.names.add(output)
    return found


def _is_blocked(scope: Scope, output: str, names: set[str]) -> bool:
    """Return whether a node whose bodies read `output` has one that reads one of `names` itself.

    So it is as well if that is further in, as long as `output` is read there.
    """
    for bodies in scope.subgraphs.values():
        if any(_reads(body, {output}) for body in bodies):
            for body in bodies:
                if _reads(body, names, itself=True) or _is_blocked(body, output, names):
                    return True
    return False


def _reads(body: Scope, names: set[str], *, itself: bool = False) -> bool:
    """Return whether `body` reads a value from outside by one of `names`.

    `itself` leaves out what only graphs in it read.
    """
    return any(
        not body.graph.defines(name)
        and any(not itself or use.scope is body for use in body.uses(name))
        for name in names
    )


def _finding(examined: Examined, weight: Weight, aliases: list[_Alias]) -> Iterator[Finding]:
    size, runtime = weight.nbytes, examined.runtime
    kept = [alias for alias in aliases if _is_kept(examined, weight, alias)]
    copies = aliases[1:]
    if weight.storage == "external":
        # The weight itself stays mapped: of it, only what was read is resident.
        spare = sum(alias in kept for alias in copies)
    else:
        spare = max(len(kept) - 1, 0)
    if runtime < ARENA_FREED_SINCE:
        spare = max(spare, len(copies))
    peak = len(copies) if kept else 0
    if runtime < LEAN_FOLDING_SINCE:
        peak = len(copies) + 1
    peak = max(peak, spare)
    if not peak:
        return
    name = qualified(weight)
    identities = [
        examined.node(alias.identity.scope, alias.identity.node)
        for alias in copies
        if alias.identity
    ]
    yield RULE.finding(
        examined,
        f"{name} ({format_size(size)}) is copied {counted(len(copies), 'time')}: one node's bodies"
        f" read it under another name as well, by {some_of(identities)}",
        detail=f"onnxruntime {runtime} folds the Identity instead of dropping it: the peak is"
        f" {format_size(peak * size)} higher than it need be.",
        weights=[name],
        nodes=identities,
        nbytes=spare * size,
        peak_bytes=peak * size,
        phase="constant_fold",
        expected=_expected(weight, kept),
    )


def _is_kept(examined: Examined, weight: Weight, alias: _Alias) -> bool:
    """Return whether something reads this copy as it is, and not only to pack it."""
    folded = examined.folds.nodes
    return any(
        reader.name in alias.names
        and reader.node not in folded
        and not packed(
            examined.graphs,
            examined.runtime,
            reader.scope,
            reader.node,
            reader.input_index,
            weight.dtype,
            weight.shape,
        )
        for reader in direct(examined.readers(weight))
    )


def _expected(weight: Weight, kept: list[_Alias]) -> Iterator[ExpectedCopies]:
    """Yield the copies that the X-ray would see, where they are all in memory."""
    if weight.storage != "external" and len(kept) > 1:
        yield ExpectedCopies(
            weights=(qualified(weight),),
            kind="original",
            count=len(kept),
            bytes=len(kept) * weight.nbytes,
        )
