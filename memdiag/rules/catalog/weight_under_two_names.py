"""An If, Loop or Scan reads a weight under two names, one of which is the output of an Identity.

Exporters write an Identity where one parameter has several names, for example tied parameters.

## Why it costs

onnxruntime drops an Identity and lets its readers read the weight itself, also in subgraphs. It
does not do so for nodes in the bodies of an If, Loop or Scan that already reads the weight under
its other name (1.24 to 1.32.0). The Identity is then folded like any other node: into a copy of
the weight.

The copy stays in memory if one reader uses the copy unpacked (as Gather does) and another reader
uses the weight unpacked. If kernels pack both, they share one packed copy. The peak is higher by
one copy.

## What to do

`remove-identities`: let the readers read the weight under its own name. Every value stays equal.

## Not reported

- An Identity of a weight in any other place: it is dropped, and costs nothing.
- An Identity whose output is an output of its graph, or an Identity in a function.
- Weights that a caller may override, which are not folded.
- Copies below 64 KiB.
"""

from collections.abc import Iterator
from typing import NamedTuple

from memdiag.model.graph_index import Scope
from memdiag.model.readers import WeightReader
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.prepacking import packed_buffer
from memdiag.records.finding import ExpectedCopies, Finding
from memdiag.records.weights import Weight, qualified_name
from memdiag.rules.finding_words import node_names
from memdiag.rules.rule import Rule
from memdiag.units import KIB, counted, format_size, some_of

RULE = Rule(
    code="MD106",
    name="weight-under-two-names",
    summary="A weight that onnxruntime copies because an If, Loop or Scan reads it under two names",
    remedies=("remove-identities",),
)

_MIN_IDENTITY_COPY_BYTES = 64 * KIB


class _NamedCopy(NamedTuple):
    """A weight, or a copy of it that is made because it has another name.

    Attributes:
        names: the names by which nodes read it.
        identity: the Identity that makes the copy; None for the weight itself.
    """

    names: set[str]
    identity: WeightReader | None


def detect(ctx: AnalysisContext) -> Iterator[Finding]:
    """Yield a finding for each weight that is copied because it is read under two names."""
    for weight in ctx.model_file.weights:
        if (
            weight.nbytes >= _MIN_IDENTITY_COPY_BYTES
            and weight.origin in ("initializer", "constant")
            and not ctx.graphs.is_overridable(weight)
            and not any(scope.is_function for scope in ctx.graphs.scopes(weight))
        ):
            copies = _named_copies(ctx, weight)
            if len(copies) > 1:
                yield from _two_names_findings(ctx, weight, copies)


def _named_copies(ctx: AnalysisContext, weight: Weight) -> list[_NamedCopy]:
    """Return the weight, followed by its copies, with the names by which nodes read them."""
    copies = [_NamedCopy({weight.name}, None)]
    for reader in ctx.readers(weight):
        scope, node = reader.scope, reader.node
        is_chain = all(step.node.op_type == "Identity" for step in reader.path)
        if node.op_type != "Identity" or not is_chain or scope.is_function:
            continue
        source = next(copy for copy in copies if reader.name in copy.names)
        output = node.output[0]
        if output not in scope.output_names and _is_identity_kept(scope, output, source.names):
            copies.append(_NamedCopy({output}, reader))
        else:
            source.names.add(output)
    return copies


def _is_identity_kept(scope: Scope, output: str, names: set[str]) -> bool:
    """Return whether the runtime cannot drop the Identity that computes `output` from `names`.

    It cannot if one subgraph of a node reads `output`, and one of the node's subgraphs reads one of
    `names` directly (not in a subgraph further inside).
    """
    for subgraphs in scope.subgraphs.values():
        if any(_has_captured_name(inner, {output}) for inner in subgraphs):
            for inner in subgraphs:
                if _has_captured_name(inner, names, directly=True) or _is_identity_kept(
                    inner, output, names
                ):
                    return True
    return False


def _has_captured_name(subgraph: Scope, names: set[str], *, directly: bool = False) -> bool:
    """Return whether `subgraph` reads one of the values `names` of the graphs around it.

    With `directly`, only its own nodes count, not the nodes of subgraphs inside it.
    """
    return any(
        not subgraph.graph.defines(name)
        and any(not directly or use.scope is subgraph for use in subgraph.uses(name))
        for name in names
    )


def _two_names_findings(
    ctx: AnalysisContext, weight: Weight, all_copies: list[_NamedCopy]
) -> Iterator[Finding]:
    size = weight.nbytes
    kept_copies = [copy for copy in all_copies if _is_copy_kept(ctx, weight, copy)]
    copies = all_copies[1:]
    if weight.storage == "external":
        # The weight itself stays mapped: it is resident only as far as it is read.
        extra_count = sum(copy in kept_copies for copy in copies)
    else:
        extra_count = max(len(kept_copies) - 1, 0)
    peak_count = max(len(copies) if kept_copies else 0, extra_count)
    if not peak_count:
        return
    name = qualified_name(weight)
    identities = node_names(ctx, [copy.identity for copy in copies if copy.identity])
    yield RULE.finding(
        ctx,
        f"{name} ({format_size(size)}) is copied {counted(len(copies), 'time')}: one node's bodies"
        f" read it under another name as well, by {some_of(identities)}",
        detail=f"onnxruntime {ctx.runtime} folds the Identity instead of dropping it: the peak is"
        f" {format_size(peak_count * size)} higher than necessary.",
        weights=[name],
        nodes=identities,
        nbytes=extra_count * size,
        peak_bytes=peak_count * size,
        phase="constant_fold",
        expected=_expected_named_copies(weight, kept_copies),
    )


def _is_copy_kept(ctx: AnalysisContext, weight: Weight, copy: _NamedCopy) -> bool:
    """Return whether a node reads `copy`, and its kernel does not pack it."""
    return any(
        reader.name in copy.names
        and not packed_buffer(ctx.graphs, ctx.runtime, reader.use, weight.dtype, weight.shape)
        for reader in ctx.session.remaining_readers(weight)
    )


def _expected_named_copies(weight: Weight, kept: list[_NamedCopy]) -> Iterator[ExpectedCopies]:
    """Yield the copies that an X-ray should list, if all of them are in memory."""
    if weight.storage != "external" and len(kept) > 1:
        yield ExpectedCopies(
            weights=(qualified_name(weight),),
            kind="original",
            count=len(kept),
            bytes=len(kept) * weight.nbytes,
        )
