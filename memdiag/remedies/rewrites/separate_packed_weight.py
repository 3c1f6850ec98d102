"""Give the products that pack a weight an initializer of their own, over the same bytes of a file.

onnxruntime frees a weight once all that reads it has packed it, and a Gather of a tied embedding
never does. But initializers of external data are mapped each by itself, also where several lie in
one place: that of the products is packed and let go, and of the other one nothing is read but the
rows that are gathered. One copy is left, the packed one, and products take no longer than before.
A product by the transposed weight becomes a Gemm with transB=1, which packs it without turning it
first.

It hurts where a model has to be one file: the weights move to external data. Each session has a
packed copy of its own, and until it is made both are there.
"""

from collections.abc import Iterator
from typing import NamedTuple

import onnx_ir as ir

from memdiag.records.finding import Finding
from memdiag.remedies.constants import must_be_inputs
from memdiag.remedies.draft import Draft
from memdiag.remedies.merging import weights_of
from memdiag.remedies.products import STORED_TRANSPOSE, Product, finish, products
from memdiag.remedies.rewrite import Rewrite
from memdiag.remedies.rewrites import gemm_transposed

REWRITE = Rewrite(
    name="separate-packed-weight",
    summary="let products read an initializer of their own over the same bytes, to be packed",
    rules=("shared-weight-transposed", "stored-transpose", "original-kept"),
    arithmetic="reordered",
)

_PACKING = {("MatMul", ""), ("Gemm", ""), ("FusedMatMul", "com.microsoft")}
_READ_IN_PART = frozenset({"Gather", "GatherElements", "GatherND", "Slice", "Shape", "Size"})


class _Plan(NamedTuple):
    """The products to be made Gemms, the weights to be given twins, and why others cannot be."""

    turned: tuple[Product, ...]
    weights: tuple[ir.Value, ...]
    problems: tuple[str, ...]


class _Use(NamedTuple):
    node: ir.Node
    slot: int

    @property
    def packs(self) -> bool:
        return (self.node.op_type, self.node.domain) in _PACKING and self.slot == 1


def check(draft: Draft, finding: Finding) -> str | None:
    """Return why no weight can be given to its products alone; None if one can."""
    plan = _plan(draft, finding)
    return None if plan.weights else next(iter(plan.problems), "it names no weight that is there")


def apply(draft: Draft, finding: Finding) -> bool:
    """Give the products of each weight an initializer of their own; return whether there is one."""
    plan = _plan(draft, finding)
    for product in plan.turned:
        gemm_transposed.replace(draft, product)
    finish(plan.turned)
    for weight in plan.weights:
        _separate(draft, weight)
    if plan.weights and draft.storage is None and not draft.file.external_bytes:
        draft.storage = "external"
    return bool(plan.weights)


def _plan(draft: Draft, finding: Finding) -> _Plan:
    turned = products(draft, finding, _product_problem)
    named = [] if finding.name == STORED_TRANSPOSE else weights_of(draft, finding)
    problems = list(turned.problems) if finding.name == STORED_TRANSPOSE else []
    weights = []
    for weight in dict.fromkeys([*(product.source for product in turned.found), *named]):
        of_weight = [product for product in turned.found if product.source is weight]
        problem = _weight_problem(draft, weight) or _uses_problem(weight, of_weight)
        if problem:
            problems.append(problem)
        else:
            weights.append(weight)
    found = tuple(product for product in turned.found if product.source in weights)
    return _Plan(found, tuple(weights), tuple(problems))


def _product_problem(draft: Draft, product: Product) -> str:
    if product.casts:
        return "the weight is cast before the product"
    return gemm_transposed.problem(draft, product)


def _weight_problem(draft: Draft, weight: ir.Value) -> str:
    """Return why `weight` cannot have a twin that is packed from a file; empty if it can."""
    if not weight.is_initializer() or not isinstance(weight.const_value, ir.ExternalTensor):
        return "the weight is no initializer that a file could hold"
    if weight.graph is not draft.model.graph:
        return "the weight is owned by a subgraph"
    if must_be_inputs(draft):
        return "before version 4 of the IR a new initializer would be a new input"
    if weight.is_graph_input():
        return "the weight is listed as an input, so that nothing packs it"
    if weight.dtype != ir.DataType.FLOAT or len(weight.const_value.shape) != 2:
        return "products pack matrices of fp32 alone"
    return ""


def _uses_problem(weight: ir.Value, turned: list[Product]) -> str:
    """Return why a twin would save nothing; empty if it does.

    The Transposes of the products `turned` will be gone.
    """
    gone = {product.turned.producer() for product in turned}
    left = [use for use in _uses(weight) if use.node not in gone]
    kept = [use for use in left if not use.packs]
    whole = [use.node.op_type for use in kept if use.node.op_type not in _READ_IN_PART]
    if whole:
        return f"{whole[0]} reads all of the weight as it is"
    if not kept:
        return "nothing but products reads the weight, which is freed when it is packed"
    if not turned and len(kept) == len(left):
        return "no product packs the weight"
    return ""


def _separate(draft: Draft, weight: ir.Value) -> None:
    """Let what packs `weight` read a new initializer, of the same tensor."""
    name = draft.unique_name(f"{weight.name}_packed")
    twin = ir.Value(name=name, type=weight.type, shape=weight.shape, const_value=weight.const_value)
    draft.model.graph.register_initializer(twin)
    for use in list(_uses(weight)):
        if use.packs:
            use.node.replace_input_with(use.slot, twin)


def _uses(weight: ir.Value) -> Iterator[_Use]:
    """Yield what reads `weight`, also behind Identity, of which none is left in a session.

    An Identity is there itself where its output is one of its graph.
    """
    pending = [weight]
    while pending:
        for node, slot in pending.pop().uses():
            passed = node.op_type == "Identity" and not node.domain
            if passed and not node.outputs[0].is_graph_output():
                pending.append(node.outputs[0])
            else:
                yield _Use(node, slot)
